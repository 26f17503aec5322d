"""Calibrates in one pass over the samples: `calibrate` collects a `Distribution` per tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session, with_outputs
from amaranth_vta.sw.runtime.network.tile_layout import Array

# One bin per upper half of a float32: sign, exponent and 7 bits of the mantissa. So the width of a
# bin is less than 1/128 of its magnitude, whatever the range of the tensor.
_BINS = 1 << 16
_SIGN, _INFINITY = 0x8000, 0x7F80
# Half of the float32 range. A larger range overflows when it is dequantized.
_HUGE = float(np.finfo(np.float32).max) / 2
# Number of quantization steps in an 8-bit range.
_STEPS = 255
# The smallest magnitude whose scale is a normal float32.
_TINY = _STEPS * float(np.finfo(np.float32).tiny)


@dataclass
class Distribution:
    """The values of one tensor in all samples: a histogram whose size does not depend on the number
    of samples. NaN is not counted.

    ``bins`` are the upper halves, as bits, of the float32 values that occur; ``counts`` is the
    number of occurrences of each.
    """

    dtype: np.dtype = field(default_factory=lambda: np.dtype(np.float32))
    low: float = np.inf
    high: float = -np.inf
    bins: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, values: Array) -> None:
        """Count ``values``, floats of any shape."""
        self.dtype = values.dtype
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        counts = np.bincount(flat.view(np.uint32) >> 16, minlength=_BINS)
        if flat.size and np.isnan(flat.min()):
            flat = flat[~np.isnan(flat)]
            counts[(np.arange(_BINS) & ~_SIGN) >= _INFINITY] = 0
        if flat.size:
            self.low = min(self.low, float(flat.min()))
            self.high = max(self.high, float(flat.max()))
        counts[self.bins] += self.counts
        self.bins = np.flatnonzero(counts)
        self.counts = counts[self.bins]

    @property
    def reach(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))

    @property
    def is_zero(self) -> bool:
        """Whether all values are zero, or too small for an 8-bit scale."""
        return self.reach < _TINY

    @property
    def is_huge(self) -> bool:
        """Whether the values include infinities or exceed half the float32 range, or there are
        none.
        """
        return not self.reach < _HUGE

    @property
    def is_masked(self) -> bool:
        """Whether 8 bits would resolve only outliers, such as scores that a mask has set to -1e9:
        all values of less than half the largest magnitude are below one step, and not all are zero.
        """
        step = (max(self.high, 0) - min(self.low, 0)) / _STEPS
        lower, upper = _magnitudes(self.bins)
        small = upper < self.reach / 2
        return bool(small.any() and 0 < upper[small].max() < step and lower[small].max() > 0)

    def range(self, percentile: float | None) -> tuple[float, float]:
        """The range that covers ``percentile`` percent of the values, with equal numbers of
        outliers below and above; None covers all values.

        Each end is the exact percentile, or outside of it by less than 1/128 of its magnitude. If
        the percentile would leave only zero, the range covers all values too.
        """
        if percentile is None:
            return self.low, self.high
        magnitude, _ = _magnitudes(self.bins)
        order = np.argsort(np.where(self.bins & _SIGN, -magnitude - 1e-50, magnitude))
        bins, reached = self.bins[order], np.cumsum(self.counts[order])
        total = reached[-1]
        cut = int(total * (100 - percentile) / 200)
        lowest = bins[np.searchsorted(reached, cut, side="right")]
        highest = bins[np.searchsorted(reached, total - 1 - cut, side="right")]
        low, high = max(self.low, _end(lowest, -1)), min(self.high, _end(highest, 1))
        only_zero = max(abs(low), abs(high)) < _TINY
        return (self.low, self.high) if only_zero else (low, high)


def _magnitudes(bins: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """The smallest and the largest magnitude in each of ``bins``."""
    bits = ((bins & ~_SIGN) << 16).astype(np.uint32)
    return _magnitude(bits), _magnitude(bits + np.uint32(0xFFFF))


def _magnitude(bits: npt.NDArray[np.uint32]) -> Array:
    """The float32 values of ``bits`` as float64; infinity for NaN."""
    return np.where(bits < _INFINITY << 16, bits.view(np.float32), np.inf).astype(np.float64)


def _end(bin: np.int64, side: int) -> float:
    """The outer edge of a bin: its smallest value if ``side`` is -1, its largest if 1."""
    lower, upper = (edge.item() for edge in _magnitudes(np.array([bin])))
    if bin & _SIGN:
        return -float(upper if side < 0 else lower)
    return float(lower if side < 0 else upper)


def calibrate(
    model: onnx.ModelProto,
    samples: Iterable[Mapping[str, Array]],
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Distribution]:
    """Runs ``model`` on ``samples`` and collects the distributions of its float tensors, whose
    types must have been inferred.

    Holds the tensors of one sample at a time. ``progress`` is called after each sample with the
    number of samples done.
    """
    initializers = {item.name for item in model.graph.initializer}
    known = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    names = [
        name
        for name, kind in {i.name: i.type.tensor_type.elem_type for i in known}.items()
        if kind in (TensorProto.FLOAT, TensorProto.FLOAT16) and name not in initializers
    ]
    given = {item.name for item in model.graph.input}
    made = {name for node in model.graph.node for name in node.output}
    inputs = [name for name in names if name in given]
    names = [name for name in names if name in made]
    session = exact_session(with_outputs(model, names))
    found = {name: Distribution() for name in (*inputs, *names)}

    def count(sample: Mapping[str, Array]) -> None:
        # A function, so that its tensors are freed before the next sample runs.
        for name in inputs:
            found[name].add(sample[name])
        for name, values in run_session(session, names, sample).items():
            found[name].add(values)

    for done, sample in enumerate(samples, 1):
        count(sample)
        progress(done)
    return found
