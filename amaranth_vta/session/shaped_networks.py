"""The networks of a model with open dimensions, one for each shape of its inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import onnx

from amaranth_vta.sim.devices import RunOptions
from amaranth_vta.sw.compiler.graph.load.input_shapes import (
    open_dimensions,
    require_sizes,
    sizes_of,
    with_dimensions,
)
from amaranth_vta.sw.compiler.graph.plan.compiled_network import CompiledNetwork
from amaranth_vta.sw.runtime.network.tile_layout import Array

from .batches import InputError
from .padding import InputPadding, padding, require_buckets, rounded_up
from .placed_network import PlacedNetwork

_LOGGER = logging.getLogger(__name__)
# Number of shapes whose devices are kept open.
_KEPT = 8


class ShapedNetworks:
    """The networks of ``model``, one for each shape of its inputs, compiled on demand.

    ``sizes`` are the known sizes of its open dimensions; ``compile`` compiles a model without open
    dimensions, for runs of ``images``. Sizes of dimensions in ``buckets`` are rounded up to the
    next multiple, and inputs padded, which `ModelError` refuses for a network whose results padding
    could change. ``current`` is the network of the latest inputs; None until all sizes are known.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        sizes: Mapping[str, int],
        compile: Callable[[onnx.ModelProto], CompiledNetwork],
        options: RunOptions,
        launch: str,
        images: int,
        buckets: Mapping[str, int],
    ) -> None:
        self._model, self._compile, self._options, self._launch = model, compile, options, launch
        self._images, self._buckets = images, dict(buckets)
        require_buckets(model, buckets)
        self._paddings: dict[frozenset[tuple[str, int]], InputPadding] = {}
        self._sizes = dict(sizes)
        self._placed: dict[frozenset[tuple[str, int]], PlacedNetwork] = {}
        self._is_open = bool(open_dimensions(model))
        self.current: PlacedNetwork | None = None
        if not open_dimensions(with_dimensions(model, self._sizes)):
            self._choose(self._sizes)

    @property
    def model(self) -> onnx.ModelProto:
        """The model, with the current sizes if there are any."""
        known = None if self.current is None else self.current.model
        return self._model if known is None else known

    def require_current(self) -> PlacedNetwork:
        """The current network; raises `ModelError` if sizes are missing."""
        if self.current is None:
            require_sizes(with_dimensions(self._model, self._sizes))
        assert self.current is not None
        return self.current

    def select(self, inputs: Mapping[str, Array]) -> PlacedNetwork:
        """Selects the network for the shapes of ``inputs``, and compiles it if they are new."""
        if self._is_open:
            shapes = {name: np.shape(array) for name, array in inputs.items()}
            self._choose(self._sizes | sizes_of(self._model, shapes))
        return self.require_current()

    def close(self) -> None:
        for placed in self._placed.values():
            placed.close()

    def _choose(self, sizes: dict[str, int]) -> None:
        rounded = rounded_up(sizes, self._buckets)
        key, given = frozenset(rounded.items()), frozenset(sizes.items())
        if rounded != sizes and given not in self._paddings:
            self._paddings[given] = padding(self._model, sizes, rounded, self._images)
        if key not in self._placed:
            self._placed[key] = self._place(rounded)
        self.current = replace(self._placed[key], padding=self._paddings.get(given, InputPadding()))

    def _place(self, sizes: dict[str, int]) -> PlacedNetwork:
        if self._placed and self._options.waves is not None:
            raise InputError("waves are written for one shape of the inputs; these have another")
        if len(self._placed) == 1:
            shape = ", ".join(f"{name}={size}" for name, size in sizes.items())
            _LOGGER.warning(
                "the inputs have a new shape (%s); the network is compiled for each new shape",
                shape,
            )
        model = with_dimensions(self._model, sizes)
        compiled = self._compile(model)
        runtime = None
        if not isinstance(self._options.device, str):
            # A device that the user has opened holds the networks of all shapes.
            runtime = next((placed.runtime for placed in self._placed.values()), None)
        elif len(self._placed) >= _KEPT:
            oldest = next(iter(self._placed))
            self._placed.pop(oldest).close()
        return PlacedNetwork.open(compiled.program, self._options, self._launch, compiled, runtime)
