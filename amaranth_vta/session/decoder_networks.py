"""The networks of a decoder, for single tokens and for blocks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx

from amaranth_vta.sim.devices import RunOptions
from amaranth_vta.sw.compiler.graph.plan.compiled_network import CompiledNetwork
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.tile_layout import Array
from amaranth_vta.sw.runtime.runtime import Runtime

from .placed_network import PlacedNetwork


class DecoderNetworks:
    """Two networks in the memory of one device, with the same caches and weights: ``single`` takes
    a token per run, ``block`` several.

    Arguments are as in `ShapedNetworks`. Raises `ModelError` if both cannot have the same caches.
    """

    def __init__(
        self,
        single: onnx.ModelProto,
        block: onnx.ModelProto,
        compile: Callable[[onnx.ModelProto], CompiledNetwork],
        options: RunOptions,
        launch: str,
    ) -> None:
        one, several = compile(single), compile(block)
        try:
            shared = several.program.shared_with(one.program)
        except ModelError:
            raise ModelError(
                "runs of several tokens and of one cannot have the same caches: these are no ring "
                "buffers, because of zero points or operators that read them"
            ) from None
        size = sum(
            item.program.placed_bytes(item.launched(launch), shared=without)
            for item, without in ((one.program, ()), (several.program, shared))
        )
        runtime = Runtime(options.open(one.program.config, size))
        self.single = PlacedNetwork.open(one.program, options, launch, single, one, runtime)
        self.block = PlacedNetwork.open(
            several.program, options, launch, block, several, runtime, self.single.runner
        )
        self.current = self.single
        self.model = single

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
