"""Operators that move tiles: padding, upsampling, concatenation, and copies between layouts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.concatenate import Concatenate, concatenate
from amaranth_vta.sw.compiler.operators.crop2d import Crop2d, crop2d
from amaranth_vta.sw.compiler.operators.pad2d import Pad2d, pad2d
from amaranth_vta.sw.compiler.operators.parts.tile_moves import MoveKnobs
from amaranth_vta.sw.compiler.operators.permute import Permute, permute
from amaranth_vta.sw.compiler.operators.select_channels import (
    SelectChannels,
    select_channels,
    selection_weights,
)
from amaranth_vta.sw.compiler.operators.upsample2d import Upsample2d, upsample2d
from amaranth_vta.sw.compiler.tuner.workload import NoScheduleFits
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]
CONFIGS = ["tiny", "batch2", "int4", "pynq", "block32", "tiny-extended", "pynq-extended"]


def padded(workload: Pad2d, x: Array) -> Array:
    top, left, bottom, right = workload.pads
    around = ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0), (0, 0))
    return np.pad(x, around, constant_values=workload.value)


def upsampled(workload: Upsample2d, x: Array) -> Array:
    return x.repeat(workload.factors[0], axis=2).repeat(workload.factors[1], axis=3)


def permuted(workload: Permute, x: Array) -> Array:
    rank = len(workload.order)
    return x.transpose(*workload.order, rank, rank + 1)


def cropped(workload: Crop2d, x: Array) -> Array:
    tile, row, column = workload.first
    channels, rows, columns = workload.size
    return x[:, tile : tile + channels, row : row + rows, column : column + columns]


def random_crop(seed: int) -> Crop2d:
    pick = random.Random(seed)
    sizes = pick.randint(1, 3), pick.randint(1, 9), pick.randint(1, 9)
    first = tuple(pick.randrange(size) for size in sizes)
    left = tuple(pick.randint(1, size - at) for size, at in zip(sizes, first, strict=True))
    return Crop2d(pick.randint(1, 2), *sizes, first, left)  # type: ignore[arg-type]


def random_pad(seed: int) -> Pad2d:
    pick = random.Random(seed)
    pads: Any = tuple(pick.choices([0, 1, 3, 17], k=4))
    sizes = pick.randint(1, 2), pick.randint(1, 3), pick.randint(1, 9), pick.randint(1, 9)
    return Pad2d(*sizes, pads)


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
    "crop": (random_crop, crop2d, cropped),
    "pad": (random_pad, pad2d, padded),
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
    x = some(np.random.default_rng(seed), function.args[0])
    got = run(function, [x], order=f"random:{seed}")
    np.testing.assert_array_equal(got, meaning(workload, x))


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
@pytest.mark.parametrize(
    ("kind", "workload", "knobs"),
    [
        ("crop", Crop2d(1, 3, 4, 5, (1, 0, 2), (2, 3, 3)), MoveKnobs((1, 2, 2, 3))),
        ("pad", Pad2d(1, 2, 3, 2, (1, 2, 0, 1)), MoveKnobs((1, 1, 3, 5))),
        ("upsample", Upsample2d(1, 2, 3, 2, (2, 2)), MoveKnobs((1, 1, 2, 1), in_turn=True)),
        ("upsample", Upsample2d(1, 1, 3, 4, (2, 3)), MoveKnobs((1, 1, 2, 3))),
        ("permute", Permute((2, 3, 4), (1, 2, 0)), MoveKnobs((2, 3, 2), in_turn=True)),
    ],
)
def test_no_pass_changes_what_a_move_does(
    config: str,
    kind: str,
    workload: Any,
    knobs: MoveKnobs,
    interpreted: Any,
    run: Any,
    some: Callable[..., Any],
) -> None:
    _, operator, meaning = KINDS[kind]
    env = Environment(PRESETS[config])
    schedule = workload.scheduled(env, knobs)
    x = some(np.random.default_rng(0), schedule[1][0])
    want = meaning(workload, x)
    interpreted(schedule, [x], want, env)
    np.testing.assert_array_equal(run(operator(workload, env, knobs), [x], device="rtl"), want)


def test_equal_rows_are_made_once_and_stored_by_one_instruction_each(run: Any) -> None:
    env = Environment(PRESETS["pynq"])
    function = upsample2d(Upsample2d(1, 2, 4, 5, (2, 3)), env)
    lines = [line for line in function.lowered.instructions().splitlines() if " STORE " in line]
    assert len(lines) == 2
    run(function, [np.zeros(function.args[0].shape, np.int8)])
    assert run.counters["alu_uops"] == 2 * 4 * 15


def test_padding_with_a_value_is_for_machines_that_can(run: Any, some: Any) -> None:
    workload = Pad2d(1, 1, 2, 3, (1, 0, 2, 1), value=-5)
    env = Environment(PRESETS["tiny-extended"])
    function = pad2d(workload, env)
    x = some(np.random.default_rng(0), function.args[0])
    np.testing.assert_array_equal(run(function, [x]), padded(workload, x))
    np.testing.assert_array_equal(run(function, [x], device="rtl"), padded(workload, x))
    with pytest.raises(NoScheduleFits, match="PAD_VALUE"):
        pad2d(workload, Environment(PRESETS["tiny"]))


def test_tiles_of_outputs_become_tiles_of_inputs(run: Any, some: Any) -> None:
    """Two of eight channels are one of sixteen, for every pixel."""
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
    """All channels in order, two or three groups of them shuffled, some of a shuffle, or any in
    any order."""
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
@each_seed(range(8))
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
    """Three or four per tile of results, though each tile has channels of both halves."""
    config, half = PRESETS["pynq-extended"], 58
    chosen = tuple(half * group + at for at in range(half) for group in range(2))
    for part, products in ((chosen[:half], 3), (chosen[half:], 4), (chosen, 3)):
        weights = selection_weights(SelectChannels(1, (half, half), 9, part), config)
        assert weights.shape[:2] == (-(-len(part) // 16), products)
        assert weights.sum() == len(part)


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
@pytest.mark.parametrize("chosen", [tuple(range(11)), (9, 0, 3, 6, 1, 4, 7, 10)])
@pytest.mark.parametrize("knobs", [MoveKnobs((1, 3, 3)), MoveKnobs((2, 3, 2), in_turn=True)])
def test_no_pass_changes_what_a_selection_does(
    config: str,
    chosen: tuple[int, ...],
    knobs: MoveKnobs,
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
