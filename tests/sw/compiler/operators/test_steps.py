"""Products with element-wise steps behind their requantization, and results stored as heads."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import PerChannelScale, Step
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import FixedPoint
from amaranth_vta.sw.compiler.operators.building_blocks.identity import identity_weights
from amaranth_vta.sw.compiler.operators.building_blocks.residual import Addition
from amaranth_vta.sw.compiler.operators.building_blocks.steps import (
    LINE_FACTOR,
    LookupTable,
    PerChannelLine,
)
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense
from amaranth_vta.sw.compiler.operators.permute import Permute
from amaranth_vta.sw.compiler.tuner.workload import choose, tuned
from tests.support.seeds import each_seed

ENV = Environment(PRESETS["tiny-extended"])
ADDITION = Addition(FixedPoint((3, 2), 5, 0, 4, -120, 119, scale=0.28))
TABLE = LookupTable(ENV.config.table_elements)
RISING, FALLING = PerChannelLine(LINE_FACTOR), PerChannelLine(-LINE_FACTOR)
CHAINS: list[tuple[Step, ...]] = [
    (RISING,),
    (FALLING, TABLE),
    (TABLE, RISING),
    (RISING, FALLING, TABLE),
    (RISING, ADDITION),
    (ADDITION, TABLE),
    (TABLE, RISING, ADDITION, FALLING, TABLE),
]


def per_channel(rng: np.random.Generator, channels: int, line: bool) -> Any:
    """Parameters int32 (channels, 4) of a requantization, or of a line."""
    bias = rng.integers(-90, 90, channels)
    scale = rng.uniform(0.5, 1.2, channels)
    if line:
        bias, scale = bias << 12, scale / LINE_FACTOR
    else:
        scale = scale / 10
    low = int(rng.integers(-128, -100))
    return te.requantization_parameters(bias, scale, int(rng.integers(-9, 9)), low, 120)


class Case:
    """A workload, random operands, and the results of its product followed by its steps."""

    def __init__(self, workload: Any, seed: int) -> None:
        rng, steps = np.random.default_rng(seed), workload.requantize.then
        self.function = tuned(workload, ENV, None, "product")
        alone = replace(workload, requantize=PerChannelScale())
        *given, y = alone.scheduled(ENV, choose(alone, ENV.config).best)[1]
        shape = given[-1].shape
        lines = [False, *(True for step in steps if isinstance(step, PerChannelLine))]
        parts = [per_channel(rng, prod(shape[:-3]) * shape[-1], line) for line in lines]
        tables = [rng.integers(-128, 128, 256) for step in steps if isinstance(step, LookupTable)]
        known = {
            arg.name: rng.integers(-20, 21, arg.shape).astype(np.int8)
            for arg in self.function.args
            if arg.name in ("x", "w", "residual")
        }
        known["identity"], known["addition"] = identity_weights(ENV), ADDITION.sum.parameters(ENV)
        for number, table in enumerate(tables):
            known[f"table{number or ''}"] = te.table_tiles(table, ENV.config)
        known["parameters"] = tiled(parts[0], shape)
        self.product = [known[arg.name] for arg in given]
        self.want = te.evaluate(y, dict(zip(given, self.product, strict=True))).astype(np.int64)
        assert np.unique(self.want).size > 8
        for step in steps:
            if isinstance(step, LookupTable):
                self.want = tables.pop(0)[self.want + 128]
            elif isinstance(step, Addition):
                self.want = step.sum.evaluate([known["residual"].astype(np.int64), self.want])
            else:
                parameters = np.moveaxis(tiled(parts[len(parts) - lines.count(True)], shape), -3, 0)
                lines.remove(True)
                along = parameters.reshape(REQUANTIZE_PARAMETERS, *_along(workload, shape))
                self.want = te.requantized((self.want * step.factor).astype(np.int32), *along)
        known["parameters"] = tiled(np.concatenate(parts, axis=1), (*shape[:-3], -1, *shape[-2:]))
        self.inputs = [known[arg.name] for arg in self.function.args[:-1]]
        self.alone = tuned(alone, ENV, None, "alone")


def _along(workload: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which parameters broadcast to results."""
    *channels, _, batch, block = shape
    ones = (1, 1) if isinstance(workload, Conv2d) else ()
    if isinstance(workload, Dense):
        *outer, outputs = channels
        return (*outer, 1, outputs, batch, block)
    return (1, *channels, *ones, batch, block)


def tiled(parameters: Any, shape: tuple[int, ...]) -> Any:
    """Parameters (channels, count) as tiles of ``shape`` (…, count, BATCH, BLOCK_OUT)."""
    tiles = parameters.reshape(*shape[:-3], 1, shape[-1], -1)
    return np.repeat(np.moveaxis(tiles, -1, -3), shape[-2], axis=-2).astype(np.int32)


@pytest.mark.parametrize("kind", ["conv2d", "dense"])
@each_seed(range(len(CHAINS)))
def test_steps_compute_what_separate_operators_compute(seed: int, kind: str, run: Any) -> None:
    rng, requantize = np.random.default_rng(seed), PerChannelScale(then=CHAINS[seed])
    rows, inputs, outputs = (int(rng.integers(1, most)) for most in (9, 4, 4))
    workload: Any = Dense(rows, inputs, outputs, requantize)
    if kind == "conv2d":
        workload = Conv2d(1, inputs, outputs, rows, 4, (1, 2), requantize, pads=(0, 1, 0, 0))
    case = Case(workload, seed)
    np.testing.assert_array_equal(run(case.function, case.inputs), case.want)
    operations = run.counters["alu_uops"]
    run(case.alone, case.product)
    more = sum(step.operations for step in requantize.then)
    assert operations == run.counters["alu_uops"] + prod(case.want.shape[:-2]) * more


def test_steps_run_on_the_rtl(run: Any) -> None:
    case = Case(Dense(5, 2, 3, PerChannelScale(then=CHAINS[-1])), 3)
    np.testing.assert_array_equal(run(case.function, case.inputs, device="rtl"), case.want)


@pytest.mark.parametrize(("groups", "shape"), [(1, (7, 3, 2)), (1, (5, 2, 1)), (3, (3, 6, 2))])
@pytest.mark.parametrize("then", [(), (TABLE,)])
def test_heads_are_stored_as_a_permutation_would_store_them(
    groups: int, shape: tuple[int, int, int], then: tuple[Step, ...], run: Any
) -> None:
    rows, outputs = (shape[0], shape[1] * shape[2]) if groups == 1 else shape[1:]
    plain = Dense(rows, 2, outputs, PerChannelScale(then=then), groups=groups)
    workload = plain.permuted(Permute(shape, (1, 0, 2)))
    assert workload is not None
    assert workload.permuted(Permute(shape, (1, 0, 2))) is None
    case, stored = Case(plain, 1), Case(workload, 1)
    want = case.want.reshape(*shape, *case.want.shape[-2:]).swapaxes(0, 1)
    got = run(stored.function, stored.inputs)
    np.testing.assert_array_equal(got, want)


def test_other_permutations_are_layers_of_their_own() -> None:
    product = Dense(6, 2, 4, PerChannelScale())
    for shape, order in (((6, 2, 2), (1, 2, 0)), ((3, 4, 2), (1, 0, 2)), ((6, 4), (1, 0))):
        assert product.permuted(Permute(shape, order)) is None
    heads = product.permuted(Permute((6, 2, 2), (1, 0, 2)))
    assert heads is not None
    assert heads.followed_by(RISING) is None
