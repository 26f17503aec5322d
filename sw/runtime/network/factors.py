"""Packs computed second factors of matrix products, on the host, as weights and as a bias.

With z_a and z_b the zero points, Σ (a − z_a)(b − z_b) is Σ a·w − z_a·Σ w for w = b − z_b, which has
9 bits. The weights are w as sums of int8; −z_a·Σ w is the bias of a column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .tile_layout import Array, Image, signed, tiles

# The range of a weight.
_LEAST, _MOST = -128, 127


@dataclass(frozen=True)
class FactorWeights:
    """Packs matrices (groups, inputs, outputs, 1), less ``zero_point``, as weights, each the sum of
    ``terms`` int8 values. Outputs of each group are padded to whole tiles of ``block``.
    """

    zero_point: int
    terms: int
    block: int

    def __str__(self) -> str:
        return "second factors as weights"

    def image(self, image: Image) -> Image:
        """The shape of the weights for matrices of shape ``image``."""
        groups, inputs, outputs, _ = image
        return groups * tiles(outputs, self.block) * self.block, inputs, 1, self.terms

    def pack(self, matrices: Array) -> Array:
        """int8 weights (groups · outputs, inputs, 1, terms)."""
        centred = _centred(matrices, self.zero_point, self.block)
        return as_terms(centred.reshape(-1, matrices.shape[1], 1, 1), self.terms)


@dataclass(frozen=True)
class FactorBias:
    """Packs the epilogue constants for the same matrices. For each output: the bias for a first
    factor with zero point ``first_zero_point``, plus ``added``; then ``rest``, the same for all
    outputs. Repeated for ``batch`` rows.
    """

    first_zero_point: int
    zero_point: int
    added: int
    rest: tuple[int, ...]
    batch: int
    block: int

    def __str__(self) -> str:
        return "sums of second factors as bias"

    def image(self, image: Image) -> Image:
        """The shape of the constants for matrices of shape ``image``."""
        groups, _, outputs, _ = image
        return self.batch, groups * tiles(outputs, self.block) * self.block, 1 + len(self.rest), 1

    def pack(self, matrices: Array) -> Array:
        """int32 constants (batch, groups · outputs, constants per output, 1)."""
        centred = _centred(matrices, self.zero_point, self.block)
        sums = centred.sum(axis=-1, dtype=np.int64).reshape(-1)
        made = np.empty(self.image(_shape(matrices)), np.int32)
        # Wraps around like the sums that it is added to.
        made[:, :, 0, 0] = (self.added - self.first_zero_point * sums).astype(np.int32)
        made[:, :, 1:, 0] = self.rest
        return made


def as_terms(weights: Array, terms: int) -> Array:
    """Split ``weights`` (…, width) into int8 (…, width · terms) that sum to them. Terms after the
    first are 0 where one suffices.
    """
    if terms == 1:
        return weights.astype(np.int8)
    parts = []
    rest = weights.astype(np.int64)
    for _ in range(terms):
        parts.append(rest.clip(_LEAST, _MOST))
        rest = rest - parts[-1]
    return np.stack(parts, axis=-1).reshape(*weights.shape[:-1], -1).astype(np.int8)


def terms_between(least: int, most: int) -> int:
    """Number of int8 terms needed for any integer from ``least`` to ``most``."""
    return max(1, tiles(most, _MOST), tiles(-least, -_LEAST))


def _centred(matrices: Array, zero_point: int, block: int) -> Array:
    """int16 (groups, outputs, inputs), less the zero point; outputs that pad tiles are 0."""
    groups, inputs, outputs, _ = matrices.shape
    centred = np.zeros((groups, tiles(outputs, block) * block, inputs), np.int16)
    held = signed(matrices.reshape(groups, inputs, outputs)).astype(np.int16)
    centred[:, :outputs] = held.transpose(0, 2, 1) - zero_point
    return centred


def _shape(matrices: Array) -> Image:
    groups, inputs, outputs, pixels = matrices.shape
    return groups, inputs, outputs, pixels
