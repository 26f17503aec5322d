"""Finds normalizations of rows in a network: `normalizations`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RowNormalization:
    """``nodes`` that normalize ``x`` over its last axis; the last one computes the result. With
    ``centred`` they subtract the mean. ``scale`` and ``bias`` are (elements,).
    """

    nodes: tuple[Node, ...]
    x: str
    scale: Floats
    bias: Floats
    epsilon: float
    centred: bool


def normalizations(network: Network) -> Iterator[RowNormalization]:
    """Yield LayerNormalization and RMSNormalization, and RMS normalizations composed of ReduceMean,
    Sqrt, a quotient, and a product with a scale, all over the last axis.
    """
    for node in network.nodes:
        found = None
        if not node.domain:
            match node.operator:
                case "LayerNormalization" | "RMSNormalization":
                    found = _of_operator(network, node)
                case "Mul":
                    found = _composed(network, node)
        if found is not None:
            yield found


def _of_operator(network: Network, node: Node) -> RowNormalization | None:
    shape = network.types[node.inputs[0]].shape
    scale = network.constants.get(node.inputs[1])
    bias = network.constants.get(node.input(2))
    last = shape is not None and node.attributes.get("axis", -1) % len(shape) == len(shape) - 1
    if not last or scale is None or (node.input(2) and bias is None):
        return None
    if any(name and network.nodes.readers(name) for name in node.outputs[1:]):
        return None
    return _checked(
        network,
        (node,),
        node.inputs[0],
        scale,
        np.zeros(1) if bias is None else bias,
        float(node.attributes.get("epsilon", 1e-5)),
        node.operator == "LayerNormalization",
    )


def _composed(network: Network, end: Node) -> RowNormalization | None:
    """The RMS normalization that ends with a product with a scale."""
    scales = [name for name in end.inputs if name in network.constants]
    others = [name for name in end.inputs if name not in network.constants]
    if len(scales) != 1 or len(others) != 1:
        return None
    quotient = _made_by(network, others[0], "Div", "Mul")
    if quotient is None:
        return None
    x, root = quotient.inputs
    nodes = [quotient, end]
    if quotient.operator == "Mul":
        inverse = _made_by(network, root, "Div", "Reciprocal")
        if inverse is None:
            x, root = root, x
            inverse = _made_by(network, root, "Div", "Reciprocal")
        if inverse is None:
            return None
        if inverse.operator == "Div" and _number(network, inverse.inputs[0]) != 1:
            return None
        root = inverse.inputs[-1]
        nodes.insert(0, inverse)
    square_root = _made_by(network, root, "Sqrt")
    total = square_root and _made_by(network, square_root.inputs[0], "Add")
    if square_root is None or total is None:
        return None
    for name, other in (total.inputs, total.inputs[::-1]):
        epsilon, mean = _number(network, name), _made_by(network, other, "ReduceMean")
        if epsilon is not None and mean is not None:
            break
    else:
        return None
    square = _made_by(network, mean.inputs[0], "Mul", "Pow")
    if square is None or square.inputs[0] != x or not _is_over_last(network, mean):
        return None
    is_square = square.inputs[1] == x or _number(network, square.inputs[1]) == 2
    if not (is_square and (square.operator == "Mul") == (square.inputs[1] == x)):
        return None
    nodes = [square, mean, total, square_root, *nodes]
    return _checked(
        network, tuple(nodes), x, network.constants[scales[0]], np.zeros(1), epsilon, False
    )


def _checked(
    network: Network,
    nodes: tuple[Node, ...],
    x: str,
    scale: npt.NDArray[np.floating],
    bias: npt.NDArray[np.floating],
    epsilon: float,
    centred: bool,
) -> RowNormalization | None:
    shape = network.types[x].shape
    if not shape or network.types[x].dtype != np.float32:
        return None
    try:
        scales, biases = (
            np.broadcast_to(item.astype(np.float64).reshape(-1), shape[-1:])
            for item in (scale, bias)
        )
    except ValueError:
        return None
    return RowNormalization(nodes, x, scales, biases, epsilon, centred)


@dataclass(frozen=True)
class Scores:
    """The operand of a Softmax: ``factor`` times ``x``. Elements at which ``mask``, integers of 0
    and 1 or booleans, is 0, or 1 if it ``hides``, are excluded; without a mask, none are.
    """

    x: str
    factor: float = 1.0
    mask: str = ""
    hides: bool = False


# Added to scores, a number of this magnitude leaves no share.
_MASKING = -1e4


def scores_of(network: Network, softmax: Node) -> Scores:
    """The scores of a ``softmax``; looks through the addition of (1 - mask) · c or mask · c, with a
    large negative c, and through a product or quotient with a positive constant.
    """
    name, mask, hides, factor = softmax.inputs[0], "", False, 1.0
    total = _made_by(network, name, "Add")
    if total is not None:
        for other, hidden in (total.inputs, total.inputs[::-1]):
            found, hides = _mask_of(network, hidden)
            if found:
                name, mask = other, found
                break
    scaled = _made_by(network, name, "Mul", "Div")
    if scaled is not None:
        constant = _number(network, scaled.inputs[1])
        if constant is not None and constant > 0:
            name = scaled.inputs[0]
            factor = constant if scaled.operator == "Mul" else 1 / constant
    return Scores(name, factor, mask, hides)


def _mask_of(network: Network, hidden: str) -> tuple[str, bool]:
    """The integers or booleans m of a product (1 - m) · c, and False, or of m · c, and True; empty
    if ``hidden`` is computed otherwise.
    """
    product = _made_by(network, hidden, "Mul")
    if product is None:
        return "", False
    for name, other in (product.inputs, product.inputs[::-1]):
        constant = _number(network, other)
        if constant is None or constant > _MASKING:
            continue
        less = _made_by(network, name, "Sub")
        if less is not None and _number(network, less.inputs[0]) != 1:
            continue
        cast = _made_by(network, name if less is None else less.inputs[1], "Cast")
        if cast is not None and network.types[cast.inputs[0]].dtype.kind in "iub":
            return cast.inputs[0], less is None
    return "", False


def _made_by(network: Network, name: str, *operators: str) -> Node | None:
    maker = network.maker(name)
    return maker if maker is not None and not maker.domain and maker.operator in operators else None


def _number(network: Network, name: str) -> float | None:
    value = network.constants.get(name)
    return float(value.item()) if value is not None and value.size == 1 else None


def _is_over_last(network: Network, mean: Node) -> bool:
    shape = network.types[mean.inputs[0]].shape
    axes = mean.attributes.get("axes")
    if mean.input(1) in network.constants:
        axes = network.constants[mean.input(1)].tolist()
    keeps = bool(mean.attributes.get("keepdims", 1))
    return bool(shape and axes and keeps and [a % len(shape) for a in axes] == [len(shape) - 1])
