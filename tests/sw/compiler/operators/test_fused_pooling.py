"""Convolutions fused with a max pooling: the results of two operators."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    PerChannelScale,
    RoundingShift,
)
from amaranth_vta.sw.compiler.operators.building_blocks.pooling import Phases, Pooling
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.max_pool2d import MaxPool2d
from amaranth_vta.sw.compiler.tuner.product_walk import estimated
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling
from amaranth_vta.sw.compiler.tuner.workload import tuned
from amaranth_vta.sw.runtime.runtime import Runtime
from tests.support.runtimes import estimated_cycles
from tests.support.seeds import each_seed


def random_case(seed: int, config: str) -> tuple[Conv2d, Environment]:
    """Random sizes, with gaps between windows and unused results after the last window. Maxima are
    computed before or after requantization.
    """
    rng = np.random.default_rng(seed)
    kernel = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    alone = Conv2d(
        batch=int(rng.integers(1, 3)),
        inputs=int(rng.integers(1, 4)),
        outputs=int(rng.integers(1, 4)),
        height=int(rng.integers(6, 10)),
        width=int(rng.integers(6, 10)),
        kernel=kernel,
        requantize=RoundingShift(4, -128, 127, wraps=seed % 2 == 1),
        strides=(1, int(rng.integers(1, 3))),
        pads=tuple(int(rng.integers(0, size)) for size in (*kernel, *kernel)),  # type: ignore[arg-type]
    )
    window = (int(rng.integers(1, 4)), int(rng.integers(2, 3)))
    strides = (window[0] + int(rng.integers(0, 2)), window[1] + int(rng.integers(0, 2)))
    sizes = (alone.output_height, alone.output_width)
    output = tuple(
        (size - taps) // step + 1 for size, taps, step in zip(sizes, window, strides, strict=True)
    )
    pooling = Pooling(output, window, strides)  # type: ignore[arg-type]
    return replace(alone, pooling=pooling), Environment(PRESETS[config])


def carrying_case(seed: int, config: str) -> tuple[Conv2d, Environment]:
    """Windows whose rows overlap, and which may extend beyond the results."""
    alone, env = random_case(seed, config)
    rng = np.random.default_rng(seed)
    alone, size = replace(alone, pooling=None), None
    while True:
        alone = replace(alone, height=int(rng.integers(5, 12)), width=int(rng.integers(5, 12)))
        size = alone.output_height, alone.output_width
        window = (int(rng.integers(2, 4)), int(rng.integers(1, 4)))
        strides = (int(rng.integers(1, window[0])), int(rng.integers(1, 4)))
        pads = tuple(int(rng.integers(0, taps)) for taps in window)
        output = tuple(
            (count + pad + int(rng.integers(0, taps)) - taps) // step + 1
            for count, taps, step, pad in zip(size, window, strides, pads, strict=True)
        )
        pooling = Pooling(output, window, strides, pads)  # type: ignore[arg-type]
        if min(output) > 0 and pooling.is_possible(size):
            return replace(alone, pooling=pooling), env


def phased_case(seed: int, config: str) -> tuple[Conv2d, Environment, Tiling]:
    """Windows that share at most one row and one column, so that maxima replace sums in a tile of
    random size.
    """
    rng, env = np.random.default_rng(seed), Environment(PRESETS[config])
    for _ in range(10_000):
        alone = Conv2d(
            batch=int(rng.integers(1, 3)),
            inputs=int(rng.integers(1, 3)),
            outputs=int(rng.integers(1, 4)),
            height=int(rng.integers(3, 12)),
            width=int(rng.integers(3, 12)),
            kernel=(int(rng.integers(1, 3)), int(rng.integers(1, 3))),
            requantize=RoundingShift(4, -128, 127),
            strides=(int(rng.integers(1, 3)), int(rng.integers(1, 3))),
            row_sums=bool(rng.integers(0, 2)),
        )
        window = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
        strides = (int(rng.integers(1, 3)), int(rng.integers(1, 3)))
        pads = tuple(int(rng.integers(0, taps)) for taps in window)
        size = alone.output_height, alone.output_width
        output = tuple(
            (count + pad + int(rng.integers(0, taps)) - taps) // step + 1
            for count, taps, step, pad in zip(size, window, strides, pads, strict=True)
        )
        pooling = Pooling(output, window, strides, pads)  # type: ignore[arg-type]
        if min(output) < 1 or strides == (1, 1) or not pooling.is_possible(size):
            continue
        workload = replace(alone, pooling=pooling)
        knobs = Tiling(
            int(rng.integers(1, workload.outputs + 1)),
            1 if workload.carries else int(rng.integers(1, output[0] + 1)),
            int(rng.integers(1, output[1] + 1)),
            workload.inputs,
            workload.kernel[0],
            ahead=bool(rng.integers(0, 2)),
            in_turn=workload.carries or bool(rng.integers(0, 2)),
        )
        if workload.phase_steps(knobs) == strides and workload.fits(knobs, env.config):
            return workload, env, knobs
    raise AssertionError("no workload has phases")


def operands(args: Any, some: Callable[..., Any], seed: int) -> list[Any]:
    """Values of all arguments but the output."""
    rng = np.random.default_rng(seed)
    x, w, *row_weights = (np.clip(some(rng, arg), -16, 16) for arg in (*args[:2], *args[3:-1]))
    return [x, w, rng.integers(-90, 90, args[2].shape).astype(np.int32), *row_weights]


def wanted(workload: Conv2d, env: Environment, inputs: list[Any]) -> Any:
    """The reference: the convolution as an expression, then the maxima of its windows."""
    args = replace(workload, pooling=None).scheduled(env, Tiling(1, 1, 1, 1, 1))[1]
    image = te.evaluate(args[-1], dict(zip(args, inputs, strict=False)))
    assert len(np.unique(image)) > 3
    assert workload.pooling is not None
    (rows, columns), strides = workload.pooling.output, workload.pooling.strides
    taps = np.ndindex(workload.pooling.kernel)
    before = [(pad, 8) for pad in workload.pooling.pads]
    image = np.pad(image, [(0, 0), (0, 0), *before, (0, 0), (0, 0)], constant_values=-128)
    return np.max(
        [image[:, :, dy :: strides[0], dx :: strides[1]][:, :, :rows, :columns] for dy, dx in taps],
        axis=0,
    )


@pytest.mark.parametrize("config", ["tiny", "tiny-extended", "pynq-extended"])
@pytest.mark.parametrize("seed", range(6))
def test_random_ones_give_what_two_operators_give(
    seed: int, config: str, run: Any, some: Callable[..., Any]
) -> None:
    workload, env = random_case(seed, config)
    function = tuned(workload, env, None, "fused")
    inputs = operands(function.args, some, seed)
    want = wanted(workload, env, inputs)
    np.testing.assert_array_equal(run(function, inputs, order=f"random:{seed}"), want)


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
def test_no_pass_changes_them_nor_does_the_rtl(
    config: str, interpreted: Any, run: Any, some: Callable[..., Any]
) -> None:
    workload, env = random_case(3, config)
    in_turn = bool(env.config.overlap)
    whole = (workload.inputs, workload.kernel[0])
    knobs = Tiling(1, 2, 1, *whole, ahead=True, in_turn=in_turn)
    schedule = workload.scheduled(env, knobs)
    inputs = operands(schedule[1], some, 3)
    want = wanted(workload, env, inputs).astype(np.int8)
    interpreted(schedule, inputs, want, env)
    function = tuned(workload, env, knobs, "fused")
    np.testing.assert_array_equal(run(function, inputs, device="rtl"), want)


@pytest.mark.parametrize("config", ["tiny-extended", "pynq-extended"])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("row_sums", [False, True])
def test_rows_are_carried_over_to_the_next_tile(
    row_sums: bool, seed: int, config: str, run: Any, some: Callable[..., Any]
) -> None:
    workload, env = carrying_case(seed, config)
    workload = replace(workload, row_sums=row_sums)
    function = tuned(workload, env, None, "fused")
    inputs = operands(function.args, some, seed)
    want = wanted(workload, env, inputs)
    np.testing.assert_array_equal(run(function, inputs, order=f"random:{seed}"), want)


@pytest.mark.parametrize(("seed", "row_sums"), [(0, False), (1, False), (1, True)])
def test_no_pass_changes_what_is_carried_nor_does_the_rtl(
    seed: int, row_sums: bool, interpreted: Any, run: Any, some: Callable[..., Any]
) -> None:
    workload, env = carrying_case(seed, "tiny-extended")
    workload = replace(workload, row_sums=row_sums)
    whole = (workload.inputs, workload.kernel[0])
    knobs = Tiling(1, 1, 2, *whole, ahead=True, in_turn=True)
    schedule = workload.scheduled(env, knobs)
    inputs = operands(schedule[1], some, seed)
    want = wanted(workload, env, inputs).astype(np.int8)
    interpreted(schedule, inputs, want, env)
    function = tuned(workload, env, knobs, "fused")
    np.testing.assert_array_equal(run(function, inputs, device="rtl"), want)


@pytest.mark.parametrize(
    ("kernel", "first"),
    [
        (2, "image[2*i0, i1, i2, i3]"),
        (3, "if_then_else(i0 < 1, image[2*i0, i1, i2, i3], image[2*i0 - 1, i1, i2, i3])"),
    ],
)
def test_windows_begin_with_a_tap_of_all_or_with_what_is_carried(kernel: int, first: str) -> None:
    """The first windows extend above the image."""
    env = Environment(PRESETS["tiny-extended"])
    image = te.placeholder((6, 1, env.BATCH, env.BLOCK_OUT), "image", env.acc_dtype)
    pooled = Pooling((3, 1), (kernel, 1), (2, 1), (1, 0)).stages(Phases.whole(image), env)
    assert str(pooled.stages[0].op.body) == first


@pytest.mark.parametrize("config", ["tiny-extended", "pynq-extended"])
@each_seed(range(40), daily=8)
def test_maxima_replace_sums(seed: int, config: str, run: Any, some: Callable[..., Any]) -> None:
    """Each tiling that fits can be built, and no accumulator is cleared."""
    workload, env, knobs = phased_case(seed, config)
    function = tuned(workload, env, knobs, "fused")
    inputs = operands(function.args, some, seed)
    want = wanted(workload, env, inputs)
    np.testing.assert_array_equal(run(function, inputs, order=f"random:{seed}"), want)
    cleared = re.findall(r"dst=(\w+).*op=MUL, immediate=0", str(function.lowered))
    # `RoundingShift` clears an accumulator too.
    assert all(name.startswith("pool_odd") for name in cleared)


@pytest.mark.parametrize("seed", [2, 5])
def test_no_pass_changes_phases_nor_does_the_rtl(
    seed: int, interpreted: Any, run: Any, some: Callable[..., Any]
) -> None:
    workload, env, knobs = phased_case(seed, "tiny-extended")
    schedule = workload.scheduled(env, knobs)
    inputs = operands(schedule[1], some, seed)
    want = wanted(workload, env, inputs).astype(np.int8)
    interpreted(schedule, inputs, want, env)
    function = tuned(workload, env, knobs, "fused")
    np.testing.assert_array_equal(run(function, inputs, device="rtl"), want)


def test_sums_are_whole_where_maxima_cannot_replace_them() -> None:
    """Where windows share each row, where the middle row of the last windows is outside of the
    image, and where there are many phases.
    """
    for window, strides, size in (((4, 3), (2, 2), 8), ((3, 3), (2, 2), 5), ((3, 3), (3, 3), 9)):
        pooling = Pooling((3, 3), window, strides)
        assert pooling.steps((size, 9)) == (1, 1)
    assert Pooling((3, 3), (3, 3), (2, 2)).steps((7, 7)) == (2, 2)


def test_no_product_of_a_row_is_computed_twice() -> None:
    env = Environment(PRESETS["pynq-extended"])
    pooling = Pooling((8, 8), (3, 3), (2, 2), (1, 1))
    workload = Conv2d(1, 10, 4, 16, 16, (1, 1), PerChannelScale(), pooling=pooling)
    runtime = Runtime(FunctionalDevice(env.config, 1 << 20))
    function = tuned(workload, env, None, "fused")
    function.run_on(runtime, *(runtime.allocate(function.nbytes(i)) for i in range(4)))
    assert runtime.synchronize().counters["gemm_uops"] == 10 * 4 * 16 * 16


def test_they_take_fewer_cycles_than_two_operators() -> None:
    """The comparisons overlap with the products of the next tile."""
    env = Environment(PRESETS["pynq-extended"])
    alone = Conv2d(1, 2, 4, 16, 16, (3, 3), PerChannelScale(), pads=(1, 1, 1, 1))
    for window, pads in (((2, 2), (0, 0)), ((3, 3), (1, 1))):
        pooling = Pooling((8, 8), window, (2, 2), pads)
        pool = MaxPool2d(1, 4, 16, 16, window, (2, 2), (*pads, 0, 0))
        parts: list[Any] = [alone, pool]
        two = sum(estimated_cycles(tuned(part, env, None, "part")) for part in parts)
        one = estimated_cycles(tuned(replace(alone, pooling=pooling), env, None, "fused"))
        assert one < 0.9 * two, window


# The first layers of ShuffleNetV2, and of SqueezeNet, whose weights have zero points.
FIRST_LAYERS = {
    "shufflenet": Conv2d(
        *(1, 2, 2, 112, 112, (1, 1), PerChannelScale()),
        pooling=Pooling((56, 56), (3, 3), (2, 2), (1, 1)),
        is_first=True,
    ),
    "squeezenet": Conv2d(
        *(1, 2, 4, 112, 112, (1, 1), PerChannelScale()),
        row_sums=True,
        pooling=Pooling((55, 55), (3, 3), (2, 2)),
        is_first=True,
    ),
}


@pytest.mark.parametrize(("network", "most"), [("shufflenet", 70_000), ("squeezenet", 195_000)])
def test_the_alu_takes_six_comparisons_per_maximum(network: str, most: int) -> None:
    """Comparisons of separate accumulators, which are cleared first, took 114,948 and 279,926
    cycles.
    """
    env, workload = Environment(PRESETS["pynq-extended"]), FIRST_LAYERS[network]
    assert workload.pooling is not None
    assert workload.pooling.operations((2, 2)) == (0, 6)
    assert estimated_cycles(tuned(workload, env, None, network), 1 << 24) < most


@pytest.mark.parametrize(("outputs", "columns"), [(4, 14), (4, 19), (2, 19), (2, 28)])
def test_the_tuner_knows_the_rate_of_comparisons(outputs: int, columns: int) -> None:
    """Half the tiles are in the bank without copies of sources. Columns of tiles, which begin in
    the same bank, may differ in width.
    """
    env, workload = Environment(PRESETS["pynq-extended"]), FIRST_LAYERS["squeezenet"]
    tiling = Tiling(outputs, 1, columns, 2, 1, ahead=True, in_turn=True)
    found = estimated_cycles(tuned(workload, env, tiling, "squeezenet"), 1 << 24)
    assert estimated(workload, env.config, tiling).cycles == pytest.approx(found, rel=0.015)
