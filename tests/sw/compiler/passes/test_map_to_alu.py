"""A product by an accumulator and a following sum become one micro-op if the machine supports
it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.lower import lower_further
from amaranth_vta.sw.compiler.nest.interpret import interpret
from amaranth_vta.sw.compiler.nest.ir import LoopNest, LoweringError
from amaranth_vta.sw.compiler.nest.parse import parse
from amaranth_vta.sw.compiler.nest.printer import to_text
from amaranth_vta.sw.compiler.passes.map_to_alu import map_to_alu

EXTENDED = PRESETS["tiny-extended"]
PLAIN = replace(EXTENDED, multiply_add=0)
# Loads of four vectors each of the first operand, the second operand, and parameters.
LOAD = "load_buffer_2d(x, {0}, x_size=4, y_size=1, x_stride=4, sram_index={1}, memory=ACC)"
NEST = f"""\
def function(x: int32[12, 4], y: int8[4, 4]):
    a = allocate(acc, int32, [4, 4])
    {LOAD.format(0, "a")}
    o = allocate(acc, int32, [4, 4])
    {LOAD.format(4, "o")}
    p = allocate(acc, int32, [4, 4])
    {LOAD.format(8, "p")}
    b = allocate(acc, int32, [4, 4])
    with alu():
        for i in range(4):
            for c in range(4):
                {{target}}[i, c] = {{value}}
    store_buffer_2d({{target}}, y, 0, x_size=4, y_size=1, x_stride=4)
"""


def nest_of(target: str, value: str) -> LoopNest:
    return parse(NEST.format(target=target, value=value))


def operations(nest: LoopNest) -> list[str]:
    return re.findall(r"op=(\w+)", to_text(nest))


def result(nest: LoopNest) -> list[int]:
    data = np.random.default_rng(1).integers(-(1 << 31), 1 << 31, (12, 4)).astype(np.int32)
    got = np.zeros((4, 4), np.int8)
    interpret(nest, EXTENDED, [data, got])
    flat: list[int] = got.reshape(-1).tolist()
    return flat


@pytest.mark.parametrize(
    ("target", "value", "joined", "apart"),
    [
        ("a", "a[i, c] * p[0, c] + o[i, c]", "MULTIPLY_ADD", "MUL ADD"),
        ("a", "o[i, c] + p[0, c] * a[i, c]", "MULTIPLY_ADD", "MUL ADD"),
        ("a", "o[i, c] + a[i, c] * p[i, c]", "MULTIPLY_ADD", "MUL ADD"),
        # With another destination, which is cleared first.
        ("b", "a[i, c] * p[0, c] + o[i, c]", "MUL ADD MULTIPLY_ADD", "MUL ADD MUL ADD"),
        # Among other operations, and twice.
        ("a", "max(a[i, c], 3) * p[0, c] + o[i, c] + 7", "MAX MULTIPLY_ADD ADD", "MAX MUL ADD ADD"),
        (
            "a",
            "(a[i, c] * p[0, c] + o[i, c]) * p[1, c] + p[0, c]",
            "MULTIPLY_ADD MULTIPLY_ADD",
            "MUL ADD MUL ADD",
        ),
        # With a constant factor, a constant addend, or another order.
        ("a", "a[i, c] * 3 + o[i, c]", "MUL ADD", "MUL ADD"),
        ("a", "a[i, c] * p[0, c] + 3", "MUL ADD", "MUL ADD"),
        ("a", "(a[i, c] + o[i, c]) * p[0, c]", "ADD MUL", "ADD MUL"),
        ("a", "max(a[i, c] * p[0, c], o[i, c])", "MUL MAX", "MUL MAX"),
        ("a", "a[i, c] * p[0, c] * p[1, c]", "MUL MUL", "MUL MUL"),
        # A difference needs a negation in between.
        ("a", "a[i, c] * p[0, c] - o[i, c]", "MUL MUL ADD MUL", "MUL MUL ADD MUL"),
        ("a", "o[i, c] - a[i, c] * p[0, c]", "MUL MUL ADD", "MUL MUL ADD"),
    ],
)
def test_a_product_and_the_sum_after_it_are_one_operation(
    target: str, value: str, joined: str, apart: str
) -> None:
    nest = nest_of(target, value)
    for config, expected in ((EXTENDED, joined), (PLAIN, apart)):
        mapped = map_to_alu(nest, config)
        assert operations(mapped) == expected.split()
        assert result(mapped) == result(nest)
        lowered = lower_further(parse(to_text(mapped)), "map_to_alu", config)
        assert lowered.problem is None
        assert result(lowered.nest) == result(nest)


def test_the_factor_is_the_third_operand() -> None:
    """It is addressed within the micro-op's loops, and may depend on their variables."""
    text = to_text(map_to_alu(nest_of("a", "a[i, c] * p[i, c] + o[i, c]"), EXTENDED))
    assert "uop_push(dst=a + i, src=o + i, wgt=p + i, op=MULTIPLY_ADD)" in text
    assert to_text(parse(text)) == text


@pytest.mark.parametrize("immediate", [-32768, 32767])
def test_an_immediate_has_sixteen_bits(immediate: int) -> None:
    mapped = map_to_alu(nest_of("a", f"a[i, c] + {immediate}"), EXTENDED)
    assert f"immediate={immediate}" in to_text(mapped)
    beyond = immediate + (1 if immediate > 0 else -1)
    with pytest.raises(LoweringError, match=f"ADD by {beyond}: an immediate is within"):
        map_to_alu(nest_of("a", f"a[i, c] + {beyond}"), EXTENDED)
