"""Weighted sums of two tensors, as in residual additions: exact for all pairs of values, or
refused.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks import exact_constants
from amaranth_vta.sw.compiler.operators.building_blocks.exact_constants import (
    added,
    addition_constants,
)
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import (
    FixedPoint,
    NotExact,
    Quantized,
)
from amaranth_vta.sw.compiler.operators.building_blocks.identity import identity_weights
from amaranth_vta.sw.compiler.operators.weighted_sum import WeightedSum, weighted_sum
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile

CONFIGS = ["tiny", "batch2", "pynq", "block32", "tiny-extended", "pynq-extended"]
# Scales and zero points: arbitrary, of activations with minimum 0, and with ties.
CASES = [
    (Quantized(0.0237, 3), Quantized(0.0412, -7), Quantized(0.0451, 12)),
    (Quantized(0.031137, -128), Quantized(0.019171, -128), Quantized(0.040213, -128)),
    (Quantized(0.25), Quantized(0.5), Quantized(1.0, 5)),
]
# Scales for which float32 rounds some sums differently from every linear function.
CORRECTED = [
    (Quantized(0.9133040904998779), Quantized(0.8964420557022095), Quantized(1.0132163763046265)),
    (
        Quantized(0.3028271794319153, -107),
        Quantized(1.6092573404312134, -29),
        Quantized(1.1698086261749268, -23),
    ),
]


def weights(constants: FixedPoint, env: Environment) -> list[Any]:
    """The arguments between operands and output."""
    by_gemm = WeightedSum(1, constants).by_gemm(env)
    return [
        *([identity_weights(env)] if by_gemm else []),
        *([constants.parameters(env)] if constants.parameter_count else []),
    ]


def test_the_addition_is_that_of_float32() -> None:
    a, b, y = CASES[0]
    table = added(a, b, y, -100, 90)
    assert table.shape == (256, 256)
    for first, second in ((-128, -128), (127, 127), (0, -1), (17, -90)):
        x = np.float32(first - 3) * np.float32(0.0237) + np.float32(second + 7) * np.float32(0.0412)
        want = min(max(round(float(x / np.float32(0.0451))) + 12, -100), 90)
        assert table[first + 128, second + 128] == want


@pytest.mark.parametrize("config", ["pynq", "pynq-extended"])
def test_most_additions_have_constants_that_are_exact(config: str) -> None:
    rng = np.random.default_rng(1)
    found, begin = 0, time.process_time()
    for _ in range(40):
        step = rng.uniform(0.01, 0.1)
        a, b, y = (
            Quantized(step * size, int(rng.integers(-128, 128)))
            for size in (*rng.uniform(0.2, 1.2, 2), 1.0)
        )
        try:
            constants = addition_constants(a, b, y, PRESETS[config], added(a, b, y, -128, 100))
        except NotExact:
            continue
        found += 1
        pairs = np.meshgrid(np.arange(-128, 128), np.arange(-128, 128), indexing="ij")
        np.testing.assert_array_equal(constants.evaluate(pairs), added(a, b, y, -128, 100))
    assert found >= 38
    assert (time.process_time() - begin) / 40 < 0.5


def test_constants_that_are_not_exact_are_found_out() -> None:
    a, b, y = CASES[0]
    constants = addition_constants(a, b, y, PRESETS["pynq"], added(a, b, y))
    wrong = replace(constants, factors=(constants.factors[0] + (1 << 12), constants.factors[1]))
    pairs = np.meshgrid(np.arange(-128, 128), np.arange(-128, 128), indexing="ij")
    assert (wrong.evaluate(pairs) != added(a, b, y)).any()


def test_what_the_search_finds_is_checked_on_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    right = FixedPoint.first_sums
    monkeypatch.setattr(FixedPoint, "first_sums", lambda *args: right(*args) + (1 << 16))
    wanted = added(*CASES[0], low=-120)  # no other test searches it, so it is not memoized
    with pytest.raises(NotExact):
        addition_constants(*CASES[0], PRESETS["pynq"], wanted)


def test_constants_are_searched_once_for_equal_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, y = Quantized(0.0311, 1), Quantized(0.0273, -2), Quantized(0.0419, 3)
    thirds = Quantized(0.3, 9), Quantized(0.3, 9), Quantized(0.6, 7)
    first = addition_constants(a, b, y, PRESETS["pynq"], added(a, b, y))
    with pytest.raises(NotExact) as refused:
        addition_constants(*thirds, PRESETS["pynq"], added(*thirds))
    monkeypatch.setattr(exact_constants, "fixed_point", None)
    assert addition_constants(a, b, y, PRESETS["pynq"], added(a, b, y)) == first
    with pytest.raises(NotExact, match=re.escape(str(refused.value))):
        addition_constants(*thirds, PRESETS["pynq"], added(*thirds))
    with pytest.raises(TypeError):  # other results are another search
        addition_constants(a, b, y, PRESETS["pynq"], added(a, b, y, high=99))


def test_an_addition_without_constants_is_refused_with_a_sentence() -> None:
    # float32 rounds ties of these products in either direction.
    huge = Quantized(1e8), Quantized(1.0), Quantized(1.0)
    thirds = Quantized(0.3), Quantized(0.3), Quantized(0.6, 7)
    with pytest.raises(NotExact, match=r"of scales 0\.3 and 0\.3 to 0\.6: no factors"):
        addition_constants(*thirds, PRESETS["pynq"], added(*thirds))
    with pytest.raises(NotExact, match="stores 4 bits, not 8"):
        addition_constants(*CASES[0], PRESETS["int4"], added(*CASES[0]))
    with pytest.raises(NotExact, match="do not fit 32 bits"):
        addition_constants(*huge, PRESETS["pynq"], added(*huge))


@pytest.mark.parametrize("in_reverse", [False, True])
@pytest.mark.parametrize("case", range(len(CORRECTED)))
def test_additions_with_corrections_are_exact_for_all_pairs(
    case: int, in_reverse: bool, run: Any
) -> None:
    a, b, y = CORRECTED[case]
    with pytest.raises(NotExact, match="no factors"):
        addition_constants(a, b, y, PRESETS["pynq"], added(a, b, y))
    assert_exact_for_all_pairs("pynq-extended", (a, b, y), case, run, in_reverse)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_residual_additions_are_exact_for_all_pairs(config: str, case: int, run: Any) -> None:
    assert_exact_for_all_pairs(config, CASES[case], case, run)


def assert_exact_for_all_pairs(
    config: str,
    scales: tuple[Quantized, Quantized, Quantized],
    case: int,
    run: Any,
    in_reverse: bool = False,
) -> None:
    machine = PRESETS[config]
    env = Environment(machine)
    a, b, y = scales
    constants = addition_constants(a, b, y, machine, added(a, b, y))
    if in_reverse:
        constants = constants.reversed()
    vectors = 65536 // (machine.batch * machine.block_out)
    if config.startswith("tiny"):
        vectors = 1000  # chosen pairs, in many tiles
    function = weighted_sum(WeightedSum(vectors, constants), env)
    count = vectors * machine.batch * machine.block_out
    pairs = np.random.default_rng(case).permutation(65536)[:count]
    shape = (vectors, machine.batch, machine.block_out)
    first, second = ((part - 128).astype(np.int8).reshape(shape) for part in divmod(pairs, 256))
    assert (constants.parameter_count == 0) == (case == 2 and "extended" not in config)
    operands = [second, first] if in_reverse else [first, second]
    got = run(function, [*operands, *weights(constants, env)], order=f"random:{case}")
    want = added(a, b, y)[first.astype(int) + 128, second.astype(int) + 128]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("scales", [CASES[0], CASES[2], *CORRECTED])
def test_a_product_but_the_first_is_an_operation_with_its_sum(
    scales: tuple[Quantized, Quantized, Quantized], run: Any, some: Callable[..., Any]
) -> None:
    """The number of micro-ops is as predicted, and the results equal those of separate
    operations."""
    a, b, y = scales
    extended = PRESETS["tiny-extended"]
    found = {}
    for config in (extended, replace(extended, multiply_add=0)):
        constants = addition_constants(a, b, y, config, added(a, b, y))
        assert constants.joined == config.multiply_add
        env, vectors = Environment(config), 9
        knobs = OutputTile((vectors,), in_turn=True)
        function = weighted_sum(WeightedSum(vectors, constants), env, knobs)
        rng = np.random.default_rng(4)
        first, second = (some(rng, arg) for arg in function.args[:2])
        got = run(function, [first, second, *weights(constants, env)])
        want = added(a, b, y)[first.astype(int) + 128, second.astype(int) + 128]
        np.testing.assert_array_equal(got, want)
        assert run.counters["alu_uops"] == vectors * constants.operations
        found[constants.joined] = constants
    assert found[True] == replace(found[False], joined=True)
    assert found[True].operations == found[False].operations - 1
    assert found[True].without_parameters().operations == found[True].operations


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
@pytest.mark.parametrize("knobs", [OutputTile((5,)), OutputTile((2,), in_turn=True)])
def test_no_pass_changes_what_a_residual_addition_does(
    config: str, knobs: OutputTile, interpreted: Any, run: Any, some: Callable[..., Any]
) -> None:
    assert_no_pass_changes(config, CASES[knobs.in_turn], knobs, interpreted, run, some)


def test_no_pass_changes_what_an_addition_with_corrections_does(
    interpreted: Any, run: Any, some: Callable[..., Any]
) -> None:
    knobs = OutputTile((2,), in_turn=True)
    assert_no_pass_changes("tiny-extended", CORRECTED[0], knobs, interpreted, run, some)


def assert_no_pass_changes(
    config: str,
    scales: tuple[Quantized, Quantized, Quantized],
    knobs: OutputTile,
    interpreted: Any,
    run: Any,
    some: Callable[..., Any],
) -> None:
    env = Environment(PRESETS[config])
    a, b, y = scales
    constants = addition_constants(a, b, y, env.config, added(a, b, y))
    workload = WeightedSum(7, constants)
    schedule = workload.scheduled(env, knobs)
    rng = np.random.default_rng(0)
    first, second = (some(rng, arg) for arg in schedule[1][:2])
    want = added(a, b, y)[first.astype(int) + 128, second.astype(int) + 128].astype(np.int8)
    inputs = [first, second, *weights(constants, env)]
    interpreted(schedule, inputs, want, env)
    function = weighted_sum(workload, env, knobs)
    np.testing.assert_array_equal(run(function, inputs, device="rtl"), want)


@pytest.mark.parametrize(
    ("config", "one", "other"),
    [
        (
            "pynq",
            FixedPoint((123_456, -654_321), 7_000_000, 20, 3, -128, 127),
            FixedPoint((99_999, 70_000), -88_888, 20, 3, -128, 127),
        ),
        (
            "pynq",
            FixedPoint((1, 40_000), 0, 12, 0, -5, 100, to_even=1),
            FixedPoint((1, 50_000), 0, 12, 0, -5, 100, to_even=1),
        ),
        (
            "pynq-extended",
            FixedPoint((40_000, 300), 5, 16, 4, -100, 100, scale=2.0**-16),
            FixedPoint((80_000, 300), 9, 12, 1, -128, 127, scale=2.0**-12),
        ),
        (
            "pynq-extended",
            *(
                FixedPoint(
                    *((80_000, factor), 9, 12, 1, -128, 127),
                    scale=2.0**-12,
                    corrections=tuple(factor * n % 99 for n in range(256)),
                    table=PRESETS["pynq-extended"].table_elements,
                )
                for factor in (50_000, 60_000)
            ),
        ),
        (
            # The factor of a fused product and sum is a parameter even if it would fit an
            # immediate.
            "pynq-extended",
            FixedPoint((40_000, 300), 5, 16, 4, -100, 100, scale=2.0**-16, joined=True),
            FixedPoint((80_000, 300), 9, 12, 1, -128, 127, scale=2.0**-12, joined=True),
        ),
    ],
)
def test_functions_do_not_depend_on_what_is_a_parameter(
    config: str, one: FixedPoint, other: FixedPoint
) -> None:
    env = Environment(PRESETS[config])
    first, second = (WeightedSum(4, constants) for constants in (one, other))
    assert first.without_parameters() == second.without_parameters()
    built = weighted_sum(first.without_parameters(), env, name="sum")
    for workload in (first, second):
        alone = weighted_sum(workload, env, name="sum")
        assert str(alone.lowered) == str(built.lowered)
        assert alone.source == built.source


def test_functions_depend_on_immediates() -> None:
    one = FixedPoint((3, 40_000), 0, 12, 0, -5, 100)
    changes: list[dict[str, Any]] = [{"factors": (4, 40_000)}, {"shift": 11}, {"low": -6}]
    for change in changes:
        other = replace(one, **change)
        assert one.without_parameters() != other.without_parameters()
