"""Kernels that may be marked independent, on loop nests as text."""

from __future__ import annotations

from textwrap import indent

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import AluOp
from amaranth_vta.sw.compiler.nest.ir import For, Kernel, WaitForAlu, walk
from amaranth_vta.sw.compiler.nest.parse import parse
from amaranth_vta.sw.compiler.passes.mark_independent import mark_independent

EXTENDED = PRESETS["tiny-extended"]
# A load of accumulators waits for everything before it, so later instructions may be independent.
HEAD = """\
def function(x: int8[8, 1, 4], w: int8[4, 4], p: int32[8, 1, 4]):
    x_buf = allocate(inp, int8, [8, 1, 4], base=0)
    w_buf = allocate(wgt, int8, [4, 4], base=0)
    low = allocate(acc, int32, [32, 1, 4], base=0)
    high = allocate(acc, int32, [8, 1, 4], base=64)
    load_buffer_2d(p, 0, x_size=8, y_size=1, x_stride=8, sram_index=high, memory=ACC)
"""
LOAD = (
    "load_buffer_2d(x, 0, x_size=2, y_size=1, x_stride=2, x_pad_before=1{value}, "
    "sram_index=x_buf, memory=INP)"
)


def gemm(target: str) -> str:
    return f"with push_gemm():\n    uop_push(dst={target}, src=x_buf, wgt=w_buf)"


def alu(target: str, operand: str) -> str:
    return f"with push_alu():\n    uop_push(dst={target}, {operand})"


def claims(*statements: str, head: str = HEAD) -> list[bool]:
    """The claims of the kernels in ``statements``, in their order."""
    function = parse(head + indent("\n".join(statements), "    "))
    marked = mark_independent(function, EXTENDED)
    return [part.independent for part in walk(marked.body) if isinstance(part, Kernel)]


def test_kernels_that_touch_different_accumulators_are_independent() -> None:
    assert claims(gemm("low"), alu("high", "immediate=1, op=ADD")) == [True, True]
    assert claims(gemm("low"), alu("high", "src=high + 1, op=ADD")) == [True, True]


def test_what_is_not_independent_waits_for_nothing_more() -> None:
    """GEMM waits for the ALU in each iteration, so no wait is needed before the loop."""
    without_load = "".join(HEAD.splitlines(keepends=True)[:-1])
    kernels = "\n".join((gemm("low"), alu("low", "immediate=1, op=ADD"), gemm("low + 5")))
    body = "for i in range(2):\n" + indent(kernels, "    ")
    assert claims(body, head=without_load) == [False, False, True]
    marked = mark_independent(parse(without_load + indent(body, "    ")), EXTENDED)
    first = next(part for part in walk(marked.body) if isinstance(part, WaitForAlu | For))
    assert isinstance(first, For)


def test_gemm_waits_first_for_the_alu_where_nothing_else_does() -> None:
    """Earlier instructions are unknown, so GEMM waits once before the loop; its iterations may
    overlap.
    """
    without_load = "".join(HEAD.splitlines(keepends=True)[:-1])
    body = ["for i in range(2):", *(f"    {line}" for line in gemm("low + i").splitlines())]
    assert claims(*body, head=without_load) == [True]
    marked = mark_independent(parse(without_load + indent("\n".join(body), "    ")), EXTENDED)
    waits, loop = (part for part in walk(marked.body) if isinstance(part, WaitForAlu | For))
    assert isinstance(waits, WaitForAlu)
    assert isinstance(loop, For)
    # The first ALU kernel cannot know which elements GEMM still writes.
    assert claims(alu("low", "immediate=1, op=ADD"), head=without_load) == [False]


def test_the_alu_waits_for_what_gemm_writes() -> None:
    assert claims(gemm("low + 3"), alu("low + 3", "immediate=1, op=ADD")) == [True, False]
    assert claims(gemm("low + 3"), alu("high", "src=low + 3, op=ADD")) == [True, False]
    assert claims(gemm("low + 3"), alu("high", "src=low + 2, op=ADD")) == [True, True]


@pytest.mark.parametrize("operation", [AluOp.REQUANTIZE, AluOp.LOOKUP, AluOp.ADD])
@pytest.mark.parametrize("gemm_first", [True, False])
def test_all_elements_of_a_source_are_claimed(operation: AluOp, gemm_first: bool) -> None:
    """All parameters of a REQUANTIZE and the whole table of a LOOKUP are read, and no adjacent
    element.
    """
    count = EXTENDED.alu_sources(operation)
    reads = alu("high", f"src=low + 1, op={operation.name}")
    for element in range(count + 2):
        kernels = [gemm(f"low + {element}"), reads]
        independent = not 1 <= element <= count
        assert claims(*(kernels if gemm_first else kernels[::-1])) == [True, independent], element


def test_a_factor_is_read_as_a_source_is() -> None:
    def multiplied(src: str, factor: str) -> str:
        return alu("high", f"src={src}, wgt={factor}, op=MULTIPLY_ADD")

    assert claims(gemm("low + 3"), multiplied("high + 1", "low + 3")) == [True, False]
    assert claims(gemm("low + 3"), multiplied("low + 3", "high + 1")) == [True, False]
    assert claims(multiplied("high + 1", "low + 3"), gemm("low + 3")) == [True, False]
    # It is one element, and so is the source.
    for other in ("low + 2", "low + 4"):
        for src, factor in (("high + 1", "low + 3"), ("low + 3", "high + 1")):
            assert claims(gemm(other), multiplied(src, factor)) == [True, True]
            assert claims(multiplied(src, factor), gemm(other)) == [True, True]


def test_a_factor_is_followed_through_loops() -> None:
    factor = alu("high", "src=high + 1, wgt=low + o, op=MULTIPLY_ADD")
    kernels = "\n".join((factor, gemm("low + 5")))
    assert claims("for o in range(5):\n" + indent(kernels, "    ")) == [True, True]
    assert claims("for o in range(6):\n" + indent(kernels, "    ")) == [False, False]


def test_gemm_waits_for_what_the_alu_reads_and_writes() -> None:
    assert claims(alu("high", "src=low + 3, op=ADD"), gemm("low + 3")) == [True, False]
    assert claims(alu("high", "src=low + 3, op=ADD"), gemm("high")) == [True, False]
    assert claims(alu("high", "src=low + 3, op=ADD"), gemm("low + 2")) == [True, True]


@pytest.mark.parametrize("value", ["", ", pad_value=-3"])
def test_a_load_of_inputs_stalls_neither_unit(value: str) -> None:
    between = LOAD.format(value=value)
    assert claims(gemm("low"), between, alu("high", "src=low, op=ADD")) == [True, False]


def test_a_claim_holds_in_every_iteration() -> None:
    kernels = "\n".join((alu("high", "src=low + o, op=ADD"), gemm("low + 5")))
    assert claims("for o in range(5):\n" + indent(kernels, "    ")) == [True, True]
    # In the last iteration, the ALU reads what GEMM wrote in the iteration before.
    assert claims("for o in range(6):\n" + indent(kernels, "    ")) == [False, False]
