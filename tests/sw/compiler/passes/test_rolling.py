"""Rolling buffers: after every pass, results of an iteration are available in the next one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.lower import lower
from amaranth_vta.sw.compiler.nest.ir import LoweringError
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.runtime.runtime import Runtime
from tests.support.all_passes import check_all_passes

ENV = Environment(PRESETS["tiny"])
TAIL = (ENV.BATCH, ENV.BLOCK_OUT)
Scheduled = tuple[te.Schedule, list[Tensor]]


def windows(
    size: int = 9,
    pad: int = 0,
    taps: int = 3,
    step: int = 2,
    rows: int = 1,
    copies: int = 2,
    strips: int = 1,
) -> Scheduled:
    """Maxima over ``taps`` tripled rows, ``rows`` results at a time, with ``pad`` rows before the
    first.
    """
    output = (size + pad - taps) // step + 1
    x = te.placeholder((size, strips, *TAIL), "x", ENV.acc_dtype)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    tripled = te.compute(x.shape, lambda *i: x_buf(*i) * 3, "tripled")

    def greatest(h: Expr, *i: Expr) -> Expr:
        def of(begin: int) -> Expr:
            value = tripled(h * step + begin - pad, *i)
            for tap in range(begin + 1, taps):
                value = te.max(value, tripled(h * step + tap - pad, *i))
            return value

        return te.if_then_else(h > 0, of(0), of(pad)) if pad else of(0)

    pool = te.compute((output, strips, *TAIL), greatest, "pool")
    y = te.compute(pool.shape, lambda *i: pool(*i).astype(ENV.out_dtype), "y")
    s = te.create_schedule(y.op)
    h, strip, *_ = y.op.axis
    ho, hi = s[y].split(h, rows)
    s[y].reorder(strip, ho, hi)
    for tensor in (x_buf, tripled, pool):
        s[tensor].set_scope(ENV.acc_scope)
        s[tensor].compute_at(s[y], ho)
        s[tensor].store_at(strip)
        s[tensor].double_buffer(copies)
        s[tensor].pragma(tensor.op.axis[0], ENV.dma_copy if tensor is x_buf else ENV.alu)
        if tensor is not pool:
            s[tensor].carry(tensor.op.axis[0])
    s[y].pragma(hi, ENV.dma_copy)
    return s, [x, y]


def operands(args: list[Tensor]) -> tuple[Any, Any]:
    """A random input and the expected output."""
    data = np.random.default_rng(0).integers(-40, 40, args[0].shape).astype(np.int32)
    return data, te.evaluate(args[1], {args[0]: data})


CASES: list[dict[str, int]] = [
    {},
    {"size": 8, "pad": 1},
    {"size": 12, "pad": 1, "strips": 3, "copies": 3},
    {"size": 10, "taps": 2, "step": 1, "copies": 4},
    {"size": 9, "taps": 2, "step": 2},
    {"size": 3},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_row_is_computed_once(case: dict[str, int]) -> None:
    s, args = windows(**case)
    data, want = operands(args)
    device = FunctionalDevice(ENV.config, 1 << 20, "reverse", True, True)
    runtime = Runtime(device)
    function = build(s, args, env=ENV)
    source, target = (runtime.allocate(function.nbytes(index)) for index in (0, 1))
    source.write(data)
    function.run_on(runtime, source, target)
    counters = runtime.synchronize().counters
    np.testing.assert_array_equal(target.read(np.int8, want.shape), want)
    assert not device.races
    assert not device.uninitialized_reads
    step, taps = case.get("step", 2), case.get("taps", 3)
    rows = (want.shape[0] - 1) * step + taps - case.get("pad", 0)
    assert counters["acc_elements"] == rows * want.shape[1]


def stored_around_another_stage() -> Scheduled:
    """A copy within the loops of two stages, stored in the outer one, that carries nothing."""
    x = te.placeholder((2, 3, 5, *TAIL), "x", ENV.acc_dtype)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    tripled = te.compute(x.shape, lambda *i: x_buf(*i) * 3, "tripled")
    y = te.compute(x.shape, lambda *i: tripled(*i).astype(ENV.out_dtype), "y")
    s = te.create_schedule(y.op)
    around, row, column, *_ = y.op.axis
    for tensor in (x_buf, tripled):
        s[tensor].set_scope(ENV.acc_scope)
    s[tripled].compute_at(s[y], row)
    s[x_buf].compute_at(s[tripled], tripled.op.axis[2])
    s[x_buf].store_at(around, s[y])
    s[x_buf].double_buffer()
    s[x_buf].pragma(x_buf.op.axis[3], ENV.dma_copy)
    s[tripled].pragma(tripled.op.axis[3], ENV.alu)
    s[y].pragma(column, ENV.dma_copy)
    return s, [x, y]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_pass_changes_what_is_computed(case: dict[str, int]) -> None:
    s, args = windows(**case)
    data, want = operands(args)
    check_all_passes(s, args, [data], want, ENV)


def test_each_iteration_of_the_inner_loop_has_a_turn() -> None:
    s, args = stored_around_another_stage()
    data, want = operands(args)
    check_all_passes(s, args, [data], want, ENV)
    text = str(lower(s, args, env=ENV, trace=True).steps[0][1])
    assert "x_buf = allocate(acc, int32, [15, 1, 1, 1, 1, 4], rolling=1, copies=2)" in text
    assert "x_buf[5*i1 + i2, 0, 0, 0, 0, " in text


def test_the_buffer_outlives_the_loop_that_fills_it() -> None:
    text = str(lower(*windows(8, 1), env=ENV, trace=True).steps[0][1])
    lines = [line.strip() for line in text.splitlines()]
    outer = "tripled = allocate(acc, int32, [4, 2, 1, 1, 4], rolling=1, copies=2)"
    assert lines.index(outer) < lines.index("for i0_outer in range(3):")
    assert "max(max(tripled[i0_outer, 1, 0, 0, " in text


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"copies": 1}, "double_buffer must keep the copy"),
        ({"size": 11, "rows": 2}, "reads from two iterations at once"),
        ({"step": 1}, "it needs 2 elements, more than an iteration computes"),
    ],
)
def test_what_cannot_be_carried_is_refused(case: dict[str, int], reason: str) -> None:
    with pytest.raises(LoweringError, match=reason):
        lower(*windows(**case), env=ENV)


def test_virtual_threads_have_no_rolling_buffers() -> None:
    s, args = windows(strips=2)
    s[args[1]].bind(args[1].op.axis[1], te.thread_axis("cthread"))
    assert "cannot be interleaved" in str(lower(s, args, env=ENV).problem)


def test_the_axis_of_the_buffer_stays_right_outside() -> None:
    s, args = windows(strips=2)
    s[args[1]].reorder(*s[args[1]].leaves[1::-1])
    with pytest.raises(LoweringError, match="stored at i1, which is not the next loop outside"):
        lower(s, args, env=ENV)
