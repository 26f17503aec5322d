"""What the layers of QLinearConv and QLinearMatMul have in common."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from math import prod

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.parts.epilogue import Requantization
from amaranth_vta.sw.runtime.network.packing import Window
from amaranth_vta.sw.runtime.network.tile_layout import Image
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes, TiledTensor

from .layer import Layer
from .sums import Sums, requantization, sums
from .tensors import MakeFunction, Tensors


@dataclass(frozen=True)
class QuantizedProduct:
    """A QLinearConv or QLinearMatMul, and a Clip that follows, as the machine computes them."""

    nodes: tuple[Node, ...]
    sums: Sums
    # That of the input, as the machine holds it.
    zero_point: int
    config: Config

    @classmethod
    def of(cls, node: Node, tensors: Tensors) -> QuantizedProduct:
        """Raises `Unsupported`."""
        tensors.require_bytes(node.inputs[0], node.outputs[0])
        limits, clip = tensors.clip_after(node.outputs[0])
        clipped = sums(tensors, node).clipped(limits)
        return cls((node, *clip), clipped, tensors.zero_point(node, 2), tensors.config)

    @property
    def requantize(self) -> Requantization:
        """Raises `Unsupported`."""
        return self._requantization[0]

    @cached_property
    def _requantization(self) -> tuple[Requantization, Bytes]:
        return requantization(self.sums, self.config)

    def pad_value(self, window: Window, tensors: Tensors) -> int:
        """The value of padding. Raises `Unsupported` if the machine cannot pad with it."""
        if not any(window.pads):
            return 0
        tensors.require_padding(self.zero_point, "its zero point")
        return self.zero_point

    def layer(
        self,
        tensors: Tensors,
        source: TiledTensor,
        out: Image,
        make: MakeFunction,
        workload: Hashable,
        weights: Bytes,
    ) -> Layer:
        """The layer of the function that ``make`` builds for ``workload``; its arguments are input,
        ``weights``, parameters and output."""
        function = tensors.function(make, workload, self.nodes[0])
        constants = {"weights": weights, "requantization": self._requantization[1]}
        limits = self.sums.low, self.sums.high
        macs = prod(out) * prod(self.sums.weights.shape[1:])
        layer = tensors.layer(self.nodes, [source], out, function, constants, limits, macs)
        tensors.products[layer.result.tensor] = layer, make, workload
        return layer
