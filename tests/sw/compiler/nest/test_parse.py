from __future__ import annotations

import re

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.forms import check_form
from amaranth_vta.sw.compiler.lower import lower_further
from amaranth_vta.sw.compiler.nest.ir import For, LoopNest, LoweringError, walk
from amaranth_vta.sw.compiler.nest.parse import ParseError, parse
from amaranth_vta.sw.compiler.nest.printer import to_text
from amaranth_vta.sw.compiler.passes.pipeline import PASS_NAMES
from amaranth_vta.sw.compiler.passes.require_instructions import require_instructions

ARGUMENTS = "def f(a: int8[4, 2], b: int32[8]):\n"


def body(*lines: str) -> LoopNest:
    return parse(ARGUMENTS + "".join(f"    {line}\n" for line in lines))


def test_every_statement_of_the_form_reads_back() -> None:
    text = """\
def f(a: int8[4, 2], b: int32[8]):
    for i in cthread(2):
        with lifetime():
            x = allocate(acc, int32, [2, 4], copies=4, base=0, pitch=3, pair=1)
            for j in unroll(3):
                with dma_copy():
                    b[j] = if_then_else(all(j >= 1, i < 1), max(b[j + 1], -5), 7) - int32(a[0, i])
        b[0] = 3
    y = allocate(acc, int32, [2, 4])
    z = allocate(inp, int8, [4])
    w = allocate(wgt, int8, [4, 4])
    load_buffer_2d(b, 2, x_size=1, y_size=2, x_stride=1, pad_value=-1, sram_index=y + 1, memory=ACC)
    store_buffer_2d(y, b, 0, x_size=1, y_size=2, x_stride=1)
    with push_gemm(independent=1):
        with uop_loop(4, dst=1, src=0, wgt=2):
            for k in range(2):
                uop_push(dst=y + 2*k, src=z, wgt=w, overwrite=1, depthwise=1)
    wait_for_alu()
    with push_alu():
        uop_push(dst=y, op=ADD, immediate=-3)
    with push_alu(independent=1):
        with uop_loop(2, dst=1, src=1, wgt=0):
            uop_push(dst=y, src=y + 4, wgt=y + 7, op=MULTIPLY_ADD)
    for m in range(2):
        if any(m < 1, m == 1):
            dep_push(COMPUTE, STORE)"""
    assert to_text(parse(text)) == text


def test_printing_numbers_equal_names_again_as_they_were() -> None:
    text = "def f(a: int32[4], x_1: int32[4]):\n" + "".join(
        f"    for {name} in range({extent}):\n        a[{name}] = x_1[{name}]\n"
        for name, extent in (("i", 2), ("i_1", 3), ("j_1", 2), ("i_2", 4), ("i_4", 4))
    )
    nest = parse(text)
    loops = [part.var.name for part in walk(nest.body) if isinstance(part, For)]
    # A suffix is dropped only if it numbers a repeated name: there is no `j`, and no `i_3`.
    assert loops == ["i", "i", "j_1", "i", "i_4"]
    assert to_text(nest) == text.rstrip("\n")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("while True: pass", "while True: is not a statement"),
        ("launch(a)", "launch(a) is not a call of the runtime"),
        ("dep_push(LOAD)", "dep_push(LOAD) is not a call of the runtime"),
        ("dep_push(LOAD, ALU)", "ALU is not one of"),
        ("b[0] = c[0]", "c is not a buffer"),
        ("b[0] = a[0]", "a[0]: 1 indices for [4, 2]"),
        ("b[0] = a[0, 0]", "b[0] is int32, its value int8"),
        ("b[0] = int7(1)", "'int7' is not a dtype"),
        ("b[0] = b[0] + int8(b[1])", "b[0] is int32 and int8(b[1]) int8"),
        ("b[0] = b[0] // b[1]", "the divisor is not a positive constant"),
        ("b[0] = if_then_else(b[0], 1, 2)", "b[0] is int32, not bool"),
        ("b[0] = 'a'", "'a' is not a whole number"),
        ("a[0, 0] = 200", "200 is not within int8"),
        ("b = 1", "b is not a loop"),
        ("for i in range(0): b[i] = 0", "0 is not positive"),
        ("for i in range(1, 2): b[i] = 0", "a loop begins at 0"),
        ("for i in count(2): b[i] = 0", "a loop is over one of range, unroll, cthread"),
        ("for b in range(2): pass", "b is defined twice"),
        ("with tensorize(): pass", "with tensorize(): is not a statement"),
        ("c = allocate(l2, int8, [4])", "l2 is not one of the scopes"),
        ("c = allocate(inp, int8, [4], size=4)", "allocate does not take size"),
        ("if b[0] > 1: b[0] = 1", "only tokens are conditional"),
        ("load_buffer_2d(b, 0, x_size=1)", "load_buffer_2d has no y_size"),
        (
            "store_buffer_2d(a, b, 0, x_size=1, y_size=1, x_stride=1)",
            "OUT is not a transfer between b in dram and a in dram",
        ),
        ("uop_push(dst=b, reset=1)", "dst is in acc, not in dram"),
        ("uop_push(dst=b, reset=1, op=ADD)", "is not a micro-op of the machine"),
        ("uop_push(dst=b, src=b, wgt=b, op=ADD)", "is not a micro-op of the machine"),
        ("uop_push(dst=b, src=b, op=MULTIPLY_ADD)", "is not a micro-op of the machine"),
        ("uop_push(dst=b, immediate=2, op=MULTIPLY_ADD)", "is not a micro-op of the machine"),
        ("with push_gemm(): b[0] = 1", "push_gemm has no such micro-op"),
    ],
)
def test_what_is_not_of_the_form_is_refused_with_its_line(line: str, problem: str) -> None:
    with pytest.raises(ParseError, match=f"line 2: .*{re.escape(problem)}"):
        body(line)


def test_what_is_defined_in_a_block_is_known_in_it_alone() -> None:
    with pytest.raises(ParseError, match="line 4: i is not a loop"):
        body("for i in range(2):", "    b[i] = 0", "b[i] = 0")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: a loop nest begins with"),
        ("x = 1", "line 1: a loop nest begins with"),
        ("def f(:", "line 1: invalid syntax"),
        ("def f(a): pass", "line 1: the argument a has no dtype and shape"),
        ("def f(a: int8[0]): pass", "line 1: 0 is not positive"),
        ("def f(a: int8[1]): pass\n\nf(1)", "line 3: text after the end of the loop nest"),
        ("def f(a: int32[1]):\n    a[0] = " + "-" * 9000 + "a[0]", "nested too deeply"),
        ("def f(a: int8[1]):\n    pass\0", "line 2: a character is 0"),
    ],
)
def test_text_without_one_loop_nest_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ParseError, match=re.escape(problem)):
        parse(text)


FORMS = {
    "b[0] = 1": ("infer_bounds", "map_to_alu"),
    "with gemm(): b[0] = 1": ("infer_bounds", "copy_by_dma"),
    "for i in cthread(2): pass": ("infer_bounds", "overwrite_first"),
    "c = allocate(acc, int32, [4])": ("infer_bounds", "fold_loops"),
    "c = allocate(acc, int32, [4], base=0)": ("allocate_scratchpads", "insert_tokens"),
    "wait_for_alu()": ("mark_independent", "insert_tokens"),
    "dep_pop(LOAD, COMPUTE)": ("insert_tokens", "insert_tokens"),
}


@pytest.mark.parametrize("line", FORMS)
def test_a_loop_nest_is_lowered_only_from_where_it_stands(line: str) -> None:
    first, last = (PASS_NAMES.index(name) for name in FORMS[line])
    for position, after in enumerate(PASS_NAMES):
        if first <= position <= last:
            check_form(body(line), after)
        else:
            with pytest.raises(LoweringError, match=f"f is not a loop nest after {after}: "):
                lower_further(body(line), after, PRESETS["tiny"])


def test_instructions_alone_pass_where_all_else_is_refused() -> None:
    nest = body(
        "c = allocate(acc, int32, [4])", "for i in range(2):", "    uop_push(dst=c + i, reset=1)"
    )
    assert require_instructions(nest, PRESETS["tiny"]) is nest
    with pytest.raises(LoweringError, match="no instruction computes b"):
        require_instructions(body("b[0] = 1"), PRESETS["tiny"])
