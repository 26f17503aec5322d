"""The region of one instruction is marked once, wherever a reduction is marked."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.lower import lower
from amaranth_vta.sw.compiler.nest.interpret import interpret
from amaranth_vta.sw.compiler.nest.ir import LoopNest, Region, walk

ENV = Environment(PRESETS["tiny"])
TAIL = (ENV.BATCH, ENV.BLOCK_OUT)


@pytest.mark.parametrize(("marked", "regions"), [("i", 1), ("k", 2)])
def test_the_beginning_of_a_reduction_is_in_one_region(marked: str, regions: int) -> None:
    """A reduction's initialization is in its region if the reduction starts outside, otherwise in a
    separate region.
    """
    x = te.placeholder((8, *TAIL), "x", ENV.acc_dtype)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    k = te.reduce_axis((0, 4), "k")
    most = te.compute((2, *TAIL), lambda i, b, c: te.max(x_buf(4 * i + k, b, c), axis=k), "most")
    y = te.compute(most.shape, lambda *i: most(*i).astype(ENV.out_dtype), "y")
    s = te.create_schedule(y.op)
    for tensor in (x_buf, most):
        s[tensor].set_scope(ENV.acc_scope)
    for tensor in (x_buf, y):
        s[tensor].pragma(tensor.op.axis[0], ENV.dma_copy)
    i, b, c = most.op.axis
    s[most].reorder(i, k, b, c)
    s[most].pragma({"i": i, "k": k}[marked], ENV.alu)
    data = np.random.default_rng(1).integers(-90, 90, x.shape).astype(np.int32)
    found: list[Region] = []

    def check(nest: LoopNest, _: object) -> LoopNest:
        got = np.zeros((2, *TAIL), np.int8)
        interpret(nest, ENV.config, [data, got])
        np.testing.assert_array_equal(got, data.reshape(2, 4, *TAIL).max(1))
        parts = [part for part in walk(nest.body) if isinstance(part, Region)]
        found.extend(part for part in parts if part.kind == "alu")
        return nest

    assert lower(s, [x, y], env=ENV, passes=[("after infer_bounds", check)]).problem is None
    assert len(found) == regions
