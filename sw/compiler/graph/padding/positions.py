"""Compare a network with the same network for longer, padded inputs: `equal_positions`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import prod
from operator import add, mul, sub, truediv

import numpy as np

from amaranth_vta.sw.compiler.graph.elementwise import is_elementwise
from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT, Node
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session

from .bounds import ZERO, Bounds, Elements, of_type, of_values

_ELEMENTWISE = frozenset(
    {
        *("And", "Cast", "DequantizeLinear", "Equal", "Greater", "GreaterOrEqual", "Less"),
        *("LessOrEqual", "Not", "Or", "QuantizeLinear", "Where", "Xor"),
    }
)
_VIEWS = frozenset(
    {"Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)
_PRODUCTS = frozenset({"Gemm", "MatMul", "MatMulInteger", "MatMulNBits", "QLinearMatMul"})
# Operators that combine the elements of each row, and the first of the row's axes.
_NORMALIZATIONS = frozenset(
    {
        *("LayerNormalization", "LpNormalization", "RMSNormalization"),
        *("SimplifiedLayerNormalization", "SkipLayerNormalization"),
        "SkipSimplifiedLayerNormalization",
    }
)
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    **{"Add": add, "Sub": sub, "Mul": mul, "Div": truediv}
}
# Inputs that only set sizes, which shapes of results show.
_SIZES = {"Expand": 1, "Reshape": 1, "Slice": 2, "Split": 1, "Squeeze": 1, "Unsqueeze": 1}


class _Mixed(Exception):
    """A node uses padded elements for others; the message is a clause."""


@dataclass(frozen=True)
class EqualPositions:
    """The sizes without padding of the padded axes of each output, and the inputs that are
    ``masks``, which have the values 0 and 1.
    """

    sizes: Mapping[str, Mapping[int, int]]
    masks: frozenset[str]


def equal_positions(short: Network, long: Network) -> EqualPositions:
    """Prove that ``long``, with inputs padded with zeros, computes the results of ``short`` at all
    positions that are no padding; raises `ModelError` if that is not certain.

    Both are loaded from one model, with other sizes of open dimensions. An axis whose sizes differ
    has padding at its end. Each operator must keep positions apart, or give padding a factor of
    exactly 0: Softmax does so where a mask lowers the scores by more than their bounds. Masks are
    inputs of integers that are no indices; they have 0 for padding, and show at least one position
    to each row by 1.
    """
    comparison = _Comparison(short, long)
    try:
        comparison.compare()
        sizes = {
            name: {axis: comparison.sizes(name)[axis] for axis in comparison.axes(name)}
            for name in long.outputs
        }
        return EqualPositions(sizes, comparison.masks)
    except _Mixed as error:
        raise ModelError(str(error)) from None


class _Comparison:
    def __init__(self, short: Network, long: Network) -> None:
        self._short, self._long = short, long
        # Elements of the long network's tensors, and the values of those that only masks determine,
        # for masks of ones and zeros.
        self._elements: dict[str, Elements] = {}
        self._values: dict[str, list[Array]] = {}
        self.masks = frozenset[str]()

    def compare(self) -> None:
        short = [(node.operator, node.inputs, node.outputs) for node in self._short.nodes]
        nodes = list(self._long.nodes)
        if short != [(node.operator, node.inputs, node.outputs) for node in nodes]:
            raise _Mixed("operators of the network depend on the size")
        self._evaluate_masks(nodes)
        for node in nodes:
            self._visit(node)

    def sizes(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor without padding."""
        return self._shape(self._short, name)

    def _shape(self, network: Network, name: str) -> tuple[int, ...]:
        shape = network.types[name].shape
        if shape is None:
            raise _Mixed(f"the shape of {name} is known only when the network runs")
        return shape

    def axes(self, name: str) -> list[int]:
        """The padded axes of a tensor."""
        if not name:
            return []
        short, long = self.sizes(name), self._shape(self._long, name)
        if len(short) != len(long):
            raise _Mixed(f"the rank of {name} depends on the size")
        return [axis for axis, size in enumerate(short) if size != long[axis]]

    def _evaluate_masks(self, nodes: list[Node]) -> None:
        """Find the values of all tensors that element-wise operators compute from masks."""
        types = self._long.types
        masks = [name for name in self._long.inputs if self.axes(name) and self._is_mask(name)]
        known, made = {*masks, *self._long.constants}, []
        for node in nodes:
            if _keeps_elements(node) and known.issuperset(node.reads):
                known.update(node.outputs)
                made.append(node)
        names = [name for node in made for name in node.outputs]
        if not names:
            return
        self.masks = frozenset(masks)
        session = exact_session(self._long.part(made, masks, names).SerializeToString())
        for one in (1, 0):
            feeds = {}
            for name in masks:
                feeds[name] = np.zeros(self._shape(self._long, name), types[name].dtype)
                feeds[name][tuple(slice(size) for size in self.sizes(name))] = one
            for name, value in (feeds | run_session(session, names, feeds)).items():
                self._values.setdefault(name, []).append(value)

    def _is_mask(self, name: str) -> bool:
        """Whether an input has integers that are no indices; those of 8 bits are data."""
        dtype = self._long.types[name].dtype
        if dtype.kind != "b" and not (dtype.kind in "iu" and dtype.itemsize > 1):
            return False
        waiting, seen = [name], {name}
        while waiting:
            for node in self._long.nodes.readers(waiting.pop()):
                if node.domain or node.operator.startswith(("Gather", "OneHot", "Scatter")):
                    return False
                if _keeps_elements(node):
                    waiting += [item for item in node.outputs if item not in seen]
                    seen.update(node.outputs)
        return True

    def _of(self, name: str) -> Elements:
        """Bounds on the elements of an operand."""
        if name not in self._elements:
            sizes = self.sizes(name)
            if name in self._long.constants:
                found = of_values([self._long.constants[name]], sizes)
            elif name in self._values:
                found = of_values(self._values[name], sizes)
            else:
                real = of_type(self._long.types[name])
                padded = dict.fromkeys(self.axes(name), ZERO)
                found = Elements(real, padded if name in self._long.inputs else {})
            self._elements[name] = found
        return self._elements[name]

    def _visit(self, node: Node) -> None:
        """Require that a node keeps positions apart, and find bounds on its results."""
        ignored = _SIZES.get(node.operator) if not node.domain else None
        for index, name in enumerate(node.inputs):
            if name and index != ignored:
                self._require_equal(node, name)
        if not any(self.axes(name) for name in (*node.reads, *node.outputs) if name):
            return
        rule = self._rule(node)
        if rule is None or node.captured:
            raise _Mixed(f"{node.name} ({node.operator}) combines padding with other positions")
        elements = rule(node)
        (result, *_) = node.outputs
        if elements is not None and result not in self._values:
            self._elements[result] = elements

    def _rule(self, node: Node) -> Callable[[Node], Elements | None] | None:
        """The method for an operator; None if there is none."""
        if _is_elementwise(node):
            return self._elementwise
        operator = node.operator
        if operator in _NORMALIZATIONS:
            return self._normalization
        if operator in _PRODUCTS:
            return self._product
        if node.domain:
            return None
        if operator in _VIEWS:
            return self._view
        if operator.startswith("Reduce"):
            return self._reduction
        rules: dict[str, Callable[[Node], Elements | None]]
        rules = {"Concat": self._parts, "Split": self._parts, "Slice": self._slice}
        rules |= {"Gather": self._gather, "Softmax": self._softmax, "CumSum": self._running_sum}
        return rules.get(operator)

    def _require_equal(self, node: Node, name: str) -> None:
        """A constant operand must be the same in both networks, apart from padding."""
        short, long = self._short.constants.get(name), self._long.constants.get(name)
        if short is None and long is None:
            return
        if short is not None and long is not None and short.ndim == long.ndim:
            part = long[tuple(slice(size) for size in short.shape)]
            if part.shape == short.shape and part.tobytes() == short.tobytes():
                return
        raise _Mixed(f"the constant {name} of {node.name} ({node.operator}) depends on the size")

    # Rules.

    def _elementwise(self, node: Node) -> Elements | None:
        result = node.outputs[0]
        rank = len(self.sizes(result))

        def aligned(name: str) -> Elements:
            """Bounds by the axes of the result."""
            moved = rank - len(self.sizes(name))
            return self._of(name).moved({axis: axis + moved for axis in self.axes(name)})

        if node.operator in ("QuantizeLinear", "DequantizeLinear"):
            return self._quantization(node, aligned(node.inputs[0]))
        axes = self.axes(result)
        if node.operator in ("Cast", "Identity"):
            # A cast to fewer bits may wrap.
            return aligned(node.inputs[0]) if self._is_float(result) else None
        if node.operator == "Where":
            return self._where(axes, *(aligned(name) for name in node.inputs))
        if (function := _ARITHMETIC.get(node.operator)) is None or not self._is_float(result):
            return None
        left, right = (aligned(name) for name in node.inputs)
        if node.operator == "Div" and right.real.low <= 0 <= right.real.high:
            return None
        best = {}
        if node.operator == "Add":
            for axis in axes:
                sums = left.best_at(axis) + right.real.low, left.real.low + right.best_at(axis)
                best[axis] = max(sums)
        return Elements(
            left.real.combined(right.real, function),
            {axis: left.at(axis).combined(right.at(axis), function) for axis in axes},
            best,
        )

    def _is_float(self, name: str) -> bool:
        return self._long.types[name].dtype.kind == "f"

    def _where(self, axes: list[int], chosen: Elements, yes: Elements, no: Elements) -> Elements:
        def among(condition: Bounds, axis: int | None) -> Bounds:
            if condition.low == condition.high:
                return yes.at(axis) if condition.low else no.at(axis)
            return yes.at(axis).union(no.at(axis))

        best = {}
        for axis in axes:
            # Rows that show a position choose one operand there.
            if chosen.best_at(axis) == 1:
                best[axis] = yes.real.low
            elif chosen.worst_at(axis) == 0:
                best[axis] = no.real.low
        padded = {axis: among(chosen.at(axis), axis) for axis in axes}
        return Elements(among(chosen.real, None), padded, best)

    def _quantization(self, node: Node, elements: Elements) -> Elements | None:
        scale, zero = (self._long.constants.get(node.input(index)) for index in (1, 2))
        if scale is None or (zero is None and node.input(2)):
            return None
        (result,) = node.outputs
        point = np.zeros(1) if zero is None else zero.astype(np.float64)
        steps = scale.astype(np.float64)
        if node.operator == "DequantizeLinear":
            if scale.size == 1:
                return elements.mapped(lambda value: float((value - point.flat[0]) * steps.flat[0]))
            return None
        if scale.size != 1:
            return None
        limits = of_type(self._long.types[result])

        def quantized(value: float) -> float:
            stepped = float(np.rint(value / steps.flat[0]) + point.flat[0])
            return min(max(stepped, limits.low), limits.high)

        return elements.mapped(quantized)

    def _normalization(self, node: Node) -> None:
        rank = len(self.sizes(node.inputs[0]))
        first = int(node.attributes.get("axis", -1)) % rank
        self._require_apart(node, range(first, rank))

    def _softmax(self, node: Node) -> Elements:
        (given,), (result,) = node.inputs, node.outputs
        rank = len(self.sizes(given))
        axis = int(node.attributes.get("axis", -1 if self._long.opsets[""] >= 13 else 1)) % rank
        if self._long.opsets[""] < 13 and axis != rank - 1:
            self._require_apart(node, range(axis, rank))
        shares = Bounds(0.0, 1.0)
        padded = dict.fromkeys(self.axes(result), shares)
        if axis in padded:
            if not self._of(given).vanishes(axis):
                raise _Mixed(f"no mask hides padding from {node.name} (Softmax)")
            padded[axis] = ZERO
        return Elements(shares, padded)

    def _reduction(self, node: Node) -> None:
        (given, *rest) = node.inputs
        axes = self._long.constants.get(rest[0]) if rest and rest[0] else None
        listed = node.attributes.get("axes") if axes is None else axes.tolist()
        rank = len(self.sizes(given))
        reduced = {axis % rank for axis in listed} if listed else set(range(rank))
        if rest and rest[0] and axes is None:
            reduced = set(range(rank))
        if node.operator == "ReduceSum":
            reduced -= {axis for axis in self.axes(given) if self._of(given).at(axis) == ZERO}
        self._require_apart(node, reduced)

    def _running_sum(self, node: Node) -> None:
        if node.attributes.get("reverse", 0):
            raise _Mixed(f"{node.name} (CumSum) counts positions from the end")

    def _require_apart(self, node: Node, axes: Collection[int]) -> None:
        """No padding along the ``axes`` of the first operand, whose elements a node combines."""
        if any(axis in axes for axis in self.axes(node.inputs[0])):
            raise _Mixed(f"{node.name} ({node.operator}) combines padding with other positions")

    def _product(self, node: Node) -> None:
        """Padding along the summed axis must have the factor 0 on one side."""
        quantized = node.operator == "QLinearMatMul"
        left, right = node.inputs[0], node.inputs[3 if quantized else 1]
        if node.operator == "MatMulNBits":
            return self._require_apart(node, {len(self.sizes(left)) - 1})
        zeros = (2, 5) if quantized else (2, 3) if node.operator == "MatMulInteger" else ()
        turned = node.attributes.get("transA", 0), not node.attributes.get("transB", 0)
        apart = True
        for side, name in enumerate((left, right)):
            rank = len(self.sizes(name))
            summed = rank - 1 if rank == 1 or not turned[side] else rank - 2
            if summed in self.axes(name):
                apart = False
                point: Array | None = np.zeros(1)
                if zeros and node.input(zeros[side]):
                    point = self._long.constants.get(node.input(zeros[side]))
                hidden = self._of(name).at(summed)
                if point is not None and point.size == 1 and hidden == Bounds(*[point.item()] * 2):
                    return None
        if not apart:
            raise _Mixed(f"{node.name} ({node.operator}) adds padding to other positions")
        return None

    def _view(self, node: Node) -> Elements:
        given, (result,) = node.inputs[0], node.outputs
        old, new = self.axes(given), self.axes(result)
        if node.operator == "Transpose":
            rank = len(self.sizes(given))
            order = list(node.attributes.get("perm", range(rank)[::-1]))
            return self._of(given).moved({axis: order.index(axis) for axis in old})
        if node.operator == "Expand":
            moved = len(self.sizes(result)) - len(self.sizes(given))
            return self._of(given).moved({axis: axis + moved for axis in old})
        for network in (self._short, self._long):
            before, after = (self._shape(network, name) for name in (given, result))
            pairs = zip(old, new, strict=False)
            if len(old) != len(new) or any(
                prod(before[:i]) != prod(after[:j]) or before[i] != after[j] for i, j in pairs
            ):
                raise _Mixed(f"{node.name} ({node.operator}) joins positions with other axes")
        return self._of(given).moved(dict(zip(old, new, strict=True)))

    def _parts(self, node: Node) -> None:
        rank = len(self.sizes(node.outputs[0]))
        axis = int(node.attributes.get("axis", 0)) % rank
        if any(axis in self.axes(name) for name in (*node.inputs[:1], *node.outputs)):
            raise _Mixed(f"{node.name} ({node.operator}) joins or splits positions")
        if node.operator == "Concat" and any(axis in self.axes(name) for name in node.inputs):
            raise _Mixed(f"{node.name} (Concat) joins positions")

    def _slice(self, node: Node) -> None:
        given, result = node.inputs[0], node.outputs[0]
        starts, ends, axes, steps = (
            self._long.constants.get(node.input(index)) for index in (1, 2, 3, 4)
        )
        if starts is None or ends is None:
            raise _Mixed(f"{node.name} (Slice) has bounds that are known only when it runs")
        for number, start in enumerate(starts.tolist()):
            axis = (number if axes is None else int(axes[number])) % len(self.sizes(given))
            if axis not in self.axes(given):
                continue
            step, size = 1 if steps is None else int(steps[number]), self.sizes(given)[axis]
            whole = start == 0 and step == 1 and self.sizes(result)[axis] == size
            if not whole and not (step > 0 and start >= 0 and 0 <= int(ends[number]) <= size):
                raise _Mixed(f"{node.name} (Slice) counts positions from the end")

    def _gather(self, node: Node) -> None:
        given, indices = node.inputs[:2]
        axis = int(node.attributes.get("axis", 0)) % len(self.sizes(given))
        if axis in self.axes(given):
            chosen, size = self._long.constants.get(indices), self.sizes(given)[axis]
            if chosen is None or np.any((chosen < 0) | (chosen >= size)):
                raise _Mixed(f"{node.name} (Gather) takes positions that may be padding")


def _keeps_elements(node: Node) -> bool:
    """Whether a node is element-wise or only moves elements."""
    return (node.operator in _VIEWS and not node.domain) or _is_elementwise(node)


def _is_elementwise(node: Node) -> bool:
    if node.operator in _ELEMENTWISE and not node.domain:
        return True
    return is_elementwise(node) and node.domain in ("", MICROSOFT)
