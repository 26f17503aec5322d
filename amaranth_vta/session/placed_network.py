"""A compiled network on a device, and one for each shape of a network with open dimensions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from amaranth_vta.extras import explain_missing_extras
from amaranth_vta.sim.devices import RunOptions, close_device
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram
from amaranth_vta.sw.runtime.network.tile_layout import Array
from amaranth_vta.sw.runtime.runtime import Runtime

from .batches import Batches, InputError

if TYPE_CHECKING:
    import onnx

    from amaranth_vta.sw.compiler.graph.plan.compiled_network import CompiledNetwork
    from amaranth_vta.sw.runtime.network.runner import Runner

_LOGGER = logging.getLogger(__name__)
# Number of shapes whose devices are kept open.
_KEPT = 8


@dataclass(frozen=True)
class PlacedNetwork:
    """A network in the memory of a device; ``model`` and ``compiled`` are None if it was loaded
    compiled.
    """

    program: NetworkProgram
    runtime: Runtime
    batches: Batches
    runner: Runner
    model: onnx.ModelProto | None = None
    compiled: CompiledNetwork | None = None

    @classmethod
    def open(
        cls,
        program: NetworkProgram,
        options: RunOptions,
        launch: str,
        model: onnx.ModelProto | None = None,
        compiled: CompiledNetwork | None = None,
        runtime: Runtime | None = None,
    ) -> PlacedNetwork:
        """Places ``program`` in the memory of ``runtime``, or of a device that ``options`` open."""
        with explain_missing_extras():
            from amaranth_vta.sw.runtime.network.runner import Runner
        if runtime is None:
            size = program.program.placed_bytes(program.launched(launch))
            runtime = Runtime(options.open(program.config, size))
        # Not a method of the session: a reference cycle would keep the device alive until the next
        # garbage collection.
        begins = (lambda _: None) if options.timeline is None else options.timeline.begin
        runner = Runner(program, runtime, begins, launch)
        return cls(program, runtime, Batches(program), runner, model, compiled)


class ShapedNetworks:
    """The networks of ``model``, one for each shape of its inputs, compiled when it is needed.

    ``sizes`` are those of its open dimensions as far as they are known; ``compile`` compiles a
    model without open dimensions. ``current`` is the network of the inputs that came last; None
    until all sizes are known.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        sizes: Mapping[str, int],
        compile: Callable[[onnx.ModelProto], CompiledNetwork],
        options: RunOptions,
        launch: str,
    ) -> None:
        self._model, self._compile, self._options, self._launch = model, compile, options, launch
        self._sizes = dict(sizes)
        self._placed: dict[frozenset[tuple[str, int]], PlacedNetwork] = {}
        self._told = False
        self.current: PlacedNetwork | None = None
        from amaranth_vta.sw.compiler.graph.load.input_shapes import (
            open_dimensions,
            with_dimensions,
        )

        self._is_open = bool(open_dimensions(model))
        if not open_dimensions(with_dimensions(model, self._sizes)):
            self._choose(self._sizes)

    @property
    def model(self) -> onnx.ModelProto:
        """The model, with the current sizes if there are any."""
        known = None if self.current is None else self.current.model
        return self._model if known is None else known

    def require_current(self) -> PlacedNetwork:
        """The current network; raises `ModelError` if sizes are missing."""
        from amaranth_vta.sw.compiler.graph.load.input_shapes import (
            require_sizes,
            with_dimensions,
        )

        if self.current is None:
            require_sizes(with_dimensions(self._model, self._sizes))
        assert self.current is not None
        return self.current

    def meet(self, inputs: Mapping[str, Array]) -> None:
        """Makes the network for the shapes of ``inputs`` the current one."""
        if not self._is_open:
            return
        from amaranth_vta.sw.compiler.graph.load.input_shapes import sizes_of

        found = sizes_of(self._model, {name: np.shape(array) for name, array in inputs.items()})
        self._choose(self._sizes | found)

    def close(self) -> None:
        for placed in self._placed.values():
            close_device(placed.runtime.device)

    def _choose(self, sizes: dict[str, int]) -> None:
        key = frozenset(sizes.items())
        if key not in self._placed:
            self._placed[key] = self._place(sizes)
        self.current = self._placed[key]

    def _place(self, sizes: dict[str, int]) -> PlacedNetwork:
        from amaranth_vta.sw.compiler.graph.load.input_shapes import with_dimensions

        if self._placed and self._options.waves is not None:
            raise InputError("waves are written for one shape of the inputs, and this is another")
        if self._placed and not self._told:
            self._told = True
            shape = ", ".join(f"{name}={size}" for name, size in sizes.items())
            _LOGGER.warning(
                "the inputs have another shape (%s), for which the network is compiled too, as for "
                "each new shape",
                shape,
            )
        model = with_dimensions(self._model, sizes)
        compiled = self._compile(model)
        runtime = self._shared_runtime()
        return PlacedNetwork.open(
            compiled.program, self._options, self._launch, model, compiled, runtime
        )

    def _shared_runtime(self) -> Runtime | None:
        """The runtime of a device that the user has opened, which holds the networks of all shapes;
        None for a device by name, which is opened for each."""
        if not isinstance(self._options.device, str):
            return next((placed.runtime for placed in self._placed.values()), None)
        if len(self._placed) >= _KEPT:
            oldest = next(iter(self._placed))
            close_device(self._placed.pop(oldest).runtime.device)
        return None
