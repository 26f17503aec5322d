"""The machine needs no more cycles than tests/golden/cycles.json records.

Rewrite the file when the machine has become faster, or slower for a good reason:
``pytest --rewrite-golden -m "nightly or not nightly" tests/end_to_end/test_golden_cycles.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.measurements import layers
from amaranth_vta.measurements.measurement import Measurement
from amaranth_vta.measurements.rates import KINDS, measure_rates
from amaranth_vta.measurements.rounds import measure_rounds
from amaranth_vta.sim.devices import RunOptions, open_device
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function, build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.runtime.runtime import Runtime
from tests.support.golden import Golden
from tests.support.machines import others_nightly

EXTENDED = PRESETS["pynq-extended"]


def check(golden: Golden, group: str, cycles: Mapping[str, int | None]) -> None:
    known = golden.known("cycles.json", group, cycles)
    assert cycles.keys() == known.keys()
    slower = {
        name: (known[name], count)
        for name, count in cycles.items()
        if count is None or count > known[name]
    }
    assert not slower


def cycles_of(measured: list[Measurement]) -> dict[str, int | None]:
    assert all(item.mismatches == 0 for item in measured)
    return {item.name: item.cycles for item in measured}


@pytest.mark.parametrize("dram", ["ideal", "ddr"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", ["tiny-extended", "pynq-extended"])
def test_rates_are_as_good_as_they_were(config: str, kind: str, dram: str, golden: Golden) -> None:
    measured = list(measure_rates(kind, PRESETS[config], RunOptions("rtl", dram)))
    check(golden, f"{kind}, {config}, {dram}", cycles_of(measured))
    if config == "pynq-extended":
        assert [item.name for item in measured if not item.is_reached] == []


@pytest.mark.parametrize("config", others_nightly(["pynq", "tiny-extended", "pynq-extended"]))
def test_waiting_takes_no_longer_than_it_did(config: str, golden: Golden) -> None:
    measured = list(measure_rounds(PRESETS[config], RunOptions("rtl")))
    assert all(item.mismatches == 0 for item in measured)
    check(golden, f"rounds, {config}", {item.name: item.cycles for item in measured})


@pytest.mark.parametrize(
    "schedules", ["default", pytest.param("by-hand", marks=pytest.mark.nightly)]
)
def test_layers_are_as_fast_as_they_were(schedules: str, golden: Golden) -> None:
    by_hand = schedules == "by-hand"
    measured = list(layers.measure_layers(EXTENDED, RunOptions("rtl", "ddr"), by_hand))
    check(golden, f"resnet18-layers, {schedules}, ddr", cycles_of(measured))
    assert [item.name for item in measured if not item.is_reached] == []


def matrix_product(env: Environment, threads: int) -> Function:
    """A matrix product by blocks of outputs, over virtual threads."""
    n, k, m = 8, 16, 8
    x = te.placeholder((n, k, env.BATCH, env.BLOCK_IN), "x", env.inp_dtype)
    w = te.placeholder((m, k, env.BLOCK_OUT, env.BLOCK_IN), "w", env.wgt_dtype)
    x_buf, w_buf = (te.compute(t.shape, lambda *i, t=t: t(*i), f"{t.name}_buf") for t in (x, w))
    ko, ki = te.reduce_axis((0, k), "ko"), te.reduce_axis((0, env.BLOCK_IN), "ki")
    acc = env.acc_dtype
    product = te.compute(
        (n, m, env.BATCH, env.BLOCK_OUT),
        lambda n, o, b, k: te.sum(
            x_buf[n, ko, b, ki].astype(acc) * w_buf[o, ko, k, ki].astype(acc), axis=[ko, ki]
        ),
        "product",
    )
    shifted = te.compute(product.shape, lambda *i: te.max(product(*i) >> 4, 0), "shifted")
    y = te.compute(product.shape, lambda *i: shifted(*i).astype(env.out_dtype), "y")
    s = te.create_schedule(y.op)
    n_axis, o, b, c = s[y].op.axis
    o_out, o_in = s[y].split(o, 2)
    o_block, thread = s[y].split(o_out, threads)
    s[y].reorder(o_block, thread, n_axis, o_in, b, c)
    s[y].bind(thread, te.thread_axis("cthread"))
    s[y].pragma(n_axis, env.dma_copy)
    for tensor in (product, shifted):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], thread)
    s[shifted].pragma(s[shifted].op.axis[0], env.alu)
    n_axis, o, b, c = s[product].op.axis
    k_out, k_in = s[product].split(ko, 4)
    s[product].reorder(k_out, n_axis, o, k_in, b, c, ki)
    s[product].tensorize(b, env.gemm)
    for tensor, scope in ((x_buf, env.inp_scope), (w_buf, env.wgt_scope)):
        s[tensor].set_scope(scope)
        s[tensor].compute_at(s[product], k_out)
        s[tensor].pragma(s[tensor].op.axis[0], env.dma_copy)
    return build(s, [x, w, y], env=env)


def test_two_virtual_threads_take_fewer_cycles_than_one(golden: Golden) -> None:
    config = PRESETS["tiny"]
    cycles = {}
    for threads, name in ((1, "one thread"), (2, "two threads")):
        function = matrix_product(Environment(config), threads)
        runtime = Runtime(open_device("rtl", config, 1 << 20, dram="ddr"))
        sizes = [function.nbytes(i) for i in range(len(function.args))]
        function.run_on(runtime, *[runtime.allocate(size, "buffer") for size in sizes])
        cycles[name] = runtime.synchronize().cycles
    check(golden, "matrix product, tiny, ddr", cycles)
    one, two = cycles.values()
    assert one is not None
    assert two is not None
    assert two < 0.8 * one
