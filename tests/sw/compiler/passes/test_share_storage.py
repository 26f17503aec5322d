"""A result is stored in place of its operand only if nothing reads that later, on loop nests as
text.
"""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.nest.interpret import interpret
from amaranth_vta.sw.compiler.nest.ir import Allocate, LoopNest, walk
from amaranth_vta.sw.compiler.nest.parse import parse
from amaranth_vta.sw.compiler.passes.share_storage import share_storage

TINY = PRESETS["tiny"]
NEST = """\
def function(x: int32[8, 4], y: int8[8, 4]):
    a = allocate(acc, int32, [8, 4])
    with dma_copy():
        for i in range(8):
            for c in range(4):
                a[i, c] = x[i, c]
    b = allocate(acc, int32, [8, 4])
    with alu():
        for i in range({rows}):
            for c in range(4):
                b[{index}, c] = {value}
{more}    with dma_copy():
        for i in range({rows}):
            for c in range(4):
                y[i, c] = int8(b[{index}, c])
"""
AGAIN = """\
    with alu():
        for i in range(8):
            for c in range(4):
                b[i, c] = b[i, c] + a[i, c]
"""
ROLLING = """\
def function(x: int32[8, 4], y: int8[8, 4]):
    a = allocate(acc, int32, [4, 2, 4], rolling=1, copies=2)
    b = allocate(acc, int32, [4, 2, 4], rolling=1, copies=2)
    for t in range(4):
        with dma_copy():
            for i in range(2):
                for c in range(4):
                    a[t, i, c] = x[2*t + i, c]
        with alu():
            for i in range(2):
                for c in range(4):
                    b[t, i, c] = a[t, i, c] * 3
        with dma_copy():
            for i in range(2):
                for c in range(4):
                    y[2*t + i, c] = int8(b[t, i, c])
"""


# Rows are stored in another order than the turns of the buffer.
TURNED = """\
def function(x: int32[8, 4], y: int8[8, 4]):
    a = allocate(acc, int32, [2, 4], rolling=1, copies=2)
    b = allocate(acc, int32, [2, 4], rolling=1, copies=2)
""" + "".join(
    f"""\
    with dma_copy():
        for c in range(4):
            a[{turn}, c] = x[{turn}, c]
    with alu():
        for c in range(4):
            b[{turn}, c] = a[{turn}, c] * 3
    with dma_copy():
        for c in range(4):
            y[{1 - turn}, c] = int8(b[{turn}, c])
"""
    for turn in (0, 1)
)


# Another operation reads each turn of the operand.
READ_TWICE = """\
def function(x: int32[8, 4], y: int8[8, 4]):
    a = allocate(acc, int32, [4, 2, 4], rolling=1, copies=3)
    b = allocate(acc, int32, [4, 2, 4], rolling=1, copies=3)
    d = allocate(acc, int32, [4, 2, 4], rolling=1, copies=3)
    with dma_copy():
        for i in range(2):
            for c in range(4):
                a[0, i, c] = x[i, c]
    for t in range(3):
        with dma_copy():
            for i in range(2):
                for c in range(4):
                    a[t + 1, i, c] = x[2*t + i + 2, c]
{first}{second}        with dma_copy():
            for i in range(2):
                for c in range(4):
                    y[2*t + i, c] = int8(b[t + 1, i, c] + d[t + 1, i, c])
"""
_OPERATION = """\
        with alu():
            for i in range(2):
                for c in range(4):
                    {result}[t + 1, i, c] = a[{turn}, i, c] * 3
"""


def buffers(nest: LoopNest) -> int:
    return sum(isinstance(part, Allocate) for part in walk(nest.body))


def result(nest: LoopNest) -> list[int]:
    data = np.random.default_rng(1).integers(-9, 9, (8, 4)).astype(np.int32)
    got = np.zeros(data.shape, np.int8)
    interpret(nest, TINY, [data, got])
    flat: list[int] = got.reshape(-1).tolist()
    return flat


@pytest.mark.parametrize(
    ("value", "rows", "index", "more", "shares"),
    [
        ("a[i, c] * 3", 8, "i", "", True),
        ("max(a[i, c], 3) + 1", 8, "i", "", True),
        # At a different index, the operand's element is still to be read, or already overwritten.
        ("a[-i + 7, c] * 3", 8, "i", "", False),
        ("a[i + 1, c] * 3", 7, "i", "", False),
        ("a[i, c] * 3", 7, "i + 1", "", False),
        # It is read twice, or again later.
        ("a[i, c] + a[-i + 7, c]", 8, "i", "", False),
        ("a[i, c] * 3", 8, "i", AGAIN, False),
    ],
)
def test_a_result_replaces_an_operand_at_its_own_place(
    value: str, rows: int, index: str, more: str, shares: bool
) -> None:
    nest = parse(NEST.format(value=value, rows=rows, index=index, more=more))
    shared = share_storage(nest, TINY)
    assert result(shared) == result(nest)
    assert buffers(shared) == (1 if shares else 2)


@pytest.mark.parametrize("text", [ROLLING, TURNED])
def test_a_rolling_buffer_replaces_one_that_is_filled_before_it_in_each_turn(text: str) -> None:
    nest = parse(text)
    shared = share_storage(nest, TINY)
    assert result(shared) == result(nest)
    assert buffers(shared) == 1


@pytest.mark.parametrize(
    ("results", "turn", "left"),
    [("db", "t + 1", 2), ("bd", "t + 1", 2), ("bd", "t", 3), ("db", "t", 3)],
)
def test_a_turn_may_be_read_before_it_is_taken_over(results: str, turn: str, left: int) -> None:
    """By the last operation that reads it, unless it is read in the next iteration."""
    first, second = (
        _OPERATION.format(result=name, turn=turn if name == "d" else "t + 1") for name in results
    )
    nest = parse(READ_TWICE.format(first=first, second=second))
    shared = share_storage(nest, TINY)
    assert result(shared) == result(nest)
    assert buffers(shared) == left


def test_buffers_of_different_banks_stay_apart() -> None:
    text = ROLLING.replace("copies=2)", "copies=2, bank=0)", 1)
    assert buffers(share_storage(parse(text), TINY)) == 2
