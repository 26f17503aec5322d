"""Transposed convolutions as one convolution for all phases of the output.

With stride s, the outputs s · q + p of phase p are a convolution of the input with every s-th tap:
the sum over t of x[q - t] · w[s · t + p]. The phases are channels of one QLinearConv, which
Reshape, Transpose and Reshape interleave. The sums, and so the results, are those of a QLinearConv
of the input with zero points inserted between its pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .network import Array

# From (N, phases, phases, C, H, W) to (N, C, H, phases, W, phases).
PIXELS_OF_PHASES = [0, 3, 4, 1, 5, 2]


@dataclass(frozen=True)
class PhaseAxis:
    """One spatial axis: the number of ``inputs``, the ``kernel`` size with dilation, the
    ``stride``, and the number of ``results`` after ``before`` have been cropped at the start."""

    inputs: int
    kernel: int
    stride: int
    before: int
    results: int

    @property
    def taps(self) -> int:
        """Taps per phase."""
        return -(-self.kernel // self.stride)

    @property
    def steps(self) -> int:
        """Results per phase, cropped ones included."""
        return max(self.inputs, -(-(self.before + self.results) // self.stride))


Axes = tuple[PhaseAxis, PhaseAxis]


def phase_kernels(weights: Array, axes: Axes, fill: int) -> Array:
    """Weights (phases · outputs, inputs, taps, taps) of all phases, with the taps reversed for a
    convolution, of ``weights`` (outputs, inputs, height, width). ``fill`` stands for taps beyond
    the kernel."""
    (rows, columns), (outputs, inputs, height, width) = axes, weights.shape
    sizes = rows.taps * rows.stride, columns.taps * columns.stride
    wide = np.full((outputs, inputs, *sizes), fill, weights.dtype)
    wide[:, :, :height, :width] = weights
    cut = wide.reshape(outputs, inputs, rows.taps, rows.stride, columns.taps, columns.stride)
    phases = cut[:, :, ::-1, :, ::-1].transpose(3, 5, 0, 1, 2, 4)
    return np.ascontiguousarray(phases.reshape(-1, inputs, rows.taps, columns.taps))


def phase_pads(axes: Axes) -> list[int]:
    """Pads of the convolution: the taps of a phase are reversed, so padding precedes the image."""
    return [*(axis.taps - 1 for axis in axes), *(axis.steps - axis.inputs for axis in axes)]


def interleaving_shapes(
    images: int, outputs: int, strides: tuple[int, int], sizes: tuple[int, int]
) -> tuple[tuple[int, ...], ...]:
    """Shapes of the results of the Reshape, Transpose by `PIXELS_OF_PHASES`, and Reshape that
    interleave phases of ``sizes`` rows and columns."""
    (down, right), (height, width) = strides, sizes
    return (
        (images, down, right, outputs, height, width),
        (images, outputs, height, down, width, right),
        (images, outputs, height * down, width * right),
    )
