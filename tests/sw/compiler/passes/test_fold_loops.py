"""Loops around several micro-ops become loops of instructions where that preserves results."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.nest.interpret import interpret
from amaranth_vta.sw.compiler.nest.ir import Kernel, LoopNest, walk
from amaranth_vta.sw.compiler.nest.parse import parse
from amaranth_vta.sw.compiler.nest.printer import to_text
from amaranth_vta.sw.compiler.passes.fold_loops import fold_loops

TINY = PRESETS["tiny"]
EXTENDED = PRESETS["tiny-extended"]
ROWS = 24


def around(body: str, rolling: int = 0) -> LoopNest:
    """``body`` on a buffer of accumulators that is loaded before and stored after it. A ``rolling``
    buffer has two turns of 12 elements each.
    """
    shape = f"{2 if rolling else 1}, {ROWS // 2 if rolling else ROWS}"
    turns = ", rolling=1, copies=2" if rolling else ""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    return parse(
        f"""\
def function(x: int32[{ROWS}, 1, 4], y: int8[{ROWS}, 1, 4]):
    a = allocate(acc, int32, [{shape}, 1, 4]{turns})
    load_buffer_2d(x, 0, x_size={ROWS}, y_size=1, x_stride={ROWS}, sram_index=a, memory=ACC)
{lines}
    store_buffer_2d(a, y, 0, x_size={ROWS}, y_size=1, x_stride={ROWS})
"""
    )


def result(nest: LoopNest) -> list[int]:
    data = np.random.default_rng(1).integers(-9, 9, (ROWS, 1, 4)).astype(np.int32)
    got = np.zeros(data.shape, np.int8)
    interpret(nest, TINY, [data, got])
    flat: list[int] = got.reshape(-1).tolist()
    return flat


def instructions(nest: LoopNest) -> tuple[int, bool]:
    """The number of instructions, and whether a loop remains around them."""
    text = to_text(nest)
    return text.count("with push_alu"), "for " in text


@pytest.mark.parametrize(
    ("first", "second", "folds"),
    [
        # Iterations touch disjoint elements, in one case adjacent ones.
        ("dst=a + i, op=ADD, immediate=3", "dst=a + i, op=MUL, immediate=2", True),
        ("dst=a + 2*i, op=ADD, immediate=3", "dst=a + 2*i + 1, op=MUL, immediate=2", True),
        ("dst=a + 3*i, src=a + 3*i + 2, op=ADD", "dst=a + 3*i + 2, op=MUL, immediate=2", True),
        # Iterations share an element: the second micro-op writes the next iteration's first
        # element.
        ("dst=a + i, op=MUL, immediate=2", "dst=a + i + 1, op=ADD, immediate=3", False),
        ("dst=a + 2*i, op=MUL, immediate=2", "dst=a + 2*i + 2, op=ADD, immediate=3", False),
        ("dst=a + 2*i, src=a + 2*i + 2, op=ADD", "dst=a + 2*i, op=MUL, immediate=2", False),
        ("dst=a + 9, op=MUL, immediate=2", "dst=a + 9, op=ADD, immediate=3", False),
        # The micro-ops have different steps.
        ("dst=a + i, op=MUL, immediate=2", "dst=a + 2*i, op=ADD, immediate=3", False),
        ("dst=a + i, op=MUL, immediate=2", "dst=a + 3, op=ADD, immediate=3", False),
    ],
)
def test_a_loop_is_distributed_if_its_iterations_share_no_element(
    first: str, second: str, folds: bool
) -> None:
    nest = around(f"for i in range(6):\n    uop_push({first})\n    uop_push({second})")
    folded = fold_loops(nest, TINY)
    assert result(folded) == result(nest)
    assert instructions(folded) == (2, not folds)


@pytest.mark.parametrize(
    ("step", "folds"), [(1, True), (ROWS // 2 - 1, True), (ROWS // 2, False), (ROWS, False)]
)
def test_no_instruction_steps_through_the_turns_of_a_rolling_buffer(step: int, folds: bool) -> None:
    nest = around(f"for i in range(2):\n    uop_push(dst=a + {step}*i, op=ADD, immediate=3)", 1)
    assert instructions(fold_loops(nest, TINY)) == (1, not folds)


@pytest.mark.parametrize(
    ("loops", "uop", "alone"),
    [
        # Micro-ops with one factor are one instruction, whatever their addends.
        ("i6 j2", "dst=a + 2*i + j, src=a + 12 + i + j, wgt=a + 23", True),
        ("i6", "dst=a + i, src=a + 9, wgt=a + 23", True),
        # Each factor is a separate instruction, which contains the other loop.
        ("i3 j4", "dst=a + 4*i + j, src=a + 12 + j, wgt=a + 20 + i", False),
        ("i3 j4", "dst=a + i + 3*j, src=a + 12 + j, wgt=a + 18 + j", False),
        ("i3", "dst=a + 5, src=a + i, wgt=a + 18 + i", False),
        # Two loops over the factors remain two loops around the instruction, or become one.
        ("i2 j3 k2", "dst=a + 3*i + j + 6*k, src=a + 12, wgt=a + 18 + i + 2*j", False),
        ("i2 j3 k2", "dst=a + 3*i + j + 6*k, src=a + 12, wgt=a + 16 + 3*i + j", False),
    ],
)
def test_a_loop_over_factors_repeats_the_instruction(loops: str, uop: str, alone: bool) -> None:
    lines = [f"for {loop[0]} in range({loop[1:]}):" for loop in loops.split()]
    lines.append(f"uop_push({uop}, op=MULTIPLY_ADD)")
    nest = around("\n".join(" " * 4 * depth + line for depth, line in enumerate(lines)))
    folded = fold_loops(nest, EXTENDED)
    assert result(folded) == result(nest)
    assert instructions(folded) == (1, not alone)
    (kernel,) = (part for part in walk(folded.body) if isinstance(part, Kernel))
    assert not any(loop.wgt for loop in kernel.loops)
    within = {loop.var for loop in kernel.unrolled}
    assert kernel.uop.wgt is not None
    assert not within & kernel.uop.wgt.index.terms.keys()
