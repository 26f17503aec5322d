"""Common parts of layers with constant weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, TypeVar

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    CompactScale,
    Requantization,
    TensorScale,
    WholeSums,
)
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense
from amaranth_vta.sw.compiler.tuner.workload import choose
from amaranth_vta.sw.runtime.network.packing import Window
from amaranth_vta.sw.runtime.network.tile_layout import Array, Image
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes, TiledTensor
from amaranth_vta.sw.runtime.scalars import pack

from .layer import Layer, Unsupported
from .layer_functions import MakeFunction
from .sums import RequantizedSums, Sums, requantization, requantized_sums, sums
from .tensors import INT8_RANGE, Range, Tensors
from .tiled_constants import pack_weights
from .weight_terms import Product, fastest, shared_part

# Cycles of the additional LOADs of `CompactScale` for few channels, which estimates lack.
_MORE_LOADS = 100
# A workload with a field ``requantize``.
Workload = TypeVar("Workload", bound=Any)


@dataclass(frozen=True)
class ConstantProduct:
    """A product with constant weights as computed by the machine, and the nodes it absorbs."""

    nodes: tuple[Node, ...]
    sums: Sums
    # The zero point of the input, as held by the machine.
    zero_point: int
    config: Config

    @property
    def requantize(self) -> Requantization:
        """How the sums are requantized. Raises `Unsupported`."""
        return self._requantization[0]

    @cached_property
    def _requantization(self) -> tuple[Requantization, dict[str, Bytes]]:
        return requantization(self.sums, self.config)

    def pad_value(self, window: Window, tensors: Tensors) -> int:
        """The padding value. Raises `Unsupported` if the machine cannot pad with it."""
        if not any(window.pads):
            return 0
        tensors.require_padding(self.zero_point, "its zero point")
        return self.zero_point

    def fastest(self, plain: Product) -> Product:
        """The fastest of ``plain``, the same product with row sums, and with weights as int4 (see
        `weight_terms`)."""
        return fastest(plain, *self._range, self.config)

    @cached_property
    def _range(self) -> Range:
        return int(self.sums.weights.min()), int(self.sums.weights.max())

    def packed(
        self, workload: Conv2d | Dense, arranged: Callable[[Array], Array]
    ) -> tuple[Bytes, Bytes | None]:
        """The weights of ``workload``, packed as ``arranged``, and those of its row sums if it has
        any."""
        whole, config = self.sums.weights, self.config
        if not workload.row_sums:
            return pack_weights(arranged(whole), config, workload.int4_weights), None
        shared = shared_part(*self._range)
        assert shared is not None
        row = np.full((config.block_out, *whole.shape[1:]), shared, whole.dtype)
        rest = whole - row[:1]
        return pack_weights(arranged(rest), config), pack_weights(arranged(row), config)

    def layer(
        self,
        tensors: Tensors,
        source: TiledTensor,
        out: Image,
        make: MakeFunction,
        workload: Hashable,
        weights: Bytes,
        anchor: Layer | None = None,
        macs: int | None = None,
        row_weights: Bytes | None = None,
    ) -> Layer:
        """The layer of the function that ``make`` builds for ``workload``; its arguments are input,
        ``weights``, parameters, ``row_weights`` if there are any, shared parameters, and output.
        For an ``anchor``, a product fused before this one, the anchor's weights and parameters come
        first. ``macs`` overrides the MACs counted from the weights."""
        own = self._requantization[1]
        constants = {"weights": weights, "requantization": own["requantization"]}
        if row_weights is not None:
            constants["row_weights"] = row_weights
        constants |= own
        nodes = self.nodes
        if macs is None:
            plain = prod(out) * prod(self.sums.weights.shape[1:])
            macs = tensors.network.macs.get(nodes[0].name, plain)
        if anchor is not None:
            before = {f"{key} before": value for key, value in anchor.constants.items()}
            constants, nodes = before | constants, (*anchor.nodes, *nodes)
            macs += anchor.macs
        function = tensors.function(make, workload, nodes[0])
        layer = tensors.layer(nodes, [source], out, function, constants, self.limits, macs)
        if anchor is not None:
            layer = replace(layer, operator=f"{anchor.operator}+{self.nodes[0].operator}")
        return self._completed(layer, make, workload, tensors)

    @property
    def limits(self) -> Range:
        """The range of the results, as held by the machine."""
        return INT8_RANGE

    def _completed(
        self, layer: Layer, make: MakeFunction, workload: Hashable, tensors: Tensors
    ) -> Layer:
        """Complete ``layer`` for this kind of product."""
        return layer


@dataclass(frozen=True)
class QuantizedProduct(ConstantProduct):
    """A QLinearConv or QLinearMatMul, and a following Clip."""

    sums: RequantizedSums

    def of_channels(self, count: int) -> QuantizedProduct:
        """The product restricted to the first channels, at most ``count``."""
        names = ("weights", "bias", "least", "most", "scale", "roundings")
        first = {name: getattr(self.sums, name)[:count] for name in names}
        return replace(self, sums=replace(self.sums, **first))

    def with_fastest_scale(self, workload: Workload) -> tuple[QuantizedProduct, Workload]:
        """The product and its ``workload`` in the first form with fewer cycles: with the parameters
        of REQUANTIZE shared between channels if all have one scale, or compact for a single row,
        whose products wait for the bus. A single tile of channels keeps its form."""
        if workload.outputs == 1:
            return self, workload
        forms = [replace(self.sums, one_scale=True)]
        if isinstance(workload, Dense) and workload.rows == 1:
            forms.append(replace(self.sums, compact=True))
        for form in forms:
            other = replace(self, sums=form)
            if isinstance(other.requantize, TensorScale | CompactScale):
                changed = replace(workload, requantize=other.requantize)
                before, after = (choose(item, self.config).cycles for item in (workload, changed))
                if after + form.compact * _MORE_LOADS < before:
                    return other, changed
        return self, workload

    @classmethod
    def of(cls, node: Node, tensors: Tensors) -> QuantizedProduct:
        """The product of ``node``. Raises `Unsupported`."""
        tensors.require_bytes(node.inputs[0], node.outputs[0])
        limits, clip = tensors.clip_after(node.outputs[0])
        clipped = requantized_sums(tensors, node, limits)
        return cls((node, *clip), clipped, tensors.zero_point(node, 2), tensors.config)

    @property
    def limits(self) -> Range:
        return self.sums.low, self.sums.high

    def _completed(
        self, layer: Layer, make: MakeFunction, workload: Hashable, tensors: Tensors
    ) -> Layer:
        tensors.products[layer.result.tensor] = layer, make, workload
        return layer


@dataclass(frozen=True)
class WholeProduct(ConstantProduct):
    """A ConvInteger or MatMulInteger, and the following addition of a bias: whole sums, for the
    host."""

    @classmethod
    def of(cls, node: Node, tensors: Tensors) -> WholeProduct:
        """The product of ``node``. Raises `Unsupported`."""
        tensors.require_bytes(node.inputs[0])
        require_known_zero_points(node, tensors)
        bias, addition = _added_after(node, tensors)
        plain = sums(tensors, node, bias)
        return cls((node, *addition), plain, tensors.zero_point(node, 2), tensors.config)

    def _completed(
        self, layer: Layer, make: MakeFunction, workload: Hashable, tensors: Tensors
    ) -> Layer:
        assert isinstance(self.requantize, WholeSums)
        return in_parts(layer, self.requantize, tensors)


def require_known_zero_points(node: Node, tensors: Tensors) -> None:
    """Raise `Unsupported` unless the zero points of an integer product are constant."""
    if not {node.input(2), node.input(3)} <= tensors.network.constants.keys():
        raise Unsupported("its zero points are known only at run time")


def in_parts(layer: Layer, how: WholeSums, tensors: Tensors) -> Layer:
    """``layer`` with its results split into parts, and with the shifts for that as a constant."""
    layout = replace(layer.result.layout, parts=how.parts)
    shifts = {"shifts": pack(how.shifts(tensors.env), tensors.env.acc_dtype)} if how.shared else {}
    return replace(
        layer, result=replace(layer.result, layout=layout), constants=layer.constants | shifts
    )


def _added_after(node: Node, tensors: Tensors) -> tuple[Any, tuple[Node, ...]]:
    """The constant bias added to the sums of ``node``, and the node that adds it; None and no node
    otherwise."""
    network, result = tensors.network, node.outputs[0]
    reader = network.only_reader(result)
    if reader is None or reader.operator != "Add" or reader.domain:
        return None, ()
    (other,) = [name for name in reader.inputs if name != result] or [result]
    bias, sums_of = network.constants.get(other), network.types[result].shape
    axis = 1 if node.operator == "ConvInteger" else -1
    if bias is None or sums_of is None or network.types[reader.outputs[0]].shape != sums_of:
        return None, ()
    channels = [1] * len(sums_of)
    channels[axis] = sums_of[axis]
    if (1,) * (len(sums_of) - bias.ndim) + bias.shape != tuple(channels):
        return None, ()
    return bias.reshape(-1), (reader,)
