"""What float operators between a DequantizeLinear and a QuantizeLinear make of one tensor.

However many they are: each element of the result depends on one of 256 values, and on its channel
where constants differ from channel to channel. ONNX Runtime computes all of them when compiling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from amaranth_vta.sw.compiler.graph.canonical.quantization import INT8, parameters_of
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.parts.fixed_point import Array
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from amaranth_vta.sw.runtime.network.tensor_type import TensorType
from amaranth_vta.sw.runtime.network.tile_layout import Image, offset

from .layer import NotHere

# Operators whose results depend on the elements at the same place alone.
_ELEMENTWISE = frozenset(
    {
        *("Abs", "Add", "BatchNormalization", "Ceil", "Celu", "Clip", "Cos", "Div", "Elu", "Erf"),
        *("Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log"),
        *("Max", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow", "Reciprocal", "Relu", "Round"),
        *("Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish"),
        *("Tanh", "ThresholdedRelu"),
    }
)
_QUANTIZATIONS = frozenset({"QuantizeLinear", "DequantizeLinear"})
CLAMPS = frozenset({"Clip", "Relu"})
# Of com.microsoft.
_CONTRIBUTED = frozenset({"BiasGelu", "FastGelu", "Gelu", "QuickGelu"})
_MOST_NODES = 64


@dataclass(frozen=True)
class OneTensor:
    """``nodes``, in their order, make ``result``, 8-bit integers, of ``source``, 8-bit integers,
    and of constants."""

    source: str
    result: str
    nodes: tuple[Node, ...]

    def zero_point(self, network: Network) -> int:
        """That of the result, as the machine holds it."""
        parameters = parameters_of(network, self.nodes[-1], "QuantizeLinear")
        zero = network.constants.get(self.nodes[-1].inputs[-1])
        if parameters is not None:
            zero = parameters.zero
        if zero is None or zero.dtype not in INT8:
            return 0
        return int(zero.item()) - offset(zero.dtype)

    @property
    def operators(self) -> list[Node]:
        """Without quantizations."""
        return [node for node in self.nodes if node.operator not in _QUANTIZATIONS]


def before(network: Network, quantize: Node) -> OneTensor | None:
    """The operators from a DequantizeLinear to ``quantize``; None if they are of no tensor or of
    several, or if others than element-wise ones are among them."""
    sources: set[str] = set()
    found: dict[int, Node] = {id(quantize): quantize}
    names = [quantize.inputs[0]]
    while names:
        name = names.pop()
        node = network.maker(name)
        if name in network.constants:
            continue
        if node is None or len(found) > _MOST_NODES:
            return None
        if id(node) in found:
            continue
        found[id(node)] = node
        parameters = parameters_of(network, node, "DequantizeLinear")
        if parameters is not None:
            if node.inputs[0] in network.constants:
                continue
            if not parameters.per_tensor or parameters.zero.dtype not in INT8:
                return None
            sources.add(node.inputs[0])
        elif is_elementwise(node):
            names += node.reads
        else:
            return None
    if len(sources) != 1:
        return None
    nodes = sorted(found.values(), key=network.nodes.place)
    return OneTensor(sources.pop(), quantize.outputs[0], tuple(nodes))


def is_elementwise(node: Node) -> bool:
    known = _CONTRIBUTED if node.domain == "com.microsoft" else _ELEMENTWISE
    return node.domain in ("", "com.microsoft") and node.operator in known


def results(network: Network, function: OneTensor, image: Image) -> Array:
    """int64 (256, channels or 1): what becomes of each value, as the machine holds both.

    ``image`` is the shape in which the machine holds the tensor. Raises `NotHere` if constants
    differ within a channel.
    """
    shape = network.types[function.source].shape
    assert shape is not None
    axis = 1 if shape[:2] == image[:2] else len(shape) - 1
    channels = image[1]
    if len(shape) < 2 or shape[axis] != channels:
        raise NotHere("its channels are not an axis of their own")
    sizes = [1] * len(shape)
    sizes[axis] = channels
    sizes[0 if axis else 1] = 256
    dtype = network.types[function.source].dtype
    values = (np.arange(-128, 128) + offset(dtype)).astype(dtype)
    along = [1] * len(shape)
    along[0 if axis else 1] = 256
    given = np.ascontiguousarray(np.broadcast_to(values.reshape(along), sizes))
    made = _computed(network, function, given)
    if made.shape != given.shape:
        raise NotHere("its constants differ within a channel")
    table = np.moveaxis(made, axis, -1).reshape(256, channels).astype(np.int64)
    table -= offset(made.dtype)
    same = bool((table == table[:, :1]).all())
    return table[:, :1] if same else table


def _computed(network: Network, function: OneTensor, given: Array) -> Array:
    types = dict(network.types)
    types[function.source] = TensorType(given.dtype, given.shape)
    types[function.result] = replace(types[function.result], shape=None)
    part = replace(network, types=types).part(function.nodes, [function.source], [function.result])
    try:
        session = exact_session(part.SerializeToString())
        return run_session(session, [function.result], {function.source: given})[function.result]
    except ModelError:  # of constants that are not for these channels
        raise NotHere("its constants are not those of its channels") from None


def named(nodes: Sequence[Node]) -> str:
    """The operators of a function, for messages: ``Mul``, or ``Mul, Add``."""
    return ", ".join(dict.fromkeys(node.operator for node in nodes))
