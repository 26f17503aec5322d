"""Operators that move tiles: padding, upsampling, concatenation, and copies between layouts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.concatenate import Concatenate, concatenate
from amaranth_vta.sw.compiler.operators.gather_tiles import (
    AffinePiece,
    GatherTiles,
    SourcePart,
    gather_tiles,
)
from amaranth_vta.sw.compiler.operators.permute import Permute, permute
from amaranth_vta.sw.compiler.operators.select_channels import (
    SelectChannels,
    select_channels,
    selection_weights,
)
from amaranth_vta.sw.compiler.operators.upsample2d import Upsample2d, upsample2d
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from amaranth_vta.sw.compiler.tuner.workload import NoScheduleFits
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]
CONFIGS = ["tiny", "batch2", "int4", "pynq", "block32", "tiny-extended", "pynq-extended"]


def upsampled(workload: Upsample2d, x: Array) -> Array:
    return x.repeat(workload.factors[0], axis=2).repeat(workload.factors[1], axis=3)


def permuted(workload: Permute, x: Array) -> Array:
    rank = len(workload.order)
    return x.transpose(*workload.order, rank, rank + 1)


def gathered(workload: GatherTiles, *sources: Array) -> Array:
    result = np.full((*workload.shape, *sources[0].shape[1:]), workload.fill, np.int8)
    for index in np.ndindex(*workload.shape):
        if all(a <= at < b for at, (a, b) in zip(index, workload.inside, strict=True)):
            part = next(part for part in workload.parts if index[workload.cut] < part.end)
            number = 0
            for at, pieces in zip(index, part.axes, strict=True):
                piece = next(piece for piece in pieces if at < piece.end)
                number += piece.start + piece.step * at
            result[index] = sources[part.source][number]
    return result


def random_axis(pick: random.Random, size: int, stride: int, first: int) -> tuple[AffinePiece, ...]:
    """One to three pieces of an axis of ``size`` tiles, ``stride`` apart, from index ``first``
    on."""
    pieces: list[AffinePiece] = []
    for _ in range(pick.choice([1, 1, 2, 3])):
        begin = pieces[-1].end if pieces else first
        at, step = pick.randrange(size), pick.choice([1, 1, 2, 0, -1, -2])
        room = (size - 1 - at) // step if step > 0 else at // -step if step else 3
        count = pick.randint(1, room + 1)
        pieces.append(AffinePiece(begin + count, stride * (at - step * begin), stride * step))
    return tuple(pieces)


def random_gather(seed: int) -> GatherTiles:
    """Pieces of one image, or of two joined along one axis, perhaps surrounded by tiles of
    zeros."""
    pick = random.Random(seed)
    cut = pick.randrange(3)
    sizes, parts, lengths = [], list[SourcePart](), dict[int, int]()
    before = [pick.choice([0, 0, 1, 3]) for _ in range(3)]
    after = [pick.choice([0, 0, 1, 16]) for _ in range(3)]
    for source in range(pick.choice([1, 1, 2])):
        image = [pick.randint(1, 3), pick.randint(1, 7), pick.randint(1, 7)]
        strides = [image[1] * image[2], image[2], 1]
        axes = []
        for axis in range(3):
            first = parts[-1].end if parts and axis == cut else before[axis]
            pieces = random_axis(pick, image[axis], strides[axis], first)
            if parts and axis != cut:  # all parts must have equal lengths: repeat one tile
                pieces = (AffinePiece(lengths[axis], 0, 0),)
            axes.append(pieces)
            lengths[axis] = pieces[-1].end
        sizes.append(image[0] * image[1] * image[2])
        parts.append(SourcePart(axes[cut][-1].end, source, tuple(axes)))
    return GatherTiles(
        tuple(sizes),
        tuple(lengths[axis] + after[axis] for axis in range(3)),
        (*parts[:-1], replace(parts[-1], end=lengths[cut] + after[cut])),
        tuple((before[axis], lengths[axis]) for axis in range(3)),
        cut,
    )


def whole(shape: tuple[int, ...], *steps: int, start: int = 0, fill: int = 0) -> GatherTiles:
    """A regular gather: tile number ``start`` first, then one of ``steps`` per axis of
    ``shape``."""
    axes = [(AffinePiece(size, 0, step),) for size, step in zip(shape, steps, strict=True)]
    axes[0] = (replace(axes[0][0], start=start),)
    count = 1 + sum((size - 1) * max(step, 0) for size, step in zip(shape, steps, strict=True))
    inside = tuple((0, size) for size in shape)
    return GatherTiles(
        (start + count,), shape, (SourcePart(shape[0], 0, tuple(axes)),), inside, 0, fill
    )


def random_upsampling(seed: int) -> Upsample2d:
    pick = random.Random(seed)
    sizes = pick.randint(1, 2), pick.randint(1, 3), pick.randint(1, 9), pick.randint(1, 9)
    return Upsample2d(*sizes, (pick.randint(1, 3), pick.randint(1, 4)))


def random_permutation(seed: int) -> Permute:
    pick = random.Random(seed)
    order = list(range(pick.randint(2, 4)))
    pick.shuffle(order)
    return Permute(tuple(pick.randint(1, 5) for _ in order), tuple(order))


KINDS: dict[str, Any] = {
    "gather": (random_gather, gather_tiles, gathered),
    "upsample": (random_upsampling, upsample2d, upsampled),
    "permute": (random_permutation, permute, permuted),
}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("kind", KINDS)
@each_seed(range(4))
def test_tiles_come_where_they_belong(
    config: str, kind: str, seed: int, run: Any, some: Callable[..., Any]
) -> None:
    make, operator, meaning = KINDS[kind]
    env = Environment(PRESETS[config])
    workload = make(seed * 7 + CONFIGS.index(config))
    function = operator(workload, env)
    sources = [some(np.random.default_rng(seed), arg) for arg in function.args[:-1]]
    got = run(function, sources, order=f"random:{seed}")
    np.testing.assert_array_equal(got, meaning(workload, *sources))


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
@pytest.mark.parametrize(
    ("kind", "workload", "knobs"),
    [
        ("gather", random_gather(3), OutputTile((1, 2, 3))),
        ("gather", random_gather(8), OutputTile((2, 3, 4), in_turn=True)),
        ("gather", whole((2, 3, 5), 15, 5, -1, start=4), OutputTile((1, 2, 3))),
        ("gather", whole((3, 2, 4, 2), 8, 24, 1, 4), OutputTile((1, 2, 4, 2), in_turn=True)),
        ("upsample", Upsample2d(1, 2, 3, 2, (2, 2)), OutputTile((1, 1, 2, 1), in_turn=True)),
        ("upsample", Upsample2d(1, 1, 3, 4, (2, 3)), OutputTile((1, 1, 2, 3))),
        ("permute", Permute((2, 3, 4), (1, 2, 0)), OutputTile((2, 3, 2), in_turn=True)),
    ],
)
def test_no_pass_changes_what_a_move_does(
    config: str,
    kind: str,
    workload: Any,
    knobs: OutputTile,
    interpreted: Any,
    run: Any,
    some: Callable[..., Any],
) -> None:
    _, operator, meaning = KINDS[kind]
    env = Environment(PRESETS[config])
    schedule = workload.scheduled(env, knobs)
    sources = [some(np.random.default_rng(0), arg) for arg in schedule[1][:-1]]
    want = meaning(workload, *sources)
    interpreted(schedule, sources, want, env)
    np.testing.assert_array_equal(run(operator(workload, env, knobs), sources, device="rtl"), want)


def test_equal_rows_are_made_once_and_stored_by_one_instruction_each(run: Any) -> None:
    env = Environment(PRESETS["pynq"])
    function = upsample2d(Upsample2d(1, 2, 4, 5, (2, 3)), env, OutputTile((1, 2, 4, 5), True))
    lines = [line for line in function.lowered.instructions().splitlines() if " STORE " in line]
    assert len(lines) == 2
    run(function, [np.zeros(function.args[0].shape, np.int8)])
    assert run.counters["alu_uops"] == 2 * 4 * 15


def test_padding_with_a_value_is_for_machines_that_can(run: Any, some: Any) -> None:
    inner = (AffinePiece(5, -1, 1),)
    workload = GatherTiles((3,), (6,), (SourcePart(6, 0, (inner,)),), ((1, 4),), fill=-5)
    env = Environment(PRESETS["tiny-extended"])
    function = gather_tiles(workload, env)
    x = some(np.random.default_rng(0), function.args[0])
    np.testing.assert_array_equal(run(function, [x]), gathered(workload, x))
    np.testing.assert_array_equal(run(function, [x], device="rtl"), gathered(workload, x))
    with pytest.raises(NoScheduleFits, match="PAD_VALUE"):
        gather_tiles(workload, Environment(PRESETS["tiny"]))


def test_rows_backwards_are_loaded_forwards_and_turned_by_the_alu() -> None:
    function = gather_tiles(whole((4, 8), 8, -1, start=7), Environment(PRESETS["tiny-extended"]))
    lines = function.lowered.instructions().splitlines()
    assert len([line for line in lines if " LOAD " in line and "ACC" in line]) == 1


def test_phases_of_pixels_are_stored_apart_and_loaded_together() -> None:
    """DepthToSpace of four tiles takes at most four LOADs, not one per pixel."""
    workload = whole((4, 2, 6, 2), 6, 48, 1, 24)
    function = gather_tiles(workload, Environment(PRESETS["tiny-extended"]))
    lines = [line for line in function.lowered.instructions().splitlines() if " LOAD " in line]
    assert len([line for line in lines if "ACC" in line]) <= 4


def test_tiles_of_outputs_become_tiles_of_inputs(run: Any, some: Any) -> None:
    """For every pixel, two tiles of 4 channels become one of 8."""
    env = Environment(PRESETS["tiny"])
    function = permute(Permute((2, 2, 6), (0, 2, 1)), env)
    x = some(np.random.default_rng(0), function.args[0])
    # (channels / 2, 2, pixels, 4) to (channels / 2, pixels, 8)
    want = x.reshape(2, 2, 6, 4).transpose(0, 2, 1, 3).reshape(2, 6, 8)
    np.testing.assert_array_equal(run(function, [x]).reshape(2, 6, 8), want)


def selected(workload: Concatenate | SelectChannels, sources: list[Array]) -> Array:
    batch, _, pixels, rows, block = sources[0].shape
    channels = [
        x.transpose(0, 3, 1, 4, 2).reshape(batch, rows, -1, pixels)[:, :, :count]
        for x, count in zip(sources, workload.channels, strict=True)
    ]
    whole = np.concatenate(channels, axis=2)
    if isinstance(workload, SelectChannels):
        whole = whole[:, :, list(workload.chosen)]
    fill = np.zeros((batch, rows, -whole.shape[2] % block, pixels), np.int8)
    tiles = np.concatenate([whole, fill], axis=2).reshape(batch, rows, -1, block, pixels)
    return tiles.transpose(0, 2, 4, 1, 3)


@pytest.mark.parametrize("config", CONFIGS)
@each_seed(range(3))
def test_channels_are_concatenated(
    config: str, seed: int, run: Any, some: Callable[..., Any]
) -> None:
    env, pick = Environment(PRESETS[config]), random.Random(seed * 7 + CONFIGS.index(config))
    block = env.BLOCK_OUT
    channels = [block * pick.randint(1, 3) for _ in range(pick.randint(2, 4))]
    channels[-1] = pick.randint(1, 2 * block)
    workload = Concatenate(pick.randint(1, 2), tuple(channels), pick.randint(1, 40))
    function = concatenate(workload, env)
    rng = np.random.default_rng(seed)
    sources = [some(rng, arg) for arg in function.args[: len(channels)]]
    if rest := channels[-1] % block:
        sources[-1][:, -1, ..., rest:] = 0  # as machine and host leave them
    got = run(function, sources, order=f"random:{seed}")
    np.testing.assert_array_equal(got, selected(workload, sources))


def random_selection(seed: int, block: int) -> SelectChannels:
    """All channels in order, two or three groups shuffled, part of a shuffle, or random
    channels."""
    pick = random.Random(seed)
    channels = tuple(pick.randint(1, 3 * block) for _ in range(pick.randint(1, 3)))
    total = sum(channels)
    kind = seed % 4
    chosen = list(range(total))
    if kind in (1, 2):
        groups = kind + 1
        each = max(total // groups, 1)
        chosen = [group * each + at for at in range(total // groups) for group in range(groups)]
        chosen = chosen or [0]
    if kind == 2:
        chosen = chosen[len(chosen) // 2 :]
    if kind == 3:
        chosen = [pick.randrange(total) for _ in range(pick.randint(1, 3 * block))]
    return SelectChannels(pick.randint(1, 2), channels, pick.randint(1, 40), tuple(chosen))


@pytest.mark.parametrize("config", [name for name in CONFIGS if name != "batch2"])
@each_seed(range(8), daily=3)
def test_channels_are_selected(config: str, seed: int, run: Any, some: Callable[..., Any]) -> None:
    env = Environment(PRESETS[config])
    workload = random_selection(seed, env.BLOCK_OUT)
    function = select_channels(workload, env)
    rng = np.random.default_rng(seed)
    sources = [some(rng, arg) for arg in function.args[: len(workload.channels)]]
    weights = selection_weights(workload, env.config)
    got = run(function, [*sources, weights], order=f"random:{seed}")
    np.testing.assert_array_equal(got, selected(workload, sources))


def test_a_shuffle_of_two_halves_takes_few_products() -> None:
    """Three or four per output tile, although each output tile has channels of both halves."""
    config, half = PRESETS["pynq-extended"], 58
    chosen = tuple(half * group + at for at in range(half) for group in range(2))
    for part, products in ((chosen[:half], 3), (chosen[half:], 4), (chosen, 3)):
        weights = selection_weights(SelectChannels(1, (half, half), 9, part), config)
        assert weights.shape[:2] == (-(-len(part) // 16), products)
        assert weights.sum() == len(part)


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
@pytest.mark.parametrize("chosen", [tuple(range(11)), (9, 0, 3, 6, 1, 4, 7, 10)])
@pytest.mark.parametrize("knobs", [OutputTile((1, 3, 3)), OutputTile((2, 3, 2), in_turn=True)])
def test_no_pass_changes_what_a_selection_does(
    config: str,
    chosen: tuple[int, ...],
    knobs: OutputTile,
    interpreted: Any,
    run: Any,
    some: Callable[..., Any],
) -> None:
    env, workload = Environment(PRESETS[config]), SelectChannels(2, (3, 6, 2), 5, chosen)
    function, rng = select_channels(workload, env, knobs), np.random.default_rng(0)
    sources = [some(rng, arg) for arg in function.args[:3]]
    want = selected(workload, sources)
    inputs = [*sources, selection_weights(workload, env.config)]
    interpreted(workload.scheduled(env, knobs), inputs, want, env)
    np.testing.assert_array_equal(run(function, inputs, device="rtl"), want)


def test_channels_that_cannot_move_within_tiles_are_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="takes tiles of 8 int8; these are of 4 int8"):
        select_channels(SelectChannels(1, (3, 4), 5, (6, 0)), Environment(PRESETS["batch2"]))
    with pytest.raises(ValueError, match=r"sources of \(3, 4\) channels do not fill tiles of 4"):
        concatenate(Concatenate(1, (3, 4), 5), Environment(PRESETS["tiny"]))
