"""The networks of a decoder, for single tokens and for blocks of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from amaranth_vta.sim.devices import RunOptions
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram
from amaranth_vta.sw.runtime.network.tile_layout import Array
from amaranth_vta.sw.runtime.runtime import Runtime

from .placed_network import PlacedNetwork

if TYPE_CHECKING:
    import onnx

    from amaranth_vta.sw.compiler.graph.plan.compiled_network import CompiledNetwork


class DecoderNetworks:
    """A ``program`` with its block in the memory of one device, with the same caches and weights:
    ``single`` takes a token per run, ``block`` several.

    ``models`` and ``compiled`` contain both, in this order, unless they were loaded compiled.
    ``options`` and ``launch`` are as in `ShapedNetworks`, and so is the interface.
    """

    def __init__(
        self,
        program: NetworkProgram,
        options: RunOptions,
        launch: str,
        models: Sequence[onnx.ModelProto | None] = (None, None),
        compiled: Sequence[CompiledNetwork | None] = (None, None),
    ) -> None:
        several = program.block
        assert several is not None
        size = sum(
            item.program.placed_bytes(item.launched(launch), shared=without)
            for item, without in ((program, ()), (several, several.shared_with(program)))
        )
        runtime = Runtime(options.open(program.config, size))
        self.single = PlacedNetwork.open(program, options, launch, models[0], compiled[0], runtime)
        self.block = PlacedNetwork.open(
            several, options, launch, models[1], compiled[1], runtime, self.single.runner
        )
        self.current = self.single
        self.model = models[0]

    def require_current(self) -> PlacedNetwork:
        return self.single

    def select(self, inputs: Mapping[str, Array]) -> PlacedNetwork:
        """The network that takes the shapes of ``inputs``; ``single`` if neither does."""
        shapes = {name: np.shape(array) for name, array in inputs.items()}
        expected = {name: info.shape for name, info in self.block.program.inputs.items()}
        return self.block if shapes == expected else self.single

    def close(self) -> None:
        """Closes the device; may be called again."""
        self.single.close()
