"""Splits any number of images into runs of a network with a fixed batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amaranth_vta.errors import VtaError
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram
from amaranth_vta.sw.runtime.network.tile_layout import Array

Run = Callable[[dict[str, Array]], Mapping[str, Array]]
RunGroup = Callable[[list[dict[str, Array]]], Sequence[Mapping[str, Array]]]


class InputError(VtaError, ValueError):
    """Arrays do not fit the network's inputs; the message names the input."""


@dataclass(frozen=True)
class TensorInfo:
    """Type and shape of an input or output of the network; if the number of images is open, the
    first dimension is None.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


class Batches:
    """Splits the inputs of ``program`` into runs, and concatenates their outputs."""

    def __init__(self, program: NetworkProgram) -> None:
        self._program = program
        self._types = {**program.inputs, **program.outputs}
        # An input of rank 0 applies to all images of a run.
        per_image = [info.shape for info in program.inputs.values() if info.shape != ()]
        shapes = [*per_image, *(info.shape for info in program.outputs.values())]
        sizes = {shape[0] if shape else 0 for shape in shapes}
        # The first dimension that all inputs and outputs have in common, else 0.
        self.images_per_run = sizes.pop() if per_image and len(sizes) == 1 else 0

    def info(self, name: str) -> TensorInfo:
        """The type and shape of an input or output."""
        info = self._types[name]
        shape: tuple[int | None, ...] = info.shape or ()
        batch = self.images_per_run or self._program.config.batch
        if self._program.open_batch and shape and shape[0] == batch:
            shape = (None, *shape[1:])
        return TensorInfo(info.dtype, shape)

    def run(self, inputs: Mapping[str, Array], run: Run) -> dict[str, Array]:
        """Calls ``run`` for each part of ``inputs`` and returns the concatenated outputs; the last
        part is padded with zeros.

        Raises `InputError`.
        """
        return self.run_in_groups(inputs, lambda feeds: [run(feeds[0])], 1)

    def run_in_groups(
        self, inputs: Mapping[str, Array], run: RunGroup, size: int
    ) -> dict[str, Array]:
        """As `run`, with up to ``size`` parts per call of ``run``."""
        inputs = {name: np.asarray(array) for name, array in inputs.items()}
        images = self._images(inputs)
        if images is None:
            (result,) = run([inputs])
            return dict(result)
        batch, parts = self.images_per_run, []
        for start in range(0, images, batch):
            feeds = {}
            for name, array in inputs.items():
                if self._types[name].shape == ():
                    feeds[name] = self._single(name, array, start)
                    continue
                part = array[start : start + batch]
                missing = batch - len(part)
                feeds[name] = np.pad(part, [(0, missing)] + [(0, 0)] * (part.ndim - 1))
            parts.append(feeds)
        results = [
            result
            for first in range(0, len(parts), size)
            for result in run(parts[first : first + size])
        ]
        return {
            name: np.concatenate([result[name] for result in results])[:images]
            for name in self._program.outputs
        }

    def _images(self, inputs: Mapping[str, Array]) -> int | None:
        """The number of images in ``inputs``; None if their shapes are exactly those of a single
        run.
        """
        self._check_names(inputs)
        counts = {
            name: count
            for name, array in inputs.items()
            if (count := self._count(name, array)) is not None
        }
        if all(array.shape == self._types[name].shape for name, array in inputs.items()):
            return None
        if len(set(counts.values())) > 1:
            raise InputError(
                "the inputs have different numbers of images: "
                + ", ".join(f"{name} {count}" for name, count in counts.items())
            )
        if not self.images_per_run:
            raise InputError(
                "an output of the network does not have one result per image: give one image"
            )
        return next(iter(counts.values()))

    def _check_names(self, inputs: Mapping[str, Array]) -> None:
        missing = [name for name in self._program.inputs if name not in inputs]
        unknown = [name for name in inputs if name not in self._program.inputs]
        if missing or unknown:
            what = f"input {missing[0]} is missing" if missing else f"{unknown[0]} is no input"
            raise InputError(f"{what}; the network's inputs are {', '.join(self._program.inputs)}")

    def _single(self, name: str, array: Array, start: int) -> Array:
        """The value of an input of rank 0 in the run that begins with image ``start``, from an
        array of one value per image; raises `InputError` if the values of the run differ.
        """
        if not array.ndim:
            return array
        values = array[start : start + self.images_per_run]
        if any(values != values[0]):
            raise InputError(
                f"input {name} has one value per run of {self.images_per_run} images, but the "
                f"values for the images from {start} on differ"
            )
        return np.array(values[0])

    def _count(self, name: str, array: Array) -> int | None:
        """The number of images in one input after a check of its type and shape; None for a single
        value of an input of rank 0.
        """
        info = self._types[name]
        assert info.shape is not None
        if array.dtype != info.dtype:
            raise InputError(f"input {name} is {array.dtype}; the network takes {info.dtype}")
        if array.shape == info.shape:
            return array.shape[0] if array.shape else None
        if info.shape == () and array.ndim == 1 and array.size:
            return array.size
        divisor = 1 if self._program.open_batch else self.images_per_run
        if (
            not divisor
            or array.shape[1:] != info.shape[1:]
            or array.ndim != len(info.shape)
            or not len(array)
            or len(array) % divisor
        ):
            wanted = ", ".join(
                "any number" if size is None else str(size) for size in self.info(name).shape
            )
            raise InputError(
                f"input {name} has shape {list(array.shape)}; the network takes [{wanted}]"
            )
        return len(array)
