"""What QLinearConv and QLinearMatMul have in common, whatever operator does them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.parts.epilogue import Requantization
from amaranth_vta.sw.runtime.network.packing import Window
from amaranth_vta.sw.runtime.network.tile_layout import Image
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes, TiledTensor

from .layer import Layer, NotHere
from .sums import Sums, requantization, sums
from .tensors import Tensors


@dataclass(frozen=True)
class Product:
    """A QLinearConv or QLinearMatMul, and a Clip that follows, as the machine computes them."""

    nodes: tuple[Node, ...]
    sums: Sums
    # Of the input.
    zero_point: int
    config: Config

    @classmethod
    def of(cls, node: Node, tensors: Tensors) -> Product:
        """Raises `NotHere`."""
        tensors.require_bytes(node.inputs[0], node.outputs[0])
        limits, clip = tensors.clip_after(node.outputs[0])
        clipped = sums(tensors, node).clipped(limits)
        return cls((node, *clip), clipped, tensors.zero_point(node, 2), tensors.config)

    @property
    def requantize(self) -> Requantization:
        """Raises `NotHere`."""
        return self._requantization[0]

    @cached_property
    def _requantization(self) -> tuple[Requantization, Bytes]:
        return requantization(self.sums, self.config)

    def pad_value(self, window: Window) -> int:
        """What the machine pads with. Raises `NotHere` if it cannot."""
        if not any(window.pads):
            return 0
        if self.zero_point and not self.config.pad_value:
            raise NotHere("it pads with its zero point, and the machine with zeros")
        return self.zero_point

    def layer(
        self, tensors: Tensors, source: TiledTensor, out: Image, function: Function, weights: Bytes
    ) -> Layer:
        """That of ``function``, whose arguments are input, ``weights``, parameters and output."""
        node, result = self.nodes[0], self.nodes[-1].outputs[0]
        tensors.set_range(result, self.sums.low, self.sums.high)
        return Layer(
            name=node.name,
            operator=node.operator,
            nodes=self.nodes,
            sources=(source,),
            result=TiledTensor(result, out, tensors.output_layout),
            function=function,
            constants={"weights": weights, "requantization": self._requantization[1]},
            macs=prod(out) * prod(self.sums.weights.shape[1:]),
        )
