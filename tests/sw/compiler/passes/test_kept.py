"""Buffers that the first iteration of a loop fills for all its iterations."""

from __future__ import annotations

from collections.abc import Container
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
from amaranth_vta.sw.compiler.te.schedule import ScheduleError
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.runtime.runtime import Runtime
from tests.support.all_passes import check_all_passes

ENV = Environment(PRESETS["tiny-extended"])
ROWS, OUTPUTS, INPUTS = 6, 7, 4


def product(
    tile: int = 3, first: int | None = 4, kept: Container[str] = ("x_buf",)
) -> tuple[te.Schedule, list[Tensor]]:
    """A matrix product by tiles of outputs within tiles of two rows. Its inputs are loaded one by
    one; buffers that are ``kept`` are loaded in the first tile of outputs only.
    """
    x = te.placeholder((ROWS, INPUTS, ENV.BATCH, ENV.BLOCK_IN), "x", ENV.inp_dtype)
    w = te.placeholder((OUTPUTS, INPUTS, ENV.BLOCK_OUT, ENV.BLOCK_IN), "w", ENV.wgt_dtype)
    x_buf, w_buf = (te.compute(t.shape, lambda *i, t=t: t(*i), f"{t.name}_buf") for t in (x, w))
    ko, ki = te.reduce_axis((0, INPUTS), "ko"), te.reduce_axis((0, ENV.BLOCK_IN), "ki")
    total = te.compute(
        (ROWS, OUTPUTS, ENV.BATCH, ENV.BLOCK_OUT),
        lambda n, o, b, k: te.sum(
            x_buf[n, ko, b, ki].astype(ENV.acc_dtype) * w_buf[o, ko, k, ki].astype(ENV.acc_dtype),
            axis=[ko, ki],
        ),
        "total",
    )
    y = te.compute(total.shape, lambda *i: total(*i).astype(ENV.out_dtype), "y")
    s = te.create_schedule(y.op)
    n, o, *_ = y.op.axis
    no, ni = s[y].split(n, 2)
    oo, oi = s[y].split(o, tile, first=first)
    s[y].reorder(no, oo, ni, oi)
    s[y].pragma(ni, ENV.dma_copy)
    s[total].set_scope(ENV.acc_scope)
    s[total].compute_at(s[y], oo)
    s[total].store_at(no)
    s[total].double_buffer()
    n, o, b, k = total.op.axis
    s[total].reorder(ko, n, o, b, k, ki)
    s[total].tensorize(b, ENV.gemm)
    for tensor, scope in ((x_buf, ENV.inp_scope), (w_buf, ENV.wgt_scope)):
        s[tensor].set_scope(scope)
        s[tensor].compute_at(s[total], ko)
        s[tensor].store_at(no, s[y], keep=tensor.name in kept)
        s[tensor].pragma(tensor.op.axis[0], ENV.dma_copy)
    s[w_buf].double_buffer(3)
    return s, [x, w, y]


def operands(args: list[Tensor]) -> tuple[list[Any], Any]:
    rng = np.random.default_rng(0)
    data = [rng.integers(-9, 9, arg.shape).astype(np.int8) for arg in args[:2]]
    return data, te.evaluate(args[2], dict(zip(args, data, strict=False)))


@pytest.mark.parametrize(("tile", "first"), [(3, 4), (1, 5), (2, 2), (2, None), (7, None)])
def test_each_input_is_loaded_once_per_tile_of_rows(tile: int, first: int | None) -> None:
    s, args = product(tile, first)
    data, want = operands(args)
    device = FunctionalDevice(ENV.config, 1 << 20, "reverse", True, True)
    runtime = Runtime(device)
    function = build(s, args, env=ENV)
    buffers = [runtime.allocate(function.nbytes(index)) for index in range(3)]
    for buffer, values in zip(buffers, data, strict=False):
        buffer.write(values)
    function.run_on(runtime, *buffers)
    counters = runtime.synchronize().counters
    np.testing.assert_array_equal(buffers[2].read(np.int8, want.shape), want)
    assert not device.races
    assert not device.uninitialized_reads
    assert counters["inp_elements"] == ROWS * INPUTS
    assert counters["wgt_elements"] == ROWS // 2 * OUTPUTS * INPUTS


def test_no_pass_changes_what_is_computed() -> None:
    s, args = product()
    check_all_passes(s, args, *operands(args), ENV)


def test_the_first_products_overwrite_accumulators_although_the_loop_loads() -> None:
    """Buffers allocated outside of the loop rotate through the same copies if it is peeled."""
    s, args = product()
    text = str(lower(s, args, env=ENV))
    assert "overwrite=1" in text
    assert "reset=1" not in text


def test_what_differs_between_iterations_cannot_be_kept() -> None:
    s, args = product(kept=["w_buf"])
    with pytest.raises(LoweringError, match="w_buf is kept: its iterations read different regions"):
        lower(s, args, env=ENV)


def test_what_is_kept_is_not_carried() -> None:
    s, _ = product()
    (x_buf,) = (stage for stage in s.stages if stage.name == "x_buf")
    with pytest.raises(ScheduleError, match="store_at comes first, and keeps nothing"):
        x_buf.carry(x_buf.op.axis[0])
