"""Splits whose first part is larger than the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.lower import lower
from amaranth_vta.sw.compiler.nest.interpret import interpret
from amaranth_vta.sw.compiler.nest.ir import For, LoweringError, walk
from amaranth_vta.sw.compiler.te.schedule import ScheduleError

TINY = PRESETS["tiny"]


def squares(extent: int, columns: int = 3) -> tuple[te.Schedule, te.Tensor, te.Tensor]:
    x = te.placeholder((extent, columns), "x", "int32")
    y = te.compute(x.shape, lambda i, j: x(i, j) * x(i, j), "y")
    return te.create_schedule(y.op), x, y


@given(st.integers(1, 23), st.integers(1, 9), st.integers(0, 9), st.booleans())
@example(20, 3, 4, False)
@example(7, 2, 9, True)
def test_every_iteration_is_in_one_part(extent: int, factor: int, more: int, split: bool) -> None:
    """Also if the parts are split again, or another loop is between both axes."""
    s, x, y = squares(extent)
    i, j = y.op.axis
    outer, inner = s[y].split(i, factor, first=factor + more)
    s[y].reorder(outer, j, inner)
    if split:
        s[y].split(j, 2)
    data = np.arange(extent * 3, dtype=np.int32).reshape(extent, 3)
    got = np.zeros_like(data)
    interpret(lower(s, [x, y]).nest, TINY, [data, got])
    np.testing.assert_array_equal(got, data * data)


def test_the_first_part_is_a_loop_nest_of_its_own() -> None:
    """12 = 5 + 2 + 2 + 2 + 1."""
    s, x, y = squares(12, 1)
    s[y].split(y.op.axis[0], 2, first=5)
    loops = [part.extent for part in walk(lower(s, [x, y]).nest.body) if isinstance(part, For)]
    assert loops == [5, 3, 2]


def test_a_first_part_as_large_as_the_others_changes_nothing() -> None:
    texts = []
    for first in (None, 4):
        s, x, y = squares(10)
        s[y].split(y.op.axis[0], 4, first=first)
        texts.append(str(lower(s, [x, y])))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("factor", "nparts", "first"), [(4, None, 3), (None, 4, 4)])
def test_the_first_part_is_at_least_the_factor(
    factor: int | None, nparts: int | None, first: int
) -> None:
    s, _, y = squares(10)
    with pytest.raises(ScheduleError, match=f"split of y.i: a first part of {first} is not as"):
        s[y].split(y.op.axis[0], factor, nparts, first)


def test_the_parts_stay_outside_of_their_iterations() -> None:
    s, x, y = squares(10)
    outer, inner = s[y].split(y.op.axis[0], 2, first=4)
    s[y].reorder(inner, outer)
    with pytest.raises(LoweringError, match="i_outer, whose first part is larger, must be outside"):
        lower(s, [x, y])


def test_fused_axes_have_equal_parts() -> None:
    s, x, y = squares(10)
    s[y].split(s[y].fuse(*y.op.axis), 3, first=6)
    with pytest.raises(LoweringError, match="cannot be split with a larger first part"):
        lower(s, [x, y])
