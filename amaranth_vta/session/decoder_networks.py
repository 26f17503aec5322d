"""The networks of a decoder, for single tokens and for blocks of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from amaranth_vta.sim.devices import RunOptions
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram
from amaranth_vta.sw.runtime.network.tile_layout import Array
from amaranth_vta.sw.runtime.runtime import Runtime

from .placed_network import PlacedNetwork

if TYPE_CHECKING:
    from amaranth_vta.sw.compiler.graph.plan.compiled_network import CompiledNetwork


class DecoderNetworks:
    """A ``program`` with its block in the memory of one device, with the same caches and weights:
    ``single`` takes a token per run, ``block`` several.

    ``compiled`` contains both, unless they were loaded compiled. ``options`` and ``launch`` are as
    in `ShapedNetworks`, and so is the interface.
    """

    def __init__(
        self,
        program: NetworkProgram,
        options: RunOptions,
        launch: str,
        compiled: CompiledNetwork | None = None,
    ) -> None:
        several = program.block
        assert several is not None
        size = sum(
            item.program.placed_bytes(item.launched(launch), shared=without)
            for item, without in ((program, ()), (several, program.shared_with_block))
        )
        runtime = Runtime(options.open(program.config, size))
        block = None if compiled is None else compiled.block
        self.single = PlacedNetwork.open(program, options, launch, compiled, runtime)
        self.block = PlacedNetwork.open(
            several, options, launch, block, runtime, self.single.runner
        )
        self.current = self.single
        self.model = self.single.model

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
