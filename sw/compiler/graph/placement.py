"""What of a canonical network the machine runs, and why the rest runs on the host."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d, conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense, dense
from amaranth_vta.sw.compiler.operators.max_pool2d import MaxPool2d, max_pool2d
from amaranth_vta.sw.compiler.operators.requantize import Requantize
from amaranth_vta.sw.compiler.operators.tiling import NoScheduleFits

from .layout import TileLayout, input_layout, output_layout, pack_bias, pack_weights, tiles
from .network import ModelError, Network, Node

Image = tuple[int, int, int, int]
Bytes = npt.NDArray[np.uint8]
# Up to here a sum that ONNX Runtime would round on its way to float32 is clipped anyway.
_LARGEST_SHIFT = 16


@dataclass(frozen=True)
class Layer:
    """An operator on the machine.

    It reads tensor ``source``, shape ``source_image`` (N, C, H, W) in ``source_layout``, and
    writes ``result`` likewise. ``constants`` are the other arguments of ``function``, between the
    two, by name. ``macs`` are those of the network, without what padding to tiles adds.
    """

    name: str
    operator: str
    nodes: tuple[Node, ...]
    source: str
    source_image: Image
    source_layout: TileLayout
    result: str
    result_image: Image
    result_layout: TileLayout
    function: Function
    constants: dict[str, Bytes]
    macs: int


@dataclass(frozen=True)
class HostNode:
    """An operator on the host, and why it is there."""

    node: Node
    reason: str


@dataclass
class Placement:
    """Layers and host nodes in the order of the network.

    ``views`` are tensors of the machine that are other names of what another tensor holds: the
    name of that one. ``images`` are the shapes (N, C, H, W) in which the machine holds tensors.
    """

    items: list[Layer | HostNode]
    views: dict[str, str]
    images: dict[str, Image]


class _NotHere(Exception):
    """Why an operator cannot be on the machine."""


def place(network: Network, config: Config) -> Placement:
    """Puts each operator that fits on the machine of ``config``, the others on the host."""
    return _Placer(network, config).place()


class _Placer:
    def __init__(self, network: Network, config: Config) -> None:
        self.network = network
        self.config = config
        self.env = Environment(config)
        self.consumers = network.consumers()
        self.views: dict[str, str] = {}
        self.images: dict[str, Image] = {}
        # Tensors that the machine makes.
        self.results: set[str] = set()
        # Tensors without negative values, for which padding with zeros is padding with the least.
        self.positive: set[str] = set()
        self.absorbed: set[str] = set()

    def place(self) -> Placement:
        items: list[Layer | HostNode] = []
        for node in self.network.nodes:
            if node.name in self.absorbed:
                continue
            try:
                if self._is_view(node):
                    self._view(node)
                    continue
                layer = self._layer(node)
                self.images[layer.result] = layer.result_image
                self.results.add(layer.result)
                items.append(layer)
            except (_NotHere, NoScheduleFits) as reason:
                items.append(HostNode(node, str(reason)))
                self._note_sign(node)
        return Placement(items, self.views, self.images)

    def _layer(self, node: Node) -> Layer:
        match node.domain, node.operator:
            case "", "QLinearConv":
                return self._convolution(node)
            case "", "MaxPool":
                return self._max_pool(node)
            case "", "QuantizeLinear" | "DequantizeLinear":
                raise _NotHere("float tensors are the host's")
            case "", "Conv" | "Gemm" | "MatMul":
                raise _NotHere(
                    f"{node.operator} is in float: it is not between DequantizeLinear and "
                    "QuantizeLinear of one integer type, with a bias of their scale"
                )
            case "", "Clip" if node.inputs[0] not in self.results:
                raise _NotHere("it follows an operator on the host")
        raise _NotHere(f"the machine has no {node.operator}")

    def _note_sign(self, node: Node) -> None:
        """Learns from an operator on the host what `positive` says."""
        low = self.network.constants.get(node.input(1))
        clip = node.operator == "Clip" and low is not None and low.item() >= 0
        pool = node.operator == "MaxPool" and node.inputs[0] in self.positive
        if not node.domain and (clip or pool):
            self.positive.add(node.outputs[0])

    # Convolution.

    def _convolution(self, node: Node) -> Layer:
        source, result = node.inputs[0], node.outputs[0]
        image, out = self._source_image(source), self._shape(result)
        self._require_int8(node)
        weights = self.network.constants.get(node.inputs[3])
        if weights is None:
            raise _NotHere("its weights are not constant")
        if self._constant(node, 2).any() or self._constant(node, 7).any():
            raise _NotHere("a zero point is not zero")
        if self._constant(node, 5).any():
            raise _NotHere("the zero point of its weights is not zero")
        if node.attributes.get("group", 1) != 1:
            raise _NotHere("its channels are in groups")
        if weights.shape[1] != image[1]:
            raise ModelError(
                f"{node.name}: its weights are for {weights.shape[1]} channels, its input "
                f"{source} has {image[1]}"
            )
        window = _window(node, image, out, weights.shape[2:])
        low, high, last = self._clip_after(result)
        requantize = Requantize(self._shift(node), low, high)
        bias = np.zeros(len(weights), np.int64)
        if node.input(8):
            bias += self._constant(node, 8)
        self._require_no_overflow(weights, bias, requantize.half, source in self.positive)
        batch = tiles(image[0], self.config.batch)
        outputs = tiles(len(weights), self.config.block_out)
        constants = {
            "weights": weights,
            "bias": bias + requantize.half,
        }
        held = self._held(source, image)
        if (window.kernel, window.pads, image[2:]) == ((1, 1), (0, 0, 0, 0), (1, 1)):
            # Features in the order in which the image that they were is held.
            inputs = tiles(held[1], self.config.block_in) * held[2] * held[3]
            constants["weights"] = weights.reshape(len(weights), *held[1:])
            workload = Dense(batch, inputs, outputs, requantize)
            function = dense(workload, self.env, name=_identifier(node.name))
        else:
            if held != image:
                raise _NotHere(f"its input is held as an image of {held}")
            convolution = Conv2d(
                batch=batch,
                inputs=tiles(image[1], self.config.block_in),
                outputs=outputs,
                height=image[2],
                width=image[3],
                kernel=window.kernel,
                requantize=requantize,
                strides=window.strides,
                dilations=window.dilations,
                pads=window.pads,
            )
            if (convolution.output_height, convolution.output_width) != out[2:]:
                raise _NotHere("its windows end outside of the padding")
            function = conv2d(convolution, self.env, name=_identifier(node.name))
        self._absorb(last)
        if low >= 0:
            self.positive.add(last.outputs[0] if last else result)
        return Layer(
            name=node.name,
            operator=node.operator,
            nodes=(node, *([last] if last else [])),
            source=self._root(source),
            source_image=held,
            source_layout=input_layout(self.config),
            result=last.outputs[0] if last else result,
            result_image=out,
            result_layout=output_layout(self.config),
            function=function,
            constants={
                "weights": pack_weights(constants["weights"], self.config),
                "bias": pack_bias(constants["bias"], self.config),
            },
            macs=prod(out) * prod(weights.shape[1:]),
        )

    def _shift(self, node: Node) -> int:
        """The n of an effective scale 2^-n."""
        x, w, y = (self._constant(node, index) for index in (1, 4, 6))
        scales = np.unique(((x * w).astype(np.float32) / y).astype(np.float32))
        if len(scales) > 1:
            raise _NotHere("its scale differs from channel to channel")
        scale = float(scales[0])
        shift = -log2(scale) if scale > 0 else 0.5
        if shift != int(shift):
            raise _NotHere(f"its scale {scale:.6g} is not a power of two")
        if not 0 <= shift <= _LARGEST_SHIFT:
            raise _NotHere(f"its scale 2^{-int(shift)} is not within 2^-{_LARGEST_SHIFT} and 1")
        return int(shift)

    def _require_no_overflow(
        self, weights: Any, bias: npt.NDArray[np.int64], half: int, positive: bool
    ) -> None:
        flat = weights.reshape(len(weights), -1).astype(np.int64)
        ups = np.where(flat > 0, flat, 0).sum(axis=1)
        downs = np.where(flat < 0, flat, 0).sum(axis=1)
        low, high = (0, 127) if positive else (-128, 127)
        most = int((ups * high + downs * low + bias).max()) + half
        least = int((ups * low + downs * high + bias).min()) - 1
        limit = 1 << self.config.acc_width - 1
        if most >= limit or least < -limit:
            raise _NotHere(f"its sums can exceed {self.config.acc_width}-bit accumulators")

    def _clip_after(self, result: str) -> tuple[int, int, Node | None]:
        """Limits of an int8 Clip that alone reads ``result``, and that node."""
        readers = self.consumers.get(result, [])
        if len(readers) == 1 and result not in self.network.outputs:
            (reader,) = readers
            bounds = [self.network.constants.get(name) for name in reader.inputs[1:]]
            if reader.operator == "Clip" and not reader.domain and len(bounds) == 2:
                low, high = bounds
                if low is not None and high is not None and low.item() <= high.item():
                    return int(low.item()), int(high.item()), reader
        return -128, 127, None

    # Pooling and views.

    def _max_pool(self, node: Node) -> Layer:
        source, result = node.inputs[0], node.outputs[0]
        image, out = self._source_image(source), self._shape(result)
        self._require_int8(node)
        if len([name for name in node.outputs if name]) != 1:
            raise _NotHere("the machine does not find the places of maxima")
        window = _window(node, image, out, ())
        if window.dilations != (1, 1):
            raise _NotHere("its window has gaps")
        if any(window.pads) and source not in self.positive:
            raise _NotHere("the machine pads with zeros, and values may be negative")
        if self._held(source, image) != image:
            raise _NotHere("its input is held as another image")
        workload = MaxPool2d(
            batch=tiles(image[0], self.config.batch),
            channels=tiles(image[1], self.config.block_out),
            height=image[2],
            width=image[3],
            kernel=window.kernel,
            strides=window.strides,
            pads=window.pads,
        )
        if (workload.output_height, workload.output_width) != out[2:]:
            raise _NotHere("its windows end outside of the padding")
        if source in self.positive:
            self.positive.add(result)
        return Layer(
            name=node.name,
            operator=node.operator,
            nodes=(node,),
            source=self._root(source),
            source_image=image,
            source_layout=output_layout(self.config),
            result=result,
            result_image=out,
            result_layout=output_layout(self.config),
            function=max_pool2d(workload, self.env, name=_identifier(node.name)),
            constants={},
            macs=0,
        )

    def _is_view(self, node: Node) -> bool:
        return not node.domain and node.operator in ("Flatten", "Reshape", "Squeeze", "Unsqueeze")

    def _view(self, node: Node) -> None:
        """Another name of an image, where the layout does not change or no longer matters."""
        root = self._root(node.inputs[0])
        if root not in self.results:
            raise _NotHere("it follows an operator on the host")
        held, shape = self.images[root], self.network.types[node.outputs[0]].shape
        features = (held[0], prod(held[1:]))
        if shape not in (held, features, (*features, 1, 1)):
            raise _NotHere("it changes the layout")
        if node.inputs[0] in self.positive:
            self.positive.add(node.outputs[0])
        self.views[node.outputs[0]] = root

    # Tensors.

    def _shape(self, name: str) -> Image:
        shape = self.network.types[name].shape
        if shape is None or len(shape) != 4:
            raise _NotHere(f"{name} is not an image (N, C, H, W) of fixed size")
        return shape[0], shape[1], shape[2], shape[3]

    def _source_image(self, name: str) -> Image:
        if name in self.network.constants:
            raise _NotHere("its input is constant")
        return self._shape(name)

    def _root(self, name: str) -> str:
        return self.views.get(name, name)

    def _held(self, name: str, image: Image) -> Image:
        """The shape in which the machine holds a tensor, or will when the host writes it."""
        return self.images.setdefault(self._root(name), image)

    def _absorb(self, node: Node | None) -> None:
        if node is not None:
            self.absorbed.add(node.name)

    def _constant(self, node: Node, index: int) -> Any:
        value = self.network.constants.get(node.inputs[index])
        if value is None:
            raise _NotHere(f"its input {node.inputs[index]} is not constant")
        return value

    def _require_int8(self, node: Node) -> None:
        for name in (node.inputs[0], node.outputs[0]):
            dtype = self.network.types[name].dtype
            if dtype != np.int8:
                raise _NotHere(f"its data is {dtype}, not int8")
        for what, width in (
            ("inputs", self.config.inp_width),
            ("weights", self.config.wgt_width),
            ("outputs", self.config.out_width),
        ):
            if width < 8:
                raise _NotHere(f"int8 does not fit the {width}-bit {what} of this machine")


@dataclass(frozen=True)
class _Window:
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]


def _window(node: Node, image: Image, out: Image, kernel: tuple[int, ...]) -> _Window:
    """How a window moves over an image; padding as far as it reaches, whatever the attributes
    call it."""
    attributes = node.attributes
    kernel = tuple(attributes.get("kernel_shape", kernel))
    strides = tuple(attributes.get("strides", (1, 1)))
    dilations = tuple(attributes.get("dilations", (1, 1)))
    pads = list(attributes.get("pads", (0, 0, 0, 0)))
    automatic = attributes.get("auto_pad", "NOTSET")
    for axis in (0, 1):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        spanned = (out[2 + axis] - 1) * strides[axis] + reach
        if automatic in ("SAME_UPPER", "SAME_LOWER"):
            total = max(spanned - image[2 + axis], 0)
            pads[axis] = total // 2 if automatic == "SAME_UPPER" else total - total // 2
        pads[2 + axis] = max(spanned - image[2 + axis] - pads[axis], 0)
    return _Window(
        (kernel[0], kernel[1]),
        (strides[0], strides[1]),
        (dilations[0], dilations[1]),
        (pads[0], pads[1], pads[2], pads[3]),
    )


def _identifier(name: str) -> str:
    """A name for the function of a node, whose own may have any characters."""
    return "".join(c if c.isalnum() else "_" for c in name) or "layer"
