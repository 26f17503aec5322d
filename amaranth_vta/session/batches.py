"""Cuts any number of images into runs of a network that takes a fixed number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from amaranth_vta.sw.runtime.network.network_program import NetworkProgram
from amaranth_vta.sw.runtime.network.tile_layout import Array

Run = Callable[[dict[str, Array]], Mapping[str, Array]]


class InputError(ValueError):
    """Arrays do not fit the network's inputs; the message names the input."""


@dataclass(frozen=True)
class TensorInfo:
    """Type and shape of an input or output of the network; a first dimension of None is any
    number."""

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


class Batches:
    """Cuts the inputs of ``program`` into runs, and joins their outputs."""

    def __init__(self, program: NetworkProgram) -> None:
        self._program = program
        self._types = {**program.inputs, **program.outputs}
        shapes = [info.shape for info in self._types.values()]
        sizes = {shape[0] if shape else 0 for shape in shapes}
        # The first dimension if all inputs and outputs have the same, else 0.
        self.images_per_run = sizes.pop() if len(sizes) == 1 else 0

    def info(self, name: str) -> TensorInfo:
        """The type and shape of an input or output."""
        info = self._types[name]
        shape: tuple[int | None, ...] = info.shape or ()
        batch = self.images_per_run or self._program.config.batch
        if self._program.open_batch and shape and shape[0] == batch:
            shape = (None, *shape[1:])
        return TensorInfo(info.dtype, shape)

    def run(self, inputs: Mapping[str, Array], run: Run) -> dict[str, Array]:
        """The outputs of ``run`` for all of ``inputs``; the last run is padded with zeros.

        Raises `InputError`.
        """
        inputs = {name: np.asarray(array) for name, array in inputs.items()}
        images = self._images(inputs)
        if images is None:
            return dict(run(inputs))
        batch, results = self.images_per_run, []
        for start in range(0, images, batch):
            feeds = {}
            for name, array in inputs.items():
                part = array[start : start + batch]
                missing = batch - len(part)
                feeds[name] = np.pad(part, [(0, missing)] + [(0, 0)] * (part.ndim - 1))
            results.append(run(feeds))
        return {
            name: np.concatenate([result[name] for result in results])[:images]
            for name in self._program.outputs
        }

    def _images(self, inputs: Mapping[str, Array]) -> int | None:
        """The number of images in ``inputs``; None if they are a single run as they stand."""
        self._check_names(inputs)
        counts = {name: self._count(name, array) for name, array in inputs.items()}
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

    def _count(self, name: str, array: Array) -> int:
        """The number of images in one input; checks its type and shape."""
        info = self._types[name]
        assert info.shape is not None
        if array.dtype != info.dtype:
            raise InputError(f"input {name} is {array.dtype}; the network takes {info.dtype}")
        if array.shape == info.shape:
            return array.shape[0] if array.shape else 0
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
