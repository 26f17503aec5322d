"""A schedule that follows from expressions: each tensor by the unit that its expression is for."""

from __future__ import annotations

import pytest

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.identity import identity_operand, multiplied
from amaranth_vta.sw.compiler.operators.building_blocks.steps import shared_constants
from amaranth_vta.sw.compiler.operators.building_blocks.tile_schedule import tile_schedule
from amaranth_vta.sw.compiler.te.schedule import Schedule
from amaranth_vta.sw.compiler.te.tensor import Tensor

ENV = Environment("pynq-extended")
TILE = (ENV.BATCH, ENV.BLOCK_OUT)


def described(s: Schedule, tensor: Tensor) -> tuple[str, str | None, str | None]:
    """The scratchpad of a tensor, what its loops become, and the loop that it is computed at."""
    stage = s[tensor]
    (kind,) = [*stage.pragmas.values(), *(item.name for item in stage.intrinsics.values())]
    return stage.scope, kind, stage.attach and stage.attach[1].name


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    """Rows times a factor per column, as (rows, columns) tiles, forwarded and moved again."""
    x = te.placeholder((6, 4, *TILE), "x", ENV.inp_dtype)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    _, identity_buf = identity_operand(ENV)
    moved = multiplied(x.shape, x_buf, identity_buf, "moved", ENV)
    factors = te.placeholder((4, *TILE), "factors", ENV.acc_dtype)
    factors_buf = te.compute(factors.shape, lambda *i: factors(*i), "factors_buf")
    _, added = shared_constants(1, "added", ENV)
    scaled = te.compute(x.shape, lambda r, c, *i: moved(r, c, *i) * factors_buf(c, *i), "scaled")
    low = te.compute(x.shape, lambda *i: scaled(*i).astype(ENV.inp_dtype), "low")
    again = multiplied(x.shape, low, identity_buf, "again", ENV)
    total = te.compute(x.shape, lambda r, c, *i: again(r, c, *i) + added(0, *i), "total")
    y = te.compute(x.shape, lambda *i: total(*i).astype(ENV.out_dtype), "y")
    found = (x_buf, identity_buf, moved, factors_buf, added, scaled, low, again, total, y)
    return {tensor.name: tensor for tensor in found}


def test_units_and_places_follow_from_the_expressions(tensors: dict[str, Tensor]) -> None:
    y = tensors["y"]
    s = tile_schedule(y, (2, 2), ENV)
    rows, columns = "i0_outer", "i1_outer"
    assert [leaf.name for leaf in s[y].leaves[:4]] == [rows, columns, "i0_inner", "i1_inner"]
    assert {name: described(s, tensor) for name, tensor in tensors.items()} == {
        "x_buf": ("inp", "dma_copy", columns),
        "identity_buf": ("wgt", "dma_copy", None),
        "moved": ("acc", "gemm", columns),
        "factors_buf": ("acc", "dma_copy", columns),
        "added_buf": ("acc", "dma_copy", None),
        "scaled": ("acc", "alu", columns),
        "low": ("inp", "dma_copy", columns),
        "again": ("acc", "gemm", columns),
        "total": ("acc", "alu", columns),
        "y": ("dram", "dma_copy", None),
    }


def test_arguments_are_loaded_where_their_region_changes(tensors: dict[str, Tensor]) -> None:
    s = tile_schedule(tensors["y"], (2, 2), ENV, order=(1, 0))
    assert described(s, tensors["factors_buf"])[2] == "i1_outer"
    assert described(s, tensors["x_buf"])[2] == "i0_outer"


def test_a_sum_begins_with_the_loops_that_are_summed_over() -> None:
    x = te.placeholder((3, 5, *TILE), "x", ENV.acc_dtype)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    v = te.reduce_axis((0, 5), "v")
    total = te.compute((3, *TILE), lambda r, *i: te.sum(x_buf(r, v, *i), axis=v), "total")
    y = te.compute(total.shape, lambda *i: total(*i).astype(ENV.out_dtype), "y")
    s = tile_schedule(y, (2,), ENV)
    assert s[total].leaves[0] is v
    assert s[total].pragmas == {v: "alu"}


def test_others_are_left_to_the_caller(tensors: dict[str, Tensor]) -> None:
    s = tile_schedule(tensors["y"], (2, 2), ENV, others=[tensors["total"]])
    assert s[tensors["total"]].attach is None
    assert s[tensors["total"]].scope == "dram"
