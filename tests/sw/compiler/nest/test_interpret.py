"""Accesses that the interpreter of loop nests performs and refuses."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.nest.interpret import InterpretError, interpret
from amaranth_vta.sw.compiler.nest.ir import Assign, For, Label, LoopNest, NestBuffer, Seq
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Const, Var

LABEL = Label("stage")


def numbered(rows: int, columns: int, last: int = 3) -> np.ndarray:
    """Array (3, 4) after loops over ``rows`` and ``columns`` that write 4 * row + column + 1, then
    add column 3 - ``last`` to column ``last`` of each row.
    """
    buffer = NestBuffer("a", (3, 4), "int32", "dram")
    row, column, again = Var("row"), Var("column"), Var("again")
    place = Affine({row: 1}), Affine({column: 1})
    value = Affine({row: 4, column: 1}, 1).astype("int32")
    write = Assign(buffer, place, value, LABEL)
    sums = (Affine({again: 1}), Affine({}, last))
    parts = (Access(buffer, sums), Access(buffer, (Affine({again: 1}), Affine({}, 3 - last))))
    add = Assign(buffer, sums, parts[0] + parts[1], LABEL)
    loops = For(row, rows, For(column, columns, write, LABEL), LABEL)
    array = np.zeros((3, 4), np.int32)
    nest = LoopNest("f", [buffer], Seq([loops, For(again, 3, add, LABEL)]))
    interpret(nest, PRESETS["tiny"], [array])
    return array


def test_elements_are_at_their_row_major_positions() -> None:
    want = np.arange(1, 13).reshape(3, 4)
    want[:, 3] += want[:, 0]
    np.testing.assert_array_equal(numbered(3, 4), want)


@pytest.mark.parametrize(
    ("rows", "columns", "last", "index"),
    [(3, 5, 3, 4), (4, 4, 3, 3), (3, 4, 4, 4), (3, 4, -1, -1)],
)
def test_an_index_out_of_bounds_is_refused(rows: int, columns: int, last: int, index: int) -> None:
    """Although most such elements lie within the buffer, in another row."""
    with pytest.raises(InterpretError, match=rf"^index {index} of a\[3, 4\]$"):
        numbered(rows, columns, last)


def test_a_loop_that_is_longer_elsewhere_is_checked_there() -> None:
    buffer, var = NestBuffer("a", (4,), "int32", "dram"), Var("i")
    write = Assign(buffer, (Affine({var: 1}),), Const(7, "int32"), LABEL)
    nest = LoopNest("f", [buffer], Seq([For(var, 4, write, LABEL), For(var, 5, write, LABEL)]))
    with pytest.raises(InterpretError, match="^index 4 of a"):
        interpret(nest, PRESETS["tiny"], [np.zeros(4, np.int32)])
