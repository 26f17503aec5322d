"""Software pipelining, on loop nests as text."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.nest.interpret import interpret
from amaranth_vta.sw.compiler.nest.ir import LoweringError
from amaranth_vta.sw.compiler.nest.parse import parse
from amaranth_vta.sw.compiler.nest.printer import to_text
from amaranth_vta.sw.compiler.passes.software_pipeline import software_pipeline

TINY = PRESETS["tiny"]
BODY = """\
a = allocate(acc, int32, [{size}, 4], ahead=1, copies={copies})
with dma_copy():
    for i in range({size}):
        for c in range(4):
            a[i, c] = x[{place} + i, c]
b = allocate(acc, int32, [{size}, 4])
with alu():
    for i in range({size}):
        for c in range(4):
            b[i, c] = a[i, c] * 3
with dma_copy():
    for i in range({size}):
        for c in range(4):
            y[{place} + i, c] = int8(b[i, c])
"""


# The product runs two iterations ahead of its reader, and the load one iteration ahead of the
# product.
FAR = BODY.replace("[{size}, 4])", "[{size}, 4], ahead=2, copies=3)")

# The same, but each row is stored as soon as it is copied: a loop of two kinds of instructions.
MIXED = (
    FAR[: FAR.rindex("with dma_copy()")]
    + """\
d = allocate(acc, int32, [{size}, 4])
for i in range({size}):
    with alu():
        for c in range(4):
            d[i, c] = b[i, c] + 0
    with dma_copy():
        for c in range(4):
            y[{place} + i, c] = int8(d[i, c])
"""
)


def nest(rows: int, text: str) -> str:
    body = "\n".join("    " + line for line in text.splitlines())
    return f"def function(x: int32[{rows}, 4], y: int8[{rows}, 4]):\n{body}\n"


def body(size: int, place: str, copies: int = 2, form: str = BODY) -> str:
    return form.format(size=size, place=place, copies=copies)


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def check(text: str) -> str:
    """The nest after the pass, as text, with its result checked."""
    before = parse(text)
    after = software_pipeline(before, TINY)
    x = np.random.default_rng(1).integers(-40, 40, before.args[0].shape).astype(np.int32)
    found = []
    for function in (before, after):
        y = np.zeros(x.shape, np.int8)
        interpret(function, TINY, [x, y])
        found.append(y)
    np.testing.assert_array_equal(found[0], (3 * x).astype(np.int8))
    np.testing.assert_array_equal(found[1], found[0])
    return to_text(after)


def test_the_next_iteration_is_made_before_this_one_is_read() -> None:
    after = check(nest(8, "for t in range(4):\n" + indented(body(2, "2*t"))))
    assert (
        after
        == """\
def function(x: int32[8, 4], y: int8[8, 4]):
    a = allocate(acc, int32, [4, 8], rolling=1, copies=2)
    b = allocate(acc, int32, [4, 8], rolling=1)
    with dma_copy():
        for i in range(2):
            for c in range(4):
                a[0, 4*i + c] = x[i, c]
    for t in range(3):
        with dma_copy():
            for i_1 in range(2):
                for c_1 in range(4):
                    a[t + 1, 4*i_1 + c_1] = x[2*t + i_1 + 2, c_1]
        with alu():
            for i_2 in range(2):
                for c_2 in range(4):
                    b[t, 4*i_2 + c_2] = a[t, 4*i_2 + c_2] * 3
        with dma_copy():
            for i_3 in range(2):
                for c_3 in range(4):
                    y[2*t + i_3, c_3] = int8(b[t, 4*i_3 + c_3])
    with alu():
        for i_4 in range(2):
            for c_4 in range(4):
                b[3, 4*i_4 + c_4] = a[3, 4*i_4 + c_4] * 3
    with dma_copy():
        for i_5 in range(2):
            for c_5 in range(4):
                y[i_5 + 6, c_5] = int8(b[3, 4*i_5 + c_5])"""
    )


# An iteration with this number of rows, or a loop with its number of iterations and its body.
Tree = int | tuple[int, list["Tree"]]


def random_trees(pick: random.Random, depth: int) -> list[Tree]:
    return [
        (pick.randint(1, 4), random_trees(pick, depth - 1))
        if depth and pick.random() < 0.7
        else pick.randint(1, 3)
        for _ in range(pick.randint(1, 3))
    ]


def rows_of(trees: list[Tree]) -> int:
    return sum(tree if isinstance(tree, int) else tree[0] * rows_of(tree[1]) for tree in trees)


def text_of(trees: list[Tree], place: str, form: str = BODY) -> str:
    """The loops ``trees``, the first of which is at row ``place``."""
    text = ""
    for tree in trees:
        if isinstance(tree, int):
            text += f"with lifetime():\n{indented(body(tree, place, form=form))}"
        else:
            extent, inner = tree
            var = f"t{len(place)}"
            within = text_of(inner, f"{place} + {rows_of(inner)}*{var}", form)
            text += f"for {var} in range({extent}):\n{indented(within)}"
        place += f" + {rows_of([tree])}"
    return text


@pytest.mark.parametrize("form", [BODY, FAR, MIXED], ids=["one", "several", "mixed"])
@pytest.mark.parametrize("seed", range(20))
def test_random_nests_compute_the_same(seed: int, form: str) -> None:
    trees = random_trees(random.Random(seed), 2)
    check(nest(rows_of(trees), text_of(trees, "0", form)))


def test_turns_are_counted_where_stages_several_iterations_ahead_are_written() -> None:
    after = check(nest(12, "for t in range(6):\n" + indented(body(2, "2*t", form=FAR))))
    assert "a = allocate(acc, int32, [9, 8], rolling=1, copies=2)" in after
    assert "b = allocate(acc, int32, [8, 8], rolling=1, copies=3)" in after
    _, steady = after.split("    for t in range(3):\n")
    assert steady.startswith(
        """\
        with dma_copy():
            for i_5 in range(2):
                for c_5 in range(4):
                    a[t + 6, 4*i_5 + c_5] = x[2*t + i_5 + 6, c_5]
        with alu():
            for i_6 in range(2):
                for c_6 in range(4):
                    b[t + 4, 4*i_6 + c_6] = a[t + 5, 4*i_6 + c_6] * 3
        with dma_copy():
            for i_7 in range(2):
                for c_7 in range(4):
                    y[2*t + i_7, c_7] = int8(b[t + 2, 4*i_7 + c_7])
    with alu():
"""
    )


def test_a_single_copy_is_refused() -> None:
    text = nest(8, "for t in range(4):\n" + indented(body(2, "2*t", copies=1)))
    with pytest.raises(
        LoweringError, match="a is computed ahead, which takes 2 copies: use double_buffer"
    ):
        software_pipeline(parse(text), TINY)


def test_a_copy_too_few_is_refused() -> None:
    text = nest(8, "for t in range(4):\n" + indented(body(2, "2*t", form=FAR)))
    with pytest.raises(LoweringError, match="b is computed ahead, which takes 3 copies"):
        software_pipeline(parse(text.replace("copies=3", "copies=2")), TINY)


# Tiles of four rows, which are copied in several iterations and stored in parts.
STAGGERED = """\
s = allocate(acc, int32, [4, 4], copies={copies}, stagger={stagger}, parts={parts})
for k in range({steps}):
    a = allocate(acc, int32, [4, 4], ahead=1, copies=2)
    with dma_copy():
        for i in range(4):
            for c in range(4):
                a[i, c] = x[{place} + i, c]
    with alu():
        for i in range(4):
            for c in range(4):
                s[i, c] = a[i, c] + 0
with alu():
    for i in range(4):
        for c in range(4):
            s[i, c] = s[i, c] * 3
with dma_copy():
    for i in range(4):
        for c in range(4):
            y[{place} + i, c] = int8(s[i, c])
"""


def staggered(
    tiles: tuple[int, int], steps: int, parts: int, stagger: int = 1, copies: int = 2
) -> str:
    rows, columns = tiles
    place = f"{4 * columns}*t + 4*u"
    tile = STAGGERED.format(copies=copies, stagger=stagger, parts=parts, steps=steps, place=place)
    loops = f"for t in range({rows}):\n" + indented(f"for u in range({columns}):\n{indented(tile)}")
    return nest(4 * rows * columns, loops)


@pytest.mark.parametrize("stagger", [1, 2])
def test_staggered_parts_follow_iterations_of_the_next_tile(stagger: int) -> None:
    steps = 2 * stagger + 1
    after = check(staggered((1, 2), steps, parts=3, stagger=stagger))
    stores = [line for line in after.splitlines() if "y[" in line]
    # A tile of four rows in parts of one, one and two rows.
    assert [re.sub(r"_\d+", "", line.split("=")[0].strip()) for line in stores] == [
        *("y[0, c]", "y[1, c]", "y[i + 2, c]", "y[4, c]", "y[5, c]", "y[i + 6, c]")
    ]
    # The next tile's first load is a part of this tile's last iteration.
    loads = [_iterations(after[: after.index(line)]) for line in stores]
    assert loads == [steps + 1, steps + 1 + stagger, *4 * [2 * steps]]


def _iterations(text: str) -> int:
    """Number of loads in a nest whose loops over iterations are not nested."""
    count, extent = 0, 1
    for line in text.splitlines():
        if line.startswith("    for"):
            extent = int(line.split("range(")[1].removesuffix("):"))
        elif not line.startswith("        "):
            extent = 1
        count += extent * ("= x[" in line)
    return count


@pytest.mark.parametrize("seed", range(12))
def test_staggered_parts_compute_the_same(seed: int) -> None:
    pick = random.Random(seed)
    parts, stagger = pick.randint(2, 4), pick.randint(1, 2)
    steps = (parts - 1) * stagger + pick.randint(1, 3)
    check(staggered((pick.randint(1, 3), pick.randint(1, 3)), steps, parts, stagger))


def refusal(text: str) -> str:
    with pytest.raises(LoweringError) as caught:
        software_pipeline(parse(text), TINY)
    return str(caught.value)


def test_staggering_needs_iterations_of_the_next_tile() -> None:
    assert "1 iterations too late" in refusal(staggered((1, 2), steps=2, parts=3))
    # The next tile is in the next iteration of the outer loop.
    assert "1 iterations too late" in refusal(staggered((2, 1), steps=2, parts=3))


def test_staggering_needs_two_copies() -> None:
    text = staggered((1, 2), steps=3, parts=2, copies=1)
    assert refusal(text).startswith("s is read by staggered operations while the next loop fills")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("s[i, c] = s[i, c] * 3", "s[i, c] = s[3 - i, c] * 3"),
        ("y[0 + 4*u + i, c] = int8(s[i, c])", "y[0 + 4*u + i, c] = int8(s[i, 3 - c])"),
    ],
)
def test_only_operations_by_element_are_staggered(old: str, new: str) -> None:
    text = staggered((1, 2), steps=3, parts=2).replace("8*t + 4*u", "0 + 4*u")
    assert old in text
    assert "not element by element" in refusal(text.replace(old, new))
