"""ALU operations that read the previous iteration move to the front, unless dependences prevent it;
tested on loop nests as text.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.lower import lower
from amaranth_vta.sw.compiler.nest.interpret import interpret
from amaranth_vta.sw.compiler.nest.ir import Assign, For, LoopNest, Region, Stmt, children, walk
from amaranth_vta.sw.compiler.nest.parse import parse
from amaranth_vta.sw.compiler.nest.printer import to_text
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import RoundingShift
from amaranth_vta.sw.compiler.operators.building_blocks.pooling import Pooling
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.passes.read_carried_first import read_carried_first
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling

EXTENDED = PRESETS["tiny-extended"]
# Iteration t computes turn t + 2. All buffers except `s` are rolling, and all are stored.
BUFFERS = "abdls"
HEAD = "def function(x: int32[9, 4], y: int8[4, 5, 4]):\n" + "".join(
    f"""\
    {name} = allocate(acc, int32, [9, 4]{"" if name == "s" else ", rolling=1, copies=4"})
    with dma_copy():
        for n in range(9):
            for c in range(4):
                {name}[n, c] = x[n, c]
"""
    for name in BUFFERS
)
TRIPLED = "alu: a[t + 2, c] = l[t + 2, c] * 3"
CARRIED = "alu: b[t + 2, c] = a[t + 1, c]"
GREATEST = "alu: b[t + 2, c] = max(b[t + 2, c], a[t + 2, c])"


def region(statement: str, indent: str) -> str:
    kind, assignments = statement.split(": ", 1)
    return (
        f"{indent}with {kind}():\n{indent}    for c in range(4):\n{indent}        {assignments}\n"
    )


def iterations(*statements: str) -> LoopNest:
    """Four iterations of ``statements``, each with the kind of its region, followed by the
    stores."""
    stores = [
        f"dma_copy: y[t, {place}, c] = int8({name}[t + 2, c])" for place, name in enumerate(BUFFERS)
    ]
    body = "".join(region(statement, " " * 8) for statement in (*statements, *stores))
    return parse(f"{HEAD}    for t in range(4):\n{body}")


def result(nest: LoopNest) -> list[int]:
    data = np.random.default_rng(1).integers(-9, 9, (9, 4)).astype(np.int32)
    got = np.zeros((4, 5, 4), np.int8)
    interpret(nest, EXTENDED, [data, got])
    flat: list[int] = got.reshape(-1).tolist()
    return flat


def is_loop(stmt: Stmt, name: str) -> bool:
    return isinstance(stmt, For) and stmt.var.name == name


def steps(nest: LoopNest) -> list[Stmt]:
    """The statements of an iteration."""
    (loop,) = (part for part in walk(nest.body) if is_loop(part, "t"))
    return children(*children(loop))


def order(*statements: str) -> list[int]:
    """The new order of the ``statements`` of an iteration, after checking that results are
    unchanged.
    """
    nest = iterations(*statements)
    after = read_carried_first(nest, EXTENDED)
    assert result(after) == result(nest)
    before = steps(nest)
    places = [before.index(step) for step in steps(after)]
    assert places[len(statements) :] == list(range(len(statements), len(before)))
    return places[: len(statements)]


def test_what_reads_the_iteration_before_comes_first() -> None:
    bounded = "alu: a[t + 2, c] = max(a[t + 2, c], 0)"
    assert order(TRIPLED, bounded, CARRIED, GREATEST) == [2, 0, 1, 3]


@pytest.mark.parametrize(
    ("statements", "places"),
    [
        # A carried read may also read its own destination, and buffers that are not rolling.
        (("alu: b[t + 2, c] = 3", TRIPLED, CARRIED.replace("= ", "= b[t + 2, c] + ")), [0, 2, 1]),
        ((TRIPLED, CARRIED + " + s[c, t]"), [1, 0]),
        # Two carried reads stay in order.
        ((TRIPLED, CARRIED, "alu: b[t + 2, c] = max(b[t + 2, c], d[t + 1, c])"), [1, 2, 0]),
        # A carried read stays after statements that are not ALU operations.
        (("dma_copy: l[t + 2, c] = x[t, c]", TRIPLED, CARRIED), [0, 2, 1]),
        (("gemm: l[t + 2, c] = 0", TRIPLED, CARRIED), [0, 2, 1]),
    ],
)
def test_it_moves_as_far_as_it_can(statements: tuple[str, ...], places: list[int]) -> None:
    assert order(*statements) == places


@pytest.mark.parametrize(
    "statements",
    [
        # Its destination is read, or written without being read, before it.
        ("alu: d[t + 2, c] = b[t + 2, c] * 3", CARRIED),
        ("alu: b[t + 2, c] = l[t + 2, c] * 3", CARRIED),
        # Its source is written before it: in the turn that it reads, or in a buffer that is not
        # rolling.
        ("alu: a[t + 1, c] = l[t + 2, c] * 3", CARRIED),
        ("alu: d[t + 2, c] = 3; a[t + 1, c] = l[t + 2, c] * 3", CARRIED),
        ("alu: s[t + 2, c] = l[t + 2, c] * 3", CARRIED + " + s[t + 2, c]"),
        # It does not follow an ALU operation.
        ("dma_copy: a[t + 2, c] = x[t, c]", CARRIED),
        ("gemm: a[t + 2, c] = l[t + 2, c] * 3", CARRIED),
        # It reads its own iteration, completely or in part.
        (TRIPLED, "alu: b[t + 2, c] = a[t + 2, c]"),
        (TRIPLED, "alu: b[t + 2, c] = l[t + 2, c]"),
        (TRIPLED, "alu: b[t + 2, c] = a[t + 1, c] + l[t + 2, c]"),
        (TRIPLED, CARRIED + "; b[t + 2, c] = l[t + 2, c]"),
        # It reads another iteration than the previous one, or an unknown one.
        (TRIPLED, "alu: b[t + 2, c] = a[t, c]"),
        (TRIPLED, "alu: b[t + 2, c] = a[t + 3, c]"),
        ("alu: a[t + 3, c] = l[t + 2, c] * 3", "alu: b[t + 2, c] = a[t + 3, c]"),
        (TRIPLED, "alu: b[t + 2, c] = a[2*t + 1, c]"),
        (TRIPLED, "alu: b[t + 2, c] = a[t // 2 + 1, c]"),
        # It reads and writes several iterations, or unknown ones.
        (TRIPLED, CARRIED + "; b[t + 1, c] = a[t + 1, c]"),
        ("alu: a[t // 2 + 1, c] = l[t + 2, c] * 3", CARRIED),
        ("alu: d[t + 2, c] = 3; a[t // 2 + 1, c] = l[t + 2, c] * 3", CARRIED),
        (TRIPLED, "alu: b[t // 2 + 2, c] = a[t + 1, c]"),
        # It reads no rolling buffer, or writes one that is not rolling.
        (TRIPLED, "alu: b[t + 2, c] = s[t + 1, c]"),
        (TRIPLED, "alu: s[t + 2, c] = a[t + 1, c]"),
        # It is empty.
        (TRIPLED, "alu: pass"),
    ],
)
def test_it_stays(statements: tuple[str, ...]) -> None:
    assert order(*statements) == [0, 1]


# Iterations without a loop around them, and with one around each operation.
UNROLLED = "".join(
    region(statement.replace("t + 2", str(turn + 2)).replace("t + 1", str(turn + 1)), " " * 4)
    for turn in range(4)
    for statement in (TRIPLED, "alu: d[t + 2, c] = l[t + 2, c] * 5")
) + region("alu: b[6, c] = a[5, c]", " " * 4)
WITHIN = "".join(
    f"    with alu():\n        for t in range(4):\n            for c in range(4):\n"
    f"                {statement.removeprefix('alu: ')}\n"
    for statement in (TRIPLED, CARRIED)
)
STORED = region("dma_copy: y[0, 0, c] = int8(b[6, c])", " " * 4) + region(
    "dma_copy: y[0, 1, c] = int8(b[4, c])", " " * 4
)


@pytest.mark.parametrize("text", [UNROLLED, WITHIN], ids=["unrolled", "within"])
def test_it_does_not_leave_its_iteration(text: str) -> None:
    nest = parse(HEAD + text + STORED)
    after = read_carried_first(nest, EXTENDED)
    assert result(after) == result(nest)
    assert to_text(after) == to_text(nest)


def test_nothing_moves_where_gemm_and_the_alu_do_not_overlap() -> None:
    nest = iterations(TRIPLED, CARRIED)
    assert read_carried_first(nest, PRESETS["tiny"]) is nest


@pytest.mark.parametrize("kernel", [(3, 3), (3, 1), (2, 2)], ids=str)
def test_a_tile_of_maxima_begins_with_the_row_that_is_carried(kernel: tuple[int, int]) -> None:
    """Also if the first windows begin outside of the image and have no such row. The first
    operation reads no sums of its tile, except sums that it overwrites.
    """
    pooling = Pooling((3, 3), kernel, (kernel[0] - 1, 2), (1, 0))
    columns = 2 * 2 + kernel[1]
    conv = Conv2d(1, 1, 1, 6, columns, (1, 1), RoundingShift(4, -128, 127), pooling=pooling)
    schedule = conv.scheduled(Environment(EXTENDED), Tiling(1, 1, 3, 1, 1, True, True))
    seen: list[list[list[Assign]]] = []

    def look(nest: LoopNest, _: Config) -> LoopNest:
        (loop,) = (part for part in walk(nest.body) if is_loop(part, "i2_outer"))
        alu = [part for part in walk(loop) if isinstance(part, Region) and part.kind == "alu"]
        seen.append([[item for item in walk(part) if isinstance(item, Assign)] for part in alu])
        return nest

    look_behind = ("after read_carried_first", look)
    assert not lower(*schedule, env=Environment(EXTENDED), passes=[look_behind]).problem
    (alu,) = seen
    operations = [" ".join(str(item.value) for item in items) for items in alu]
    assert [text for text in operations if "[i2_outer, " in text] == operations[:1]
    own = set(re.findall(r"(\w+)\[i2_outer \+ 1, ", operations[0]))
    assert own <= {item.buffer.name for item in alu[0]}
