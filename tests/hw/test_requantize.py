"""REQUANTIZE against NumPy's float32, where roundings meet and everywhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.operation import AluOp
from amaranth_vta.hw.requantize import RequantizingLane
from amaranth_vta.sim.testbench import simulate

Cases = dict[str, np.ndarray]


def reference(cases: Cases) -> np.ndarray:
    total = (cases["a"] + cases["bias"]).astype(np.int32)
    with np.errstate(over="ignore"):
        rounded = np.rint(total.astype(np.float32) * cases["scale"]).astype(np.float64)
    return np.clip(rounded + cases["zero_point"], cases["low"], cases["high"]).astype(np.int64)


def make_cases(totals: np.ndarray, scales: np.ndarray, seed: int) -> Cases:
    rng = np.random.default_rng(seed)
    count = len(totals)
    bias = rng.integers(-(1 << 31), 1 << 31, count).astype(np.int32)
    bounds = np.sort(rng.integers(-128, 128, (count, 2)), axis=1)
    bounds[rng.random(count) < 0.7] = (-128, 127)
    with np.errstate(over="ignore"):
        a = totals.astype(np.int32) - bias
    return {
        "a": a,
        "bias": bias,
        "scale": scales.astype(np.float32),
        "zero_point": rng.integers(-128, 128, count),
        "low": bounds[:, 0],
        "high": bounds[:, 1],
    }


def anything(rng: np.random.Generator, count: int) -> Cases:
    """Results within the bounds and far beyond them, scales from one to tiny."""
    scales = np.exp2(rng.uniform(-34, 4, count)).astype(np.float32)
    totals = np.where(
        rng.random(count) < 0.6,
        rng.normal(size=count) * 150 / scales,
        rng.integers(-(1 << 31), 1 << 31, count),
    )
    return make_cases(
        np.clip(np.rint(totals), -(1 << 31), (1 << 31) - 1).astype(np.int64), scales, 1
    )


def near_ties(rng: np.random.Generator, count: int) -> Cases:
    """The accumulators next to those whose product is an integer and a half."""
    kinds = [
        np.exp2(rng.uniform(-30, 0, count)),
        rng.integers(1, 4096, count) * np.exp2(rng.integers(-40, -5, count)),
        1 / rng.integers(1, 100_000, count),
    ]
    scales = np.choose(rng.integers(0, 3, count), kinds).astype(np.float32)
    halves = rng.integers(-200, 200, count) + 0.5
    totals = np.rint(halves / scales.astype(np.float64)) + rng.integers(-1, 2, count)
    return make_cases(np.clip(totals, -(1 << 31), (1 << 31) - 1).astype(np.int64), scales, 2)


def extremes(rng: np.random.Generator, count: int) -> Cases:
    """Around powers of two, where a mantissa overflows; the largest and smallest scales; zero."""
    powers = np.int64(1) << rng.integers(0, 32, count)
    totals = rng.choice([-1, 1], count) * powers + rng.integers(-2, 3, count)
    exponents = rng.choice([-149, -126, -60, -31, -24, -9, -8, -1, 0, 7, 40, 127], count)
    scales = np.where(rng.random(count) < 0.1, 0, np.exp2(exponents.astype(np.float64)))
    # A scale without an exponent counts as 0.
    scales = np.where(scales < 2.0**-126, 0, scales)
    return make_cases(np.clip(totals, -(1 << 31), (1 << 31) - 1), scales, 3)


@pytest.mark.parametrize("kind", [anything, near_ties, extremes])
def test_lane_rounds_as_float32_does(kind: Any) -> None:
    cases = kind(np.random.default_rng(7), 1500)
    want = reference(cases)
    dut = RequantizingLane()

    async def check(ctx: Any) -> None:
        ctx.set(dut.operation, AluOp.REQUANTIZE)
        for n in range(len(want)):
            scale = int(cases["scale"][n : n + 1].view(np.uint32)[0])
            ctx.set(dut.a, int(cases["a"][n]))
            ctx.set(
                dut.parameters,
                {
                    "bias": int(cases["bias"][n]),
                    "mantissa": scale & (1 << 23) - 1,
                    "exponent": scale >> 23 & 0xFF,
                    "sign": 0,
                    "zero_point": int(cases["zero_point"][n]),
                    "low": int(cases["low"][n]),
                    "high": int(cases["high"][n]),
                    "unused": n & 0xFF,
                },
            )
            await ctx.tick().repeat(dut.LATENCY)
            case = {name: values[n] for name, values in cases.items()}
            assert ctx.get(dut.result) == want[n], case

    simulate(dut, check)
