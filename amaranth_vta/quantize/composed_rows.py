"""Finds LayerNormalization and Softmax that exporters wrote as several operators:
`with_row_operators`.

Exporters write them in many forms: a variance as a mean of squares less the square of the mean, a
scale that is multiplied into the reciprocal root, a sum times 1/n. So the operators between a
tensor and a result of its shape are run with chosen inputs, and their results compared with the
function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from amaranth_vta.sw.compiler.graph.load.opsets import opset_of, with_known_opset
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from amaranth_vta.sw.runtime.network.tensor_type import TensorType
from amaranth_vta.sw.runtime.network.tile_layout import Array

from .open_models import closed, folded, reopened

Floats = npt.NDArray[np.float64]

_REDUCTIONS = frozenset({"ReduceMax", "ReduceMean", "ReduceSum"})
_OF_ONE_TENSOR = frozenset({"Exp", "Mul", "Pow"})
_STEPS = _REDUCTIONS | {
    *("Add", "Cast", "Div", "Exp", "Expand", "Identity", "Max", "Mul", "Neg", "Pow"),
    *("Reciprocal", "Reshape", "Sqrt", "Squeeze", "Sub", "Unsqueeze"),
}
# Greatest number of operators of a function.
_MOST_STEPS = 32
_GREATEST_EPSILON = 0.01
# The first opset with LayerNormalization.
_NORMALIZATION_OPSET = 17
# Greatest difference from a function, as a part of the largest result.
_NEAR = 1e-3


@dataclass(frozen=True)
class ComposedRows:
    """Operators that compute ``y`` from ``x`` alone: Softmax over ``axis``, or LayerNormalization
    with ``scale`` and ``bias``, (elements,), and ``epsilon``.
    """

    x: str
    y: str
    axis: int
    scale: Array | None = None
    bias: Array | None = None
    epsilon: float = 0.0


def with_row_operators(model: onnx.ModelProto, kept: Collection[str] = ()) -> onnx.ModelProto:
    """Return ``model`` with a LayerNormalization or Softmax in place of operators that compute its
    results, converted to an opset that has them if necessary. Operators with a name or a result in
    ``kept`` remain.
    """
    if not any(node.op_type in _REDUCTIONS for node in model.graph.node):
        return model
    found = list(composed_rows(folded(model), kept))
    if any(item.scale is not None for item in found):
        try:
            version = opset_of("the model", model)
            needed = max(version, _NORMALIZATION_OPSET)
            model = with_known_opset("the model", model, version, needed)
        except ModelError:  # some operators cannot be converted
            found = [item for item in found if item.scale is None]
    if not found:
        return model
    network = closed(model)
    for item in found:
        _replace(network, item)
    return reopened(network, model)


def composed_rows(network: Network, kept: Collection[str] = ()) -> Iterator[ComposedRows]:
    """Yield the functions that ``network``, of fixed shapes, computes by several operators, without
    those named in ``kept``.
    """
    done: set[str] = set()
    for node in network.nodes:
        if node.operator not in _REDUCTIONS or node.domain or node.name in done:
            continue
        axis = _axis_of(network, node)
        if axis is None:
            continue
        for x, y, steps in _regions(network, node):
            names = {name for step in steps for name in (step.name, *step.outputs)}
            if not names.isdisjoint(kept):
                continue
            found = _function(network, x, y, steps, axis)
            if found is not None:
                done.update(step.name for step in steps)
                yield found
                break


def _axis_of(network: Network, node: Node) -> int | None:
    """The axis that a reduction is over; None if there are several, or it is not known."""
    shape = network.types[node.inputs[0]].shape
    axes = node.attributes.get("axes")
    if node.input(1) in network.constants:
        axes = network.constants[node.input(1)].reshape(-1).tolist()
    if shape is None or axes is None or len(axes) != 1 or not shape:
        return None
    return int(axes[0]) % len(shape)


def _regions(network: Network, reduction: Node) -> Iterator[tuple[str, str, list[Node]]]:
    """Yield x, y, and the operators between them, for results y of the shape of x that depend on
    the ``reduction`` and on no tensor but x; most operators first.
    """
    x = reduction.inputs[0]
    maker = network.maker(x)
    if maker is not None and maker.operator in _OF_ONE_TENSOR and not maker.domain:
        computed = {name for name in maker.reads if name not in network.constants}
        if len(computed) == 1:
            (x,) = computed
    info = network.types[x]
    if info.shape is None or 0 in info.shape or info.dtype != np.float32:
        return
    before: dict[str, list[Node]] = {x: []}  # the operators that each tensor depends on
    ends: list[str] = []
    for node in network.nodes:
        reads = [name for name in node.reads if name not in network.constants]
        if not reads or node.operator not in _STEPS or node.domain or len(node.outputs) != 1:
            continue
        if not all(name in before for name in reads):
            continue
        earlier = {step.name: step for name in reads for step in before[name]}
        if len(earlier) >= _MOST_STEPS:
            continue
        (y,) = node.outputs
        before[y] = [*earlier.values(), node]
        if reduction.name in earlier and network.types[y].shape == info.shape:
            ends.append(y)
    for y in sorted(ends, key=lambda name: -len(before[name])):
        names = {step.name for step in before[y]}
        yield x, y, [node for node in network.nodes if node.name in names]


def _function(
    network: Network, x: str, y: str, steps: list[Node], axis: int
) -> ComposedRows | None:
    """The function that ``steps`` compute; None if it is another one."""
    shape = network.types[x].shape
    assert shape is not None
    session = exact_session(network.part(steps, [x], [y]).SerializeToString())

    def run(rows: Floats) -> Floats:
        """The results for ``rows``, (rows, elements)."""
        moved = np.moveaxis(np.zeros(shape, np.float32), axis, -1)
        values = np.moveaxis(rows.reshape(moved.shape), -1, axis).astype(np.float32)
        result = run_session(session, [y], {x: np.ascontiguousarray(values)})[y]
        return np.moveaxis(result, axis, -1).reshape(rows.shape).astype(np.float64)

    elements = shape[axis]
    rows = np.random.default_rng(0).normal(0.3, 1, (int(np.prod(shape)) // elements, elements))
    operators = {step.operator for step in steps}
    if "Exp" in operators:
        return ComposedRows(x, y, axis) if _is_softmax(run, rows) else None
    if elements > 1 and operators & {"Sqrt", "Pow"}:
        constants = (network.constants.get(name) for step in steps for name in step.reads)
        numbers = {float(item.item()) for item in constants if item is not None and item.size == 1}
        for epsilon in sorted(numbers):
            if 0 < epsilon <= _GREATEST_EPSILON:
                line = _line(run, rows, epsilon)
                if line is not None:
                    scale, bias = (item.astype(np.float32) for item in line)
                    return ComposedRows(x, y, axis, scale, bias, epsilon)
    return None


def _is_softmax(run: Callable[[Floats], Floats], rows: Floats) -> bool:
    shares = np.exp(rows - rows.max(axis=1, keepdims=True))
    return _are_near(run(rows), shares / shares.sum(axis=1, keepdims=True))


def _line(
    run: Callable[[Floats], Floats], rows: Floats, epsilon: float
) -> tuple[Floats, Floats] | None:
    """Scale and bias, (elements,), with which ``run`` normalizes ``rows``; None if it does not."""
    bias = run(np.zeros_like(rows))[0]
    signs = np.ones_like(rows)
    signs[:, ::2] = -1
    scale = (run(signs) - bias)[0] / _normalized(signs, epsilon)[0]
    # Values as small as epsilon show that it is added to the variance.
    for size in (1, np.sqrt(epsilon)):
        if not _are_near(run(rows * size), _normalized(rows * size, epsilon) * scale + bias):
            return None
    return scale, bias


def _normalized(rows: Floats, epsilon: float) -> Floats:
    centred = rows - rows.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon)


def _are_near(found: Floats, wanted: Floats) -> bool:
    if not np.isfinite(found).all():
        return False
    return bool(np.abs(found - wanted).max() <= _NEAR * np.abs(wanted).max())


def _replace(network: Network, found: ComposedRows) -> None:
    """Compute ``found`` by one operator, between Transposes if it is not over the last axis."""
    end = network.maker(found.y)
    assert end is not None
    name = end.name
    info = network.types[found.y]
    shape = info.shape or network.types[found.x].shape
    assert shape is not None
    order = [axis for axis in range(len(shape)) if axis != found.axis] + [found.axis]
    is_last = order[-1] == len(shape) - 1
    made: list[Node] = []
    x, y = found.x, found.y
    if not is_last:
        x, y = (network.unused_name(f"{name}/{what}") for what in ("rows", "result"))
        network.types[x] = TensorType(info.dtype, tuple(shape[axis] for axis in order))
        network.types[y] = network.types[x]
        made.append(Node("Transpose", x, (found.x,), (x,), {"perm": order}))
    if found.scale is None or found.bias is None:
        made.append(Node("Softmax", name, (x,), (y,), {"axis": -1}))
    else:
        operands = (
            network.add_constant(f"{name}/scale", found.scale),
            network.add_constant(f"{name}/bias", found.bias),
        )
        attributes = {"axis": -1, "epsilon": found.epsilon}
        made.append(Node("LayerNormalization", name, (x, *operands), (y,), attributes))
    if not is_last:
        back = [order.index(axis) for axis in range(len(shape))]
        made.append(Node("Transpose", y, (y,), (found.y,), {"perm": back}))
    network.nodes.replace(end, made)
