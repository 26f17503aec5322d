"""Calibration: percentiles against sorted values, with memory independent of the number of
samples."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from amaranth_vta.quantize.calibration import Distribution, calibrate
from amaranth_vta.sw.runtime.network.onnx_runtime import run_session

# The accuracy of percentiles promised in docs/networks.md.
TOLERANCE = 1 / 128


def distribution(*parts: np.ndarray) -> Distribution:
    found = Distribution()
    for part in parts:
        found.add(part)
    return found


def exact(values: np.ndarray, percentile: float) -> tuple[float, float]:
    """The range of the middle ``percentile`` percent of the values."""
    cut = int(values.size * (100 - percentile) / 200)
    ordered = np.sort(values)
    return float(ordered[cut]), float(ordered[-1 - cut])


@given(
    hnp.arrays(
        np.float32,
        st.integers(1, 300),
        elements=st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-2, 2, width=32),
    ),
    st.sampled_from([50.0, 90.0, 99.0, 99.9]),
    st.integers(0, 300),
)
@settings(max_examples=200, deadline=None)
def test_a_range_ends_at_the_percentile_or_a_little_outside(
    values: np.ndarray, percentile: float, split: int
) -> None:
    found = distribution(values[:split], values[split:])
    low, high = found.range(percentile)
    assert found.range(None) == (values.min(), values.max())
    lowest, highest = exact(values, percentile)
    if max(abs(lowest), abs(highest)) > 1e-30:
        assert lowest - TOLERANCE * abs(lowest) - 1e-36 <= low <= lowest
        assert highest <= high <= highest + TOLERANCE * abs(highest) + 1e-36


def test_the_tails_of_a_range_are_on_their_sides() -> None:
    """One side has a long tail, but as many values are cut on each side."""
    rng = np.random.default_rng(1)
    values = np.concatenate([-rng.random(100_000), rng.exponential(5, 100_000)]).astype(np.float32)
    for sign in (1, -1):
        wanted = exact(sign * values, 98)
        assert distribution(sign * values).range(98) == pytest.approx(wanted, rel=TOLERANCE)


def test_a_percentile_that_leaves_only_zero_keeps_all_values() -> None:
    values = np.zeros(100_000, np.float32)
    values[:10] = 3
    assert distribution(values).range(99.9) == (0, 3)


def test_nan_is_not_counted() -> None:
    values = np.array([np.nan, 1, -2, np.nan], np.float32)
    found = distribution(values)
    assert found.range(None) == found.range(99.9) == (-2, 1)
    assert not found.is_huge
    assert distribution(values[:1]).is_huge
    assert distribution(np.array([1, -np.inf], np.float32)).is_huge


def test_masked_scores_are_told_from_ordinary_outliers() -> None:
    rng = np.random.default_rng(2)
    scores = rng.normal(0, 3, 1000).astype(np.float32)
    mask = np.where(rng.random(1000) < 0.2, -1e9, 0).astype(np.float32)
    assert distribution(scores + mask).is_masked
    assert not distribution(mask).is_masked  # 8 bits represent two values
    assert not distribution(scores).is_masked
    assert not distribution(np.append(scores, 200)).is_masked
    assert not distribution(np.exp(scores) / np.exp(scores).sum()).is_masked


MODEL = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]> g (float[1, 1000] x) => (float[1, 1000] z)
    { y = Tanh(x) z = Neg(y) }
""")


@pytest.fixture
def inferred() -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(MODEL)


def samples(count: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    for _ in range(count):
        yield {"x": rng.normal(0, 2, (1, 1000)).astype(np.float32)}


def test_distributions_are_those_of_all_samples(inferred: onnx.ModelProto) -> None:
    done: list[int] = []
    found = calibrate(inferred, samples(5), done.append)
    assert done == [1, 2, 3, 4, 5]
    x = np.concatenate([sample["x"] for sample in samples(5)])
    assert found["x"].range(None) == (x.min(), x.max())
    assert found["z"].range(None) == pytest.approx((-np.tanh(x.max()), -np.tanh(x.min())))
    assert all(item.counts.sum() == 5000 for item in found.values())


def test_tensors_of_one_sample_at_a_time_are_held(
    inferred: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[weakref.ref[np.ndarray]] = []

    def watched(
        session: onnxruntime.InferenceSession,
        names: Iterable[str],
        inputs: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        assert not any(item() is not None for item in left)
        found = run_session(session, names, inputs)
        left.extend(weakref.ref(item) for item in found.values())
        return found

    monkeypatch.setattr("amaranth_vta.quantize.calibration.run_session", watched)
    found = calibrate(inferred, samples(30))
    assert len(left) == 60
    assert all(item.bins.size <= 1 << 16 for item in found.values())
