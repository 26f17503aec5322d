"""Functions of one tensor: float operators from its DequantizeLinear to a QuantizeLinear.

However many operators there are, each element of the result depends only on one of 256 values, and
on its channel if constants differ per channel. ONNX Runtime computes all of these results at
compile time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from amaranth_vta.sw.compiler.graph.canonical.quantization import BYTE_TYPES, parameters_of
from amaranth_vta.sw.compiler.graph.elementwise import is_elementwise
from amaranth_vta.sw.compiler.graph.integer_operators import LOOKUP, LOOKUP_PAIR
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import Array
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from amaranth_vta.sw.runtime.network.tile_layout import Image, offset

from .layer import Unsupported

_QUANTIZATIONS = frozenset({"QuantizeLinear", "DequantizeLinear"})
CLAMPS = frozenset({"Clip", "Relu"})
# Element-wise operators on integers, with the positions of their tensor inputs.
QUANTIZED = {
    "QLinearAdd": (0, 3),
    "QLinearMul": (0, 3),
    "QLinearLeakyRelu": (0,),
    "QLinearSigmoid": (0,),
    LOOKUP: (0,),
    LOOKUP_PAIR: (0, 1),
}
# Operators that round once or not at all: results do not depend on an element's position in a
# vector.
_ROUNDED_ONCE = frozenset(
    {
        *("Abs", "Add", "Ceil", "Clip", "Div", "Floor", "Identity", "LeakyRelu", "Max", "Min"),
        *("Mul", "Neg", "PRelu", "Relu", "Round", "Sign", "Sqrt", "Sub", "ThresholdedRelu"),
        *(LOOKUP, LOOKUP_PAIR, *_QUANTIZATIONS),
    }
)
# Sizes of tensors to try. With up to 16 shifts, each value takes each position in a vector of up to
# 16 elements; 15 elements leave a remainder after vectors of 8, and 3 fill no vector.
_VECTOR = 16
_LEFT_OVER = (15, 3)
_MAX_NODES = 64


@dataclass(frozen=True)
class OneTensor:
    """A function: ``nodes``, in order, compute the 8-bit integers ``result`` from the 8-bit
    integers ``source`` and constants. The layer absorbs the last nodes, ``ends``; the results of
    the others may have other readers."""

    source: str
    result: str
    nodes: tuple[Node, ...]
    ends: tuple[Node, ...] = ()

    def zero_point(self, network: Network) -> int:
        """The zero point of the result, as held by the machine."""
        parameters = parameters_of(network, self.nodes[-1], "QuantizeLinear")
        zero = network.constants.get(self.nodes[-1].inputs[-1])
        if parameters is not None:
            zero = parameters.zero
        if zero is None or zero.dtype not in BYTE_TYPES:
            return 0
        first, *others = np.unique(zero)
        if others:
            raise Unsupported("its zero point differs per channel")
        return int(first) - offset(zero.dtype)

    @property
    def absorbed(self) -> tuple[Node, ...]:
        """The nodes that run only in the layer."""
        return self.ends or self.nodes[-1:]

    @property
    def name(self) -> Node:
        """The node after which the layer is named."""
        return self.ends[0] if self.ends else (self.operators or self.nodes)[-1]

    @property
    def operators(self) -> list[Node]:
        """The nodes except QuantizeLinear and DequantizeLinear."""
        return [node for node in self.nodes if node.operator not in _QUANTIZATIONS]


def before(network: Network, last: Node) -> OneTensor | None:
    """Find the element-wise operators from one tensor of 8-bit integers to ``last``, a
    QuantizeLinear or an integer operator of com.microsoft. None if they start from no tensor or
    from several, or if one is not element-wise.

    Branches that rejoin, as in x · Sigmoid(x), start from one tensor.
    """
    inner: set[str] = set()
    while True:
        found = _between(network, last, inner)
        if found is None or not found[0]:
            return None
        sources, nodes = found
        if len(sources) == 1:
            ordered = sorted(nodes, key=network.nodes.place)
            return OneTensor(sources.pop(), last.outputs[0], tuple(ordered))
        # The source produced last is not an ancestor of the others.
        makers = {name: network.maker(name) for name in sources}
        known = {name: node for name, node in makers.items() if node is not None}
        if not known:
            return None
        latest = max(known, key=lambda name: network.nodes.place(known[name]))
        if not _makes_bytes(network, known[latest]):
            return None
        inner.add(latest)


def _between(network: Network, last: Node, inner: set[str]) -> tuple[set[str], list[Node]] | None:
    """The non-constant integer tensors from which ``last`` is computed, and the nodes in between.
    The search continues through integer tensors in ``inner``. None if a node is not
    element-wise."""
    sources: set[str] = set()
    found: dict[int, Node] = {}
    nodes = [last]
    while nodes:
        node = nodes.pop()
        if id(node) in found:
            continue
        found[id(node)] = node
        read = _read(network, node)
        if read is None or len(found) > _MAX_NODES:
            return None
        integers = node.operator == "DequantizeLinear" or node.operator in QUANTIZED
        for name in read:
            if name in network.constants:
                continue
            maker = network.maker(name)
            if integers and name not in inner:
                sources.add(name)
            elif maker is None:
                return None
            else:
                nodes.append(maker)
    return sources, list(found.values())


def _read(network: Network, node: Node) -> Sequence[str] | None:
    """The tensors that an element-wise operator reads as operands; None for other nodes."""
    if node.operator in QUANTIZED:
        return [node.inputs[at] for at in QUANTIZED[node.operator]]
    if node.operator == "DequantizeLinear":
        parameters = parameters_of(network, node, node.operator)
        if node.inputs[0] not in network.constants and (
            parameters is None
            or not parameters.per_tensor
            or parameters.zero.dtype not in BYTE_TYPES
        ):
            return None
        return node.inputs[:1]
    if node.operator == "QuantizeLinear":
        return node.inputs[:1]
    return node.reads if is_elementwise(node) else None


def _makes_bytes(network: Network, node: Node) -> bool:
    if node.operator in QUANTIZED:
        return True
    parameters = parameters_of(network, node, "QuantizeLinear")
    return parameters is not None and parameters.per_tensor and parameters.zero.dtype in BYTE_TYPES


def results(network: Network, function: OneTensor, image: Image) -> Array:
    """Compute the results, int64 (256, channels or 1), for the values -128 to 127. Values and
    results are as held by the machine.

    ``image`` is the shape in which the machine holds the tensor. Raises `Unsupported` if constants
    differ within a channel.
    """
    shape = network.types[function.source].shape
    assert shape is not None
    axis = 1 if shape[:2] == image[:2] else len(shape) - 1
    channels = image[1]
    if len(shape) < 2 or shape[axis] != channels:
        raise Unsupported("its channels are not an axis of the tensor")
    sizes = [1] * len(shape)
    sizes[axis] = channels
    sizes[0 if axis else 1] = 256
    dtype = network.types[function.source].dtype
    values = (np.arange(-128, 128) + offset(dtype)).astype(dtype)
    along = [1] * len(shape)
    along[0 if axis else 1] = 256
    given = np.ascontiguousarray(np.broadcast_to(values.reshape(along), sizes))
    compute = _Compute(network, function)
    made = compute(given)
    if made.shape != given.shape:
        raise Unsupported("its constants differ within a channel")
    table = np.moveaxis(made, axis, -1).reshape(256, channels).astype(np.int64)
    table -= offset(made.dtype)
    if not (table == table[:, :1]).all():
        return table
    if any(node.operator not in _ROUNDED_ONCE for node in function.nodes):
        _require_everywhere(compute, given, made, axis)
    return table[:, :1]


def _require_everywhere(compute: _Compute, given: Array, made: Array, axis: int) -> None:
    """Raise `Unsupported` if a result depends on the element's position in ONNX Runtime's vectors,
    or on being in the remainder of a tensor. All channels of ``given`` and ``made`` are equal."""
    values, wanted = (np.take(array, [0], axis) for array in (given, made))
    try:
        if compute(values).shape != values.shape:
            return
    except Unsupported:  # per-channel constants that are equal, and only added or multiplied
        return
    along = 0 if axis else 1
    turned = (np.arange(256) + np.arange(_VECTOR)[:, None]).ravel() % 256
    parts = [turned]
    for count in _LEFT_OVER:
        parts += [np.arange(begin, begin + count) % 256 for begin in range(0, 256, count)]
    for part in parts:
        if not np.array_equal(compute(values.take(part, along)), wanted.take(part, along)):
            raise Unsupported("ONNX Runtime computes it differently at the end of a tensor")


class _Compute:
    """Run the function in ONNX Runtime, on arrays of any size."""

    def __init__(self, network: Network, function: OneTensor) -> None:
        types = dict(network.types)
        for name in (function.source, function.result):
            types[name] = replace(types[name], shape=None)
        known = replace(network, types=types)
        part = known.part(function.nodes, [function.source], [function.result])
        self._function = function
        try:
            self._session = exact_session(part.SerializeToString())
        except ModelError:
            raise Unsupported("ONNX Runtime cannot run it apart from the network") from None

    def __call__(self, given: Array) -> Array:
        source, result = self._function.source, self._function.result
        try:
            return run_session(self._session, [result], {source: given})[result]
        except ModelError:  # constants of another shape
            raise Unsupported("its constants are neither one nor one per channel") from None


def named(nodes: Sequence[Node]) -> str:
    """The operators of a function, for messages: ``Mul``, or ``Mul, Add``."""
    return ", ".join(dict.fromkeys(node.operator for node in nodes))
