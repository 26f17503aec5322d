"""The tensors of a network and of the same network for longer, padded inputs: `PaddedTensors`."""

from __future__ import annotations

import numpy as np

from amaranth_vta.sw.compiler.graph.elementwise import is_elementwise
from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT, Node
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session

from .bounds import ZERO, Elements, of_type, of_values

_ELEMENTWISE = frozenset(
    {
        *("And", "Cast", "DequantizeLinear", "Equal", "Greater", "GreaterOrEqual", "Less"),
        *("LessOrEqual", "Not", "Or", "QuantizeLinear", "Where", "Xor"),
    }
)
VIEWS = frozenset({"Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


class Mixed(Exception):
    """A node uses padded elements for others; the message is a clause."""


class PaddedTensors:
    """Shapes of the tensors of the network ``short`` and of ``long``, and bounds on their elements.
    Axes whose sizes differ are padded. ``masks`` are the inputs of ``long`` that mask positions.
    Methods raise `Mixed`.
    """

    def __init__(self, short: Network, long: Network) -> None:
        self.short, self.long = short, long
        # Elements of the long network's tensors, and the values of tensors that only masks
        # determine, for masks of ones and zeros.
        self._elements: dict[str, Elements] = {}
        self._values: dict[str, list[Array]] = {}
        self.masks = frozenset[str]()
        self._evaluate_masks(list(long.nodes))

    def sizes(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor without padding."""
        return self.shape(self.short, name)

    def shape(self, network: Network, name: str) -> tuple[int, ...]:
        shape = network.types[name].shape
        if shape is None:
            raise Mixed(f"the shape of {name} is known only when the network runs")
        return shape

    def axes(self, name: str) -> list[int]:
        """The padded axes of a tensor."""
        if not name:
            return []
        short, long = self.sizes(name), self.shape(self.long, name)
        if len(short) != len(long):
            raise Mixed(f"the rank of {name} depends on the size")
        return [axis for axis, size in enumerate(short) if size != long[axis]]

    def _evaluate_masks(self, nodes: list[Node]) -> None:
        """Find the values of all tensors that element-wise operators compute from masks."""
        types = self.long.types
        masks = [name for name in self.long.inputs if self.axes(name) and self._is_mask(name)]
        known, made = {*masks, *self.long.constants}, []
        for node in nodes:
            if keeps_elements(node) and known.issuperset(node.reads):
                known.update(node.outputs)
                made.append(node)
        names = [name for node in made for name in node.outputs]
        if not names:
            return
        self.masks = frozenset(masks)
        session = exact_session(self.long.part(made, masks, names).SerializeToString())
        for one in (1, 0):
            feeds = {}
            for name in masks:
                feeds[name] = np.zeros(self.shape(self.long, name), types[name].dtype)
                feeds[name][tuple(slice(size) for size in self.sizes(name))] = one
            for name, value in (feeds | run_session(session, names, feeds)).items():
                self._values.setdefault(name, []).append(value)

    def note(self, name: str, elements: Elements) -> None:
        """Note the elements of a result, unless its values are known."""
        if name not in self._values:
            self._elements[name] = elements

    def _is_mask(self, name: str) -> bool:
        """Whether an input has integers that are no indices; 8-bit integers are data."""
        dtype = self.long.types[name].dtype
        if dtype.kind != "b" and not (dtype.kind in "iu" and dtype.itemsize > 1):
            return False
        waiting, seen = [name], {name}
        while waiting:
            for node in self.long.nodes.readers(waiting.pop()):
                if node.domain or node.operator.startswith(("Gather", "OneHot", "Scatter")):
                    return False
                if keeps_elements(node):
                    waiting += [item for item in node.outputs if item not in seen]
                    seen.update(node.outputs)
        return True

    def of(self, name: str) -> Elements:
        """Bounds on the elements of an operand."""
        if name not in self._elements:
            sizes = self.sizes(name)
            if name in self.long.constants:
                found = of_values([self.long.constants[name]], sizes)
            elif name in self._values:
                found = of_values(self._values[name], sizes)
            else:
                real = of_type(self.long.types[name])
                padded = dict.fromkeys(self.axes(name), ZERO)
                found = Elements(real, padded if name in self.long.inputs else {})
            self._elements[name] = found
        return self._elements[name]


def keeps_elements(node: Node) -> bool:
    """Whether a node is element-wise or only moves elements."""
    return (node.operator in VIEWS and not node.domain) or keeps_places(node)


def keeps_places(node: Node) -> bool:
    """Whether a node is element-wise."""
    if node.operator in _ELEMENTWISE and not node.domain:
        return True
    return is_elementwise(node) and node.domain in ("", MICROSOFT)
