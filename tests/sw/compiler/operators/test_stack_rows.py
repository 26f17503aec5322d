"""Rows of matrices become weight tiles, and zeros fill the last tile of each matrix."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.identity import identity_weights
from amaranth_vta.sw.compiler.operators.stack_rows import StackRows, stack_rows
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from tests.support.runtimes import estimated_cycles
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]
CONFIGS = ["tiny", "pynq", "pynq-extended", "block32"]


def stacked(workload: StackRows, x: Array) -> Array:
    block = x.shape[-1]
    padded = np.pad(x, [(0, 0), (0, -workload.rows % block), *[(0, 0)] * 3])
    stacks = padded.reshape(workload.groups, -1, block, *x.shape[2:])
    return stacks.transpose(0, *((3, 1, 2) if workload.by_columns else (1, 3, 2)), 4, 5)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("by_columns", [True, False])
@each_seed(range(3))
def test_rows_are_stacked(config: str, by_columns: bool, seed: int, run: Any, some: Any) -> None:
    env, pick = Environment(PRESETS[config]), random.Random(seed * 7 + CONFIGS.index(config))
    sizes = pick.randint(1, 3), pick.randint(1, 70), pick.randint(1, 4)
    workload = StackRows(*sizes, by_columns)
    function = stack_rows(workload, env)
    x = some(np.random.default_rng(seed), function.args[0])
    found = run(function, [x, identity_weights(env)], order=f"random:{seed}")
    np.testing.assert_array_equal(found, stacked(workload, x))


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
@pytest.mark.parametrize(
    ("workload", "knobs"),
    [
        (StackRows(2, 10, 3, by_columns=False), OutputTile((1, 2, 3, 4), in_turn=True)),
        (StackRows(2, 10, 3, by_columns=True), OutputTile((1, 2, 3, 4))),
        (StackRows(2, 5, 1, by_columns=True), OutputTile((2, 1, 2, 4))),
    ],
)
def test_no_pass_changes_what_a_stack_has(
    config: str, workload: StackRows, knobs: OutputTile, interpreted: Any, run: Any, some: Any
) -> None:
    env = Environment(PRESETS[config])
    schedule = workload.scheduled(env, knobs)
    inputs = [some(np.random.default_rng(0), schedule[1][0]), identity_weights(env)]
    want = stacked(workload, inputs[0])
    interpreted(schedule, inputs, want, env)
    found = run(stack_rows(workload, env, knobs), inputs, device="rtl")
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("by_columns", [True, False])
def test_transfers_take_long_bursts(by_columns: bool) -> None:
    """Rows of 3 heads of vit-tiny: 4,704 tiles, each loaded and stored, at half a tile per
    cycle."""
    env = Environment(PRESETS["pynq-extended"])
    workload = StackRows(3, 196, 4, by_columns)
    assert estimated_cycles(stack_rows(workload, env)) < 1.15 * (2 * 2352 + 2 * 2496)
