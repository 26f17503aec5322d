"""Rounds open dimensions up to buckets: pads inputs, and crops outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.tile_layout import Array

from .batches import InputError

if TYPE_CHECKING:
    import onnx

# Sizes of axes by tensor.
Sizes = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class InputPadding:
    """The sizes to which ``inputs`` are padded with zeros, the sizes to which ``outputs`` are
    cropped, and the inputs that are ``masks``.
    """

    inputs: Sizes = field(default_factory=dict)
    outputs: Sizes = field(default_factory=dict)
    masks: frozenset[str] = frozenset()

    def padded(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Raises `InputError` for a mask with other values than 0 and 1."""
        result = dict(inputs)
        for name in self.masks & inputs.keys():
            if np.any((np.asarray(inputs[name]) != 0) & (np.asarray(inputs[name]) != 1)):
                raise InputError(
                    f"input {name} has other values than 0 and 1, so it does not mask padding: its "
                    "dimensions cannot be rounded up"
                )
        for name, sizes in self.inputs.items():
            if name in inputs:
                array = np.asarray(inputs[name])
                missing = [
                    (0, sizes.get(axis, size) - size) for axis, size in enumerate(array.shape)
                ]
                result[name] = np.pad(array, missing)
        return result

    def cropped(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        result = dict(outputs)
        for name, sizes in self.outputs.items():
            array = outputs[name]
            result[name] = array[tuple(slice(sizes.get(axis)) for axis in range(array.ndim))]
        return result


def rounded_up(sizes: Mapping[str, int], buckets: Mapping[str, int]) -> dict[str, int]:
    """The ``sizes`` of dimensions, each rounded up to a multiple of its bucket."""
    return {name: -(-size // (by := buckets.get(name, 1))) * by for name, size in sizes.items()}


def require_buckets(model: onnx.ModelProto, buckets: Mapping[str, int]) -> None:
    """Raises `ModelError` for a bucket of a dimension that is not open, or not of a positive
    size.
    """
    if not buckets:
        return
    from amaranth_vta.sw.compiler.graph.load.input_shapes import open_dimensions, require_open

    names = open_dimensions(model)
    for name, size in buckets.items():
        require_open(name, names)
        if size < 1:
            raise ModelError(f"the bucket of the dimension {name} cannot be {size}")


def padding(
    model: onnx.ModelProto, sizes: Mapping[str, int], rounded: Mapping[str, int], images: int
) -> InputPadding:
    """How to pad and crop tensors of ``model`` from ``sizes`` of open dimensions to ``rounded``
    ones, for runs of ``images``; raises `ModelError` if padding could change results.
    """
    from amaranth_vta.sw.compiler.graph.load.input_shapes import axes_of, with_dimensions
    from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network
    from amaranth_vta.sw.compiler.graph.padding.positions import equal_positions

    changed = [name for name, size in sizes.items() if rounded[name] != size]
    try:
        short, long = (
            load_network(with_dimensions(model, given), images) for given in (sizes, rounded)
        )
        found = equal_positions(short, long)
    except ModelError as error:
        shapes = ", ".join(f"{name}={sizes[name]}" for name in changed)
        to = ", ".join(str(rounded[name]) for name in changed)
        raise ModelError(f"{shapes} cannot be rounded up to {to}: {error}") from None
    inputs = {
        name: {axis: rounded[dimension] for axis, dimension in axes.items()}
        for name, axes in axes_of(model, changed).items()
    }
    return InputPadding(inputs, found.sizes, found.masks)
