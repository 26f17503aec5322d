"""Compare a network with the same network for longer, padded inputs: `equal_positions`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from operator import add, mul, sub, truediv

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .attention import COUNTS, attention_rule
from .bounds import ZERO, Bounds, Elements, of_type
from .padded_tensors import VIEWS, Mixed, PaddedTensors, keeps_places

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
    try:
        if _operators(short) != _operators(long):
            raise Mixed("operators of the network depend on the size")
        tensors = PaddedTensors(short, long)
        rules = _Rules(tensors)
        for node in long.nodes:
            rules.visit(node)
        sizes = {
            name: {axis: tensors.sizes(name)[axis] for axis in tensors.axes(name)}
            for name in long.outputs
        }
        return EqualPositions(sizes, tensors.masks)
    except Mixed as error:
        raise ModelError(str(error)) from None


def _operators(network: Network) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [(node.operator, node.inputs, node.outputs) for node in network.nodes]


class _Rules:
    """How operators treat padding."""

    def __init__(self, tensors: PaddedTensors) -> None:
        self._tensors = tensors
        self._sizes, self._axes, self._of = tensors.sizes, tensors.axes, tensors.of
        self._constants = tensors.long.constants

    def visit(self, node: Node) -> None:
        """Require that a node keeps positions apart, and find bounds on its results."""
        ignored = [_SIZES.get(node.operator)] if not node.domain else []
        if node.operator == "GroupQueryAttention" and self._axes(node.inputs[0]):
            ignored += COUNTS
        for index, name in enumerate(node.inputs):
            if name and index not in ignored:
                self._require_equal(node, name)
        if not any(self._axes(name) for name in (*node.reads, *node.outputs) if name):
            return
        rule = self._rule(node)
        if rule is None or node.captured:
            raise Mixed(f"{node.name} ({node.operator}) combines padding with other positions")
        elements = rule(node)
        if elements is not None:
            self._tensors.note(node.outputs[0], elements)

    def _rule(self, node: Node) -> Callable[[Node], Elements | None] | None:
        """The method for an operator; None if there is none."""
        if keeps_places(node):
            return self._elementwise
        operator = node.operator
        if (attention := attention_rule(node)) is not None:
            return partial(attention, self._tensors)
        if operator in _NORMALIZATIONS:
            return self._normalization
        if operator == "RotaryEmbedding":
            return self._rotation
        if operator == "GatherBlockQuantized":
            return self._gather
        if operator in _PRODUCTS:
            return self._product
        if node.domain:
            return None
        if operator in VIEWS:
            return self._view
        if operator.startswith("Reduce"):
            return self._reduction
        rules: dict[str, Callable[[Node], Elements | None]]
        rules = {"Concat": self._parts, "Split": self._parts, "Slice": self._slice}
        rules |= {"Gather": self._gather, "Softmax": self._softmax, "CumSum": self._running_sum}
        return rules.get(operator)

    def _require_equal(self, node: Node, name: str) -> None:
        """A constant operand must be the same in both networks, apart from padding."""
        short, long = self._tensors.short.constants.get(name), self._constants.get(name)
        if short is None and long is None:
            return
        if short is not None and long is not None and short.ndim == long.ndim:
            part = long[tuple(slice(size) for size in short.shape)]
            if part.shape == short.shape and part.tobytes() == short.tobytes():
                return
        raise Mixed(f"the constant {name} of {node.name} ({node.operator}) depends on the size")

    # Rules.

    def _elementwise(self, node: Node) -> Elements | None:
        result = node.outputs[0]
        rank = len(self._sizes(result))

        def aligned(name: str) -> Elements:
            """Bounds by the axes of the result."""
            moved = rank - len(self._sizes(name))
            return self._of(name).moved({axis: axis + moved for axis in self._axes(name)})

        if node.operator in ("QuantizeLinear", "DequantizeLinear"):
            return self._quantization(node, aligned(node.inputs[0]))
        axes = self._axes(result)
        if node.operator in ("Cast", "Identity"):
            given = aligned(node.inputs[0])
            if self._is_float(result):
                return given
            # A cast to fewer bits may wrap, but keeps zeros.
            zeros = {axis: ZERO for axis in axes if given.at(axis) == ZERO}
            return Elements(of_type(self._tensors.long.types[result]), zeros)
        if node.operator == "Where":
            return self._where(axes, *(aligned(name) for name in node.inputs))
        if (function := _ARITHMETIC.get(node.operator)) is None or not self._is_float(result):
            return None
        left, right = (aligned(name) for name in node.inputs)
        if node.operator == "Div" and right.real.low <= 0 <= right.real.high:
            return None
        best, rows = {}, {}
        if node.operator == "Add":
            for axis in axes:
                sums = left.best_at(axis) + right.real.low, left.real.low + right.best_at(axis)
                best[axis] = max(sums)
                sums = left.row(axis).low + right.low, left.low + right.row(axis).low
                rows[axis] = Bounds(max(sums), math.inf)
        return Elements(
            left.real.combined(right.real, function),
            {axis: left.at(axis).combined(right.at(axis), function) for axis in axes},
            best,
            rows=rows,
        )

    def _is_float(self, name: str) -> bool:
        return self._tensors.long.types[name].dtype.kind == "f"

    def _where(self, axes: list[int], chosen: Elements, yes: Elements, no: Elements) -> Elements:
        def among(condition: Bounds, axis: int | None) -> Bounds:
            if condition.low == condition.high:
                return yes.at(axis) if condition.low else no.at(axis)
            return yes.at(axis).union(no.at(axis))

        best, rows = {}, {}
        for axis in axes:
            # Rows that show a position choose one operand there.
            if chosen.best_at(axis) == 1:
                best[axis] = yes.real.low
            elif chosen.worst_at(axis) == 0:
                best[axis] = no.real.low
            some = chosen.row(axis)
            lowest = [yes.low] * (some.low == 1) + [no.low] * (some.high == 0)
            rows[axis] = Bounds(max(lowest, default=min(yes.low, no.low)), math.inf)
        padded = {axis: among(chosen.at(axis), axis) for axis in axes}
        return Elements(among(chosen.real, None), padded, best, rows=rows)

    def _quantization(self, node: Node, elements: Elements) -> Elements | None:
        scale, zero = (self._constants.get(node.input(index)) for index in (1, 2))
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
        limits = of_type(self._tensors.long.types[result])

        def quantized(value: float) -> float:
            stepped = float(np.rint(value / steps.flat[0]) + point.flat[0])
            return min(max(stepped, limits.low), limits.high)

        return elements.mapped(quantized)

    def _normalization(self, node: Node) -> None:
        rank = len(self._sizes(node.inputs[0]))
        first = int(node.attributes.get("axis", -1)) % rank
        self._require_apart(node, range(first, rank))

    def _rotation(self, node: Node) -> None:
        """A rotation of each row, by cosines and sines of its position."""
        self._require_apart(node, {len(self._sizes(node.inputs[0])) - 1})

    def _softmax(self, node: Node) -> Elements:
        (given,), (result,) = node.inputs, node.outputs
        rank = len(self._sizes(given))
        axis = (
            int(node.attributes.get("axis", -1 if self._tensors.long.opsets[""] >= 13 else 1))
            % rank
        )
        if self._tensors.long.opsets[""] < 13 and axis != rank - 1:
            self._require_apart(node, range(axis, rank))
        shares = Bounds(0.0, 1.0)
        padded = dict.fromkeys(self._axes(result), shares)
        if axis in padded:
            if not self._of(given).vanishes(axis):
                raise Mixed(f"no mask hides padding from {node.name} (Softmax)")
            if len(padded) > 1 and not self._of(given).row(axis).low > -math.inf:
                raise Mixed(
                    f"a mask hides all positions from rows of padding in {node.name} (Softmax), "
                    "whose results are no numbers"
                )
            padded[axis] = ZERO
        return Elements(shares, padded)

    def _reduction(self, node: Node) -> None:
        (given, *rest) = node.inputs
        axes = self._constants.get(rest[0]) if rest and rest[0] else None
        listed = node.attributes.get("axes") if axes is None else axes.tolist()
        rank = len(self._sizes(given))
        reduced = {axis % rank for axis in listed} if listed else set(range(rank))
        if rest and rest[0] and axes is None:
            reduced = set(range(rank))
        if node.operator == "ReduceSum":
            reduced -= {axis for axis in self._axes(given) if self._of(given).at(axis) == ZERO}
        self._require_apart(node, reduced)

    def _running_sum(self, node: Node) -> None:
        if node.attributes.get("reverse", 0):
            raise Mixed(f"{node.name} (CumSum) counts positions from the end")

    def _require_apart(self, node: Node, axes: Collection[int]) -> None:
        """No padding along the ``axes`` of the first operand, whose elements a node combines."""
        if any(axis in axes for axis in self._axes(node.inputs[0])):
            raise Mixed(f"{node.name} ({node.operator}) combines padding with other positions")

    def _product(self, node: Node) -> None:
        """Padding along the summed axis must have the factor 0 on one side."""
        quantized = node.operator == "QLinearMatMul"
        left, right = node.inputs[0], node.inputs[3 if quantized else 1]
        if node.operator == "MatMulNBits":
            return self._require_apart(node, {len(self._sizes(left)) - 1})
        zeros = (2, 5) if quantized else (2, 3) if node.operator == "MatMulInteger" else ()
        turned = node.attributes.get("transA", 0), not node.attributes.get("transB", 0)
        apart = True
        for side, name in enumerate((left, right)):
            rank = len(self._sizes(name))
            summed = rank - 1 if rank == 1 or not turned[side] else rank - 2
            if summed in self._axes(name):
                apart = False
                point: Array | None = np.zeros(1)
                if zeros and node.input(zeros[side]):
                    point = self._constants.get(node.input(zeros[side]))
                hidden = self._of(name).at(summed)
                if point is not None and point.size == 1 and hidden == Bounds(*[point.item()] * 2):
                    return None
        if not apart:
            raise Mixed(f"{node.name} ({node.operator}) adds padding to other positions")
        return None

    def _view(self, node: Node) -> Elements:
        given, (result,) = node.inputs[0], node.outputs
        old, new = self._axes(given), self._axes(result)
        if node.operator == "Transpose":
            rank = len(self._sizes(given))
            order = list(node.attributes.get("perm", range(rank)[::-1]))
            return self._of(given).moved({axis: order.index(axis) for axis in old})
        if node.operator == "Expand":
            moved = len(self._sizes(result)) - len(self._sizes(given))
            return self._of(given).moved({axis: axis + moved for axis in old})
        for network in (self._tensors.short, self._tensors.long):
            before, after = (self._tensors.shape(network, name) for name in (given, result))
            pairs = zip(old, new, strict=False)
            if len(old) != len(new) or any(
                prod(before[:i]) != prod(after[:j]) or before[i] != after[j] for i, j in pairs
            ):
                raise Mixed(f"{node.name} ({node.operator}) joins positions with other axes")
        return self._of(given).moved(dict(zip(old, new, strict=True)))

    def _parts(self, node: Node) -> None:
        rank = len(self._sizes(node.outputs[0]))
        axis = int(node.attributes.get("axis", 0)) % rank
        if any(axis in self._axes(name) for name in (*node.inputs[:1], *node.outputs)):
            raise Mixed(f"{node.name} ({node.operator}) joins or splits positions")
        if node.operator == "Concat" and any(axis in self._axes(name) for name in node.inputs):
            raise Mixed(f"{node.name} (Concat) joins positions")

    def _slice(self, node: Node) -> None:
        given, result = node.inputs[0], node.outputs[0]
        starts, ends, axes, steps = (
            self._constants.get(node.input(index)) for index in (1, 2, 3, 4)
        )
        if starts is None or ends is None:
            raise Mixed(f"{node.name} (Slice) has bounds that are known only when it runs")
        for number, start in enumerate(starts.tolist()):
            axis = (number if axes is None else int(axes[number])) % len(self._sizes(given))
            if axis not in self._axes(given):
                continue
            step, size = 1 if steps is None else int(steps[number]), self._sizes(given)[axis]
            whole = start == 0 and step == 1 and self._sizes(result)[axis] == size
            if not whole and not (step > 0 and start >= 0 and 0 <= int(ends[number]) <= size):
                raise Mixed(f"{node.name} (Slice) counts positions from the end")

    def _gather(self, node: Node) -> None:
        given, indices = node.inputs[:2]
        along = "gather_axis" if node.operator == "GatherBlockQuantized" else "axis"
        axis = int(node.attributes.get(along, 0)) % len(self._sizes(given))
        if axis in self._axes(given):
            chosen, size = self._constants.get(indices), self._sizes(given)[axis]
            if chosen is None or np.any((chosen < 0) | (chosen >= size)):
                raise Mixed(f"{node.name} (Gather) takes positions that may be padding")
