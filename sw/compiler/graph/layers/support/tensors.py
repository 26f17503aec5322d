"""The tensors of a network during placement: shapes, layouts and ranges of values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.graph.index_maps import is_mover
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import FixedPoint
from amaranth_vta.sw.compiler.operators.building_blocks.identity import identity_weights
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.scaled_product import ScaledProduct
from amaranth_vta.sw.compiler.operators.weighted_sum import WeightedSum
from amaranth_vta.sw.runtime.network.tile_layout import Image, offset
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes, TiledTensor
from amaranth_vta.sw.runtime.scalars import pack

from .layer import Layer, Unsupported, identifier
from .layer_functions import LayerFunctions, MakeFunction
from .tiled_constants import input_layout, output_layout

# The smallest and largest value of a tensor, as held by the machine.
Range = tuple[int, int]
INT8_RANGE: Range = (-128, 127)


class Tensors:
    """The tensors of ``network`` as held by a machine, and the functions of its layers.

    ``views`` maps tensors that only rename another tensor to that tensor. ``images`` are the shapes
    (N, C, H, W) in which the machine holds tensors, ``results`` the tensors that layers produce and
    ``sources`` those that they read.
    ``absorbed`` are the nodes that run in layers, ``fused`` those in layers that do more than move
    elements. ``products`` has, by result, the layers with which readers of the result can be fused,
    their builders and workloads, and ``seconds`` the second results of layers, by the first. Values
    are always as held by the machine: a uint8 less 128.
    """

    def __init__(self, network: Network, functions: LayerFunctions) -> None:
        self.network = network
        self.env = functions.env
        self.config = self.env.config
        self.input_layout = input_layout(self.config)
        self.output_layout = output_layout(self.config)
        self.views: dict[str, str] = {}
        self.images: dict[str, Image] = {}
        self.results: set[str] = set()
        self.sources: set[str] = set()
        self.absorbed: set[str] = set()
        self.fused: set[str] = set()
        self.products: dict[str, tuple[Layer, MakeFunction, Any]] = {}
        self.seconds: dict[str, str] = {}
        self._ranges: dict[str, Range] = {}
        self._functions = functions

    # Layers.

    def function(
        self, make: MakeFunction, workload: Hashable, node: Node
    ) -> Callable[[], Function]:
        """Promise the function that ``make`` builds for ``workload``, named after ``node``. Raises
        `NoScheduleFits` if building it has already failed."""
        return self._functions.promised(make, workload, identifier(node.name))

    def layer(
        self,
        nodes: tuple[Node, ...],
        sources: Iterable[TiledTensor],
        out: Image,
        function: Callable[[], Function],
        constants: dict[str, Bytes],
        limits: Range,
        macs: int = 0,
    ) -> Layer:
        """The layer that runs ``nodes``: the first names it, the last produces its result, an image
        of shape ``out`` with values within ``limits``."""
        result = nodes[-1].outputs[0]
        self.set_range(result, *limits)
        return Layer(
            name=nodes[0].name,
            operator=nodes[0].operator,
            nodes=nodes,
            sources=tuple(sources),
            result=TiledTensor(result, out, self.output_layout),
            find_function=function,
            constants=constants,
            macs=macs,
        )

    def extended(
        self,
        anchor: Layer,
        nodes: Sequence[Node],
        operator: str,
        function: Callable[[], Function],
        limits: Range,
        out: Image | None = None,
        constants: dict[str, Bytes] | None = None,
        sources: Sequence[TiledTensor] = (),
    ) -> Layer:
        """The layer ``anchor`` with ``nodes`` fused at its end, of which ``operator`` is named. By
        default its result has the same shape, and its function takes the same ``constants``;
        ``sources`` follow its own."""
        layer = self.layer(
            (*anchor.nodes, *nodes),
            [*anchor.sources, *sources],
            anchor.result.image if out is None else out,
            function,
            anchor.constants if constants is None else constants,
            limits,
            anchor.macs,
        )
        return replace(layer, operator=f"{anchor.operator}+{operator}")

    def source(self, name: str, image: Image) -> TiledTensor:
        """A tensor in the layout in which layers store their results."""
        return TiledTensor(self.root(name), image, self.output_layout)

    def identity_constant(self) -> dict[str, Bytes]:
        """The identity matrix, by which GEMM passes operands through."""
        return {"identity": pack(identity_weights(self.env), self.env.wgt_dtype)}

    def factors(self, constants: FixedPoint) -> dict[str, Bytes]:
        """The parameters of ``constants``, as an argument of a function; empty if there are
        none."""
        if not constants.parameter_count:
            return {}
        return {"factors": pack(constants.parameters(self.env), self.env.acc_dtype)}

    def pointwise_constants(self, workload: WeightedSum | ScaledProduct) -> dict[str, Bytes]:
        """All constant arguments of the function of ``workload``."""
        identity = self.identity_constant() if workload.by_gemm(self.env) else {}
        return identity | self.factors(workload.constants)

    def note(self, layer: Layer) -> None:
        """Record the results of ``layer`` and the nodes it absorbs."""
        for result in layer.results:
            self.images[result.tensor] = result.image
            self.results.add(result.tensor)
        self.sources.update(source.tensor for source in layer.sources)
        self.absorbed.update(node.name for node in layer.nodes)
        if not all(is_mover(self.network, node) for node in layer.nodes):
            self.fused.update(node.name for node in layer.nodes)

    def convolution(self, name: str) -> tuple[Layer, Conv2d] | None:
        """The convolution that produces a tensor and its workload; None if another layer does, or
        if an addition is fused with it."""
        layer, _, workload = self.products.get(name, (None, None, None))
        if layer is None or not isinstance(workload, Conv2d) or workload.addition is not None:
            return None
        return layer, workload

    def is_only_read_by(self, root: str, nodes: Sequence[Node]) -> bool:
        """Whether ``nodes`` are the only readers of a tensor, of its views and dequantized values,
        and of each other's results, except those of the last."""
        inner, names = {id(node) for node in nodes[:-1]}, [root]
        while names:
            name = names.pop()
            if name in self.network.outputs:
                return False
            for reader in self.network.nodes.readers(name):
                if reader is nodes[-1]:
                    continue
                renames = reader.operator == "DequantizeLinear" or (
                    self.views.get(reader.outputs[0]) == root
                )
                if not renames and id(reader) not in inner:
                    return False
                names += reader.outputs
        return True

    def is_expansion(self, name: str) -> bool:
        """Whether only a depthwise or grouped convolution to several pixels reads the tensor, so
        that it may be fused with the convolution that computes the tensor."""
        reader = self.network.only_reader(name)
        if reader is None or int(reader.attributes.get("group", 1)) == 1:
            return False
        shape = self.network.types[reader.outputs[0]].shape
        return bool(self.config.forward) and shape is not None and shape[2:] != (1, 1)

    # Shapes.

    def root(self, name: str) -> str:
        return self.views.get(name, name)

    def image(self, name: str) -> Image:
        """The shape of a tensor of images. Raises `Unsupported` for another rank or an unknown
        shape."""
        shape = self.network.types[name].shape
        if shape is not None and len(shape) > 4:
            raise Unsupported(
                f"its images have {len(shape) - 2} dimensions; the machine's have two"
            )
        if shape is None:
            raise Unsupported(f"the shape of {name} is known only at run time")
        if len(shape) != 4:
            raise Unsupported(f"{name} has the shape {shape}, not that of images (N, C, H, W)")
        return shape[0], shape[1], shape[2], shape[3]

    def rows(self, name: str) -> Image:
        """The shape of a matrix as one-pixel images; all leading dimensions count as rows."""
        shape = self.network.types[name].shape
        if shape is None:
            raise Unsupported(f"the shape of {name} is known only at run time")
        if not shape:
            raise Unsupported(f"{name} is a scalar")
        return prod(shape[:-1]), shape[-1], 1, 1

    def any_image(self, name: str) -> Image:
        """The shape in which the machine holds a tensor; if none is recorded, its shape as images
        or rows."""
        if self.root(name) in self.images:
            return self.images[self.root(name)]
        shape = self.network.types[name].shape
        return self.image(name) if shape is not None and len(shape) == 4 else self.rows(name)

    def held(self, name: str, image: Image) -> Image:
        """The shape in which the machine holds a tensor. If none is recorded yet, it becomes
        ``image``, in which the host will write the tensor."""
        return self.images.setdefault(self.root(name), image)

    def same_images(self, first: str, second: str, result: str) -> tuple[Image, list[TiledTensor]]:
        """The common shape in which the machine holds both operands and the result of an
        element-wise operator, and the operands as tiled tensors. Raises `Unsupported` if the
        operands' shapes differ, or if a tensor does not have 8 bits."""
        sources = (first, second)
        shapes = [self.network.types[name].shape for name in sources]
        if shapes[0] != shapes[1]:
            raise Unsupported(f"its operands have different shapes: {shapes[0]} and {shapes[1]}")
        self.require_bytes(*sources, result)
        # An operand that the machine already holds determines the shape of the other.
        known = [name for name in sources if self.root(name) in self.images]
        image = self.any_image(known[0] if known else first)
        for name in sources:
            self.require_held(name, image)
        return image, [self.source(name, image) for name in sources]

    def require_held(self, name: str, image: Image) -> None:
        """Raise `Unsupported` unless `is_held`."""
        if not self.is_held(name, image):
            raise Unsupported(f"its input is held as an image of {list(self.held(name, image))}")

    def is_held(self, name: str, image: Image) -> bool:
        """Whether the machine holds a tensor in the shape ``image``, up to the arrangement of the
        pixels of a channel, or will when the host writes it."""
        held = self.held(name, image)
        return (*held[:2], prod(held[2:])) == (*image[:2], prod(image[2:]))

    def product_input(self, name: str, image: Image, fits: bool) -> TiledTensor:
        """A tensor in the layout that GEMM reads, with the shape ``image``.

        Unless the stored layout ``fits``, the host converts it, which costs less than running the
        product on the host.
        """
        return TiledTensor(self.root(name) if fits else name, image, self.input_layout)

    def is_new(self, name: str) -> bool:
        """Whether no layer reads or produces the tensor yet: a layer that reads it is the first in
        its launch.
        """
        return self.root(name) not in self.results | self.sources

    def require_made(self, name: str) -> None:
        """Raise `Unsupported` unless a layer produces the tensor."""
        if self.root(name) not in self.results:
            raise self.not_made(name)

    def not_made(self, name: str) -> Unsupported:
        """The exception for a tensor that no layer produces."""
        root = self.root(name)
        if root in self.network.inputs:
            return Unsupported(f"it reads {name}, an input of the network")
        if root in self.network.constants:
            return Unsupported(f"it reads {name}, a constant")
        return Unsupported("it follows an operator on the host")

    # Numbers.

    def require_bytes(self, *names: str) -> None:
        """Raise `Unsupported` unless these tensors are int8 or uint8, and the machine's integers
        have at least 8 bits."""
        for name in names:
            dtype = self.network.types[name].dtype
            if dtype.kind == "f":
                raise Unsupported("the compiler does not move it from float to integers")
            if dtype not in (np.int8, np.uint8):
                raise Unsupported(f"its data is {dtype}, not int8 or uint8")
        for what, width in (
            ("inputs", self.config.inp_width),
            ("weights", self.config.wgt_width),
            ("outputs", self.config.out_width),
        ):
            if width < 8:
                raise Unsupported(
                    f"integers of 8 bits do not fit the {width}-bit {what} of this machine"
                )

    def require_padding(self, value: int, what: str) -> None:
        """Raise `Unsupported` unless the machine can pad with ``value``; ``what`` names it in the
        message."""
        if value and not self.config.pad_value:
            raise Unsupported(f"it pads with {what}, and the machine with zeros")

    def constant(self, node: Node, index: int) -> Any:
        value = self.network.constants.get(node.inputs[index])
        if value is None:
            raise Unsupported(f"its input {node.inputs[index]} is not constant")
        return value

    def zero_point(self, node: Node, index: int) -> int:
        """The per-tensor zero point at input ``index`` of ``node``, as held by the machine."""
        value = self.constant(node, index)
        if value.size != 1:
            raise Unsupported("a zero point is per channel, not per tensor")
        return int(value.item()) - offset(value.dtype)

    def range(self, name: str) -> Range:
        return self._ranges.get(name, INT8_RANGE)

    def set_range(self, name: str, low: int, high: int) -> None:
        self._ranges[name] = (low, high)

    def note_range(self, node: Node) -> None:
        """Record the range of the result of an operator on the host, if it is known."""
        if node.domain or not node.outputs:
            return
        source, result = node.input(0), node.outputs[0]
        if node.operator == "Clip" and (limits := self.clip_limits(node)) is not None:
            self.set_range(result, *limits)
        elif node.operator == "MaxPool" and source in self._ranges:
            self.set_range(result, *self._ranges[source])

    def clip_limits(self, node: Node) -> Range | None:
        """The bounds of a Clip of 8-bit integers; None if they are not constant."""
        dtype = self.network.types[node.outputs[0]].dtype
        bounds = [self.network.constants.get(name) for name in node.inputs[1:]]
        if dtype not in (np.int8, np.uint8) or len(bounds) != 2:
            return None
        low, high = bounds
        if low is None or high is None or low.size != 1 or high.size != 1 or low > high:
            return None
        return int(low.item()) - offset(dtype), int(high.item()) - offset(dtype)

    def clip_after(self, result: str) -> tuple[Range, tuple[Node, ...]]:
        """The bounds of a Clip that is the only reader of ``result``, and that node; the full range
        and no node otherwise."""
        reader = self.network.only_reader(result)
        if reader is None or reader.operator != "Clip" or reader.domain:
            return INT8_RANGE, ()
        limits = self.clip_limits(reader) if reader.inputs[0] == result else None
        return (INT8_RANGE, ()) if limits is None else (limits, (reader,))


def _dimensions(count: int) -> str:
    return "one dimension" if count == 1 else f"{count or 'no'} dimensions"
