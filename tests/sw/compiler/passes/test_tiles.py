"""Results of GEMM and of the ALU lie in whole tiles, or are refused, on loop nests as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sw.compiler.nest.ir import LoopNest, LoweringError
from amaranth_vta.sw.compiler.nest.parse import parse
from amaranth_vta.sw.compiler.nest.printer import to_text
from amaranth_vta.sw.compiler.passes.map_to_alu import map_to_alu
from amaranth_vta.sw.compiler.passes.tensorize_gemm import tensorize_gemm

TINY = PRESETS["tiny"]
ALU = """\
def function(x: int32[8, 4]):
    a = allocate(acc, int32, [8, {row}])
    with alu():
        for i in range(8):
            for c in range(4):
                a[i, c{offset}] = a[i, c{offset}] + 1
"""
# The operand lies in whole tiles, wherever the result is.
ALU_FROM_TILES = """\
def function(x: int32[8, 4]):
    b = allocate(acc, int32, [8, 4])
    a = allocate(acc, int32, [8, {row}])
    with alu():
        for i in range(8):
            for c in range(4):
                a[i, c{offset}] = b[i, c] + 1
"""
GEMM = """\
def function(x: int8[8, 4]):
    x_buf = allocate(inp, int8, [8, 4])
    w_buf = allocate(wgt, int8, [4, 4])
    a = allocate(acc, int32, [8, {row}])
    for i in range(8):
        with gemm():
            for c in range(4):
                for k in range(4):
                    a[i, c{offset}] = a[i, c{offset}] + (int32(x_buf[i, k]) * int32(w_buf[c, k]))
"""


@pytest.mark.parametrize(
    ("text", "lowered"),
    [(ALU, map_to_alu), (ALU_FROM_TILES, map_to_alu), (GEMM, tensorize_gemm)],
    ids=["alu", "alu_from_tiles", "gemm"],
)
@pytest.mark.parametrize(("row", "offset"), [(4, 0), (8, 4), (8, 0), (7, 0), (8, 2), (7, 3)])
def test_results_lie_in_whole_tiles(
    text: str, lowered: Callable[[LoopNest, Config], LoopNest], row: int, offset: int
) -> None:
    """Four results fill a tile, but only if they start at a tile boundary."""
    nest = parse(text.format(row=row, offset=f" + {offset}" if offset else ""))
    if row % 4 or offset % 4:
        with pytest.raises(LoweringError, match="walk through (a tile|tiles) of"):
            lowered(nest, TINY)
    else:
        assert "uop_push" in to_text(lowered(nest, TINY))


ROWS = """\
def function(x: int8[8, 4]):
    x_buf = allocate(inp, int8, [4, 4])
    w_buf = allocate(wgt, int8, [4, 4])
    a = allocate(acc, int32, [4, 4])
    with gemm():
{loops}
"""
PRODUCT = "a[{row}, c] = a[{row}, c] + (int32(x_buf[{row}, k]) * int32(w_buf[c, k]))"
IN_ONE_LOOP = f"""\
        for b in range(4):
            for c in range(4):
                for k in range(4):
                    {PRODUCT.format(row="b")}"""
IN_TWO_LOOPS = f"""\
        for o in range(2):
            for b in range(2):
                for c in range(4):
                    for k in range(4):
                        {PRODUCT.format(row="2*o + b")}"""


def test_the_rows_of_a_tile_are_one_loop() -> None:
    config = replace(TINY, log_batch=2)
    assert "uop_push" in to_text(tensorize_gemm(parse(ROWS.format(loops=IN_ONE_LOOP)), config))
    with pytest.raises(LoweringError, match="they have to be 4 rows, 4 outputs and 4 inputs"):
        tensorize_gemm(parse(ROWS.format(loops=IN_TWO_LOOPS)), config)
