"""Variables that work as ring buffers: a run overwrites their oldest rows, and moves no others.

A decoder appends a row to each cache and drops the oldest one, Concat → Slice, which moves the
whole cache. In a ring buffer of n rows, row i of the cache, oldest first, is at place (i + p)
mod n, where p is the next place to write, which another variable counts. The products that read
the cache sum in this order, which changes no sum of integers; Gather restores the order of the
scores, and brings the shares to the order of the values. Where a RowSoftmax is between the products
of two ring buffers, scores and shares stay in their order, and only the mask is brought to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from amaranth_vta.sw.compiler.graph.integer_operators import DOMAIN, ROW_SOFTMAX
from amaranth_vta.sw.compiler.graph.network import UNKNOWN, Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node, Nodes, renamed
from amaranth_vta.sw.compiler.graph.second_factor import SECOND_FACTOR, matrix_swap, swaps_matrices
from amaranth_vta.sw.runtime.network.network_program import State
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

_PRODUCT = "QLinearMatMul"
_SECOND, _SECOND_ZERO = SECOND_FACTOR["", _PRODUCT]


def write_states_as_rings(network: Network) -> bool:
    """Turn int8 variables to which a run appends rows, and which only products without zero points
    read, into ring buffers. Returns whether there are any.

    Between the products must be a RowSoftmax, or scores must be dequantized, and shares quantized:
    between other operators, which run on the machine, a Gather would be a detour through the host.
    """
    windows = [found for state in network.states if (found := _window(network, state))]
    windows = _with_partners(network, windows)
    if windows:
        rewriter = _Rewriter(network)
        for window in windows:
            rewriter.rewrite(window)
        rewriter.finish()
    return bool(windows)


@dataclass(frozen=True)
class _Window:
    """The last ``rows`` that the variable ``state`` had, of which ``new`` has ``new_rows``.
    ``products`` read them, transposed if ``is_transposed``.
    """

    state: State
    new: str
    rows: int
    new_rows: int
    products: tuple[Node, ...]
    is_transposed: bool


def _window(network: Network, state: State) -> _Window | None:
    """The window that a run reads of a variable; None if it cannot be a ring buffer."""
    concat, copy = network.only_reader(state.source), network.maker(state.result)
    is_copied = copy is not None and copy.operator == "Identity"
    left = copy.inputs[0] if copy is not None and is_copied else state.result
    dropped = network.maker(left)
    if concat is None or dropped is None or concat.operator != "Concat" or len(concat.inputs) != 2:
        return None
    whole, new = concat.outputs[0], concat.inputs[1]
    old_type, shape = network.types[state.source], network.types[new].shape
    if concat.inputs[0] != state.source or old_type.dtype != np.int8 or shape is None:
        return None
    rows, new_rows = state.initial.shape[-2], shape[-2]
    if not _drops_oldest(network, dropped, whole, rows, new_rows):
        return None
    # Products read either all rows or the rows left.
    others = [node for node in network.nodes.readers(whole) if node is not dropped]
    kept = [node for node in network.nodes.readers(left) if node is not copy]
    is_seen = {whole, left}.intersection(network.outputs) - {state.result}
    if bool(others) == bool(kept) or is_seen:
        return None
    read, readers = (whole, others) if others else (left, kept)
    turned = [node for node in readers if swaps_matrices(node)]
    factors = {node.outputs[0] for node in turned} or {read}
    if turned:
        if len(turned) < len(readers):
            return None
        readers = [node for name in factors for node in network.nodes.readers(name)]
    if not all(_fits(network, node, factors, bool(turned)) for node in readers):
        return None
    size = rows + new_rows if others else rows
    return _Window(state, new, size, new_rows, tuple(readers), bool(turned))


def _drops_oldest(network: Network, node: Node, whole: str, rows: int, new_rows: int) -> bool:
    """Whether ``node`` is a Slice of ``whole`` that drops the first ``new_rows``, so that ``rows``
    are left."""
    if node.operator != "Slice" or node.domain or node.inputs[0] != whole:
        return False
    before, after = (network.types[name].shape for name in (whole, node.outputs[0]))
    begin = network.constants.get(node.inputs[1])
    if before is None or begin is None or begin.size != 1:
        return False
    *leading, all_rows, columns = before
    return (
        all_rows == rows + new_rows
        and after == (*leading, rows, columns)
        and int(begin.item()) in (new_rows, -rows)
    )


def _fits(network: Network, node: Node, factors: set[str], is_transposed: bool) -> bool:
    """Whether ``node`` is a product without zero points whose second factor is one of ``factors``,
    with a conversion or a RowSoftmax at the side where Gather is added."""
    if node.domain or node.operator != _PRODUCT or node.inputs[_SECOND] not in factors:
        return False
    zeros = [network.constants.get(node.inputs[at]) for at in (2, _SECOND_ZERO)]
    if node.inputs[0] in factors or any(value is None or value.any() for value in zeros):
        return False
    name = node.outputs[0] if is_transposed else node.inputs[0]
    if name in (*network.outputs, *network.inputs):
        return False
    if _softmax(network, node, is_transposed) is not None:
        return True
    if is_transposed:
        readers = network.nodes.readers(name)
        return all(item.operator == "DequantizeLinear" for item in readers)
    maker = network.maker(name)
    return maker is not None and maker.operator == "QuantizeLinear"


def _softmax(network: Network, product: Node, is_transposed: bool) -> Node | None:
    """The RowSoftmax of the scores of a ``product``, or of its shares; None if there is none."""
    if is_transposed:
        found = network.only_reader(product.outputs[0])
    else:
        found = network.maker(product.inputs[0])
    is_one = found is not None and (found.domain, found.operator) == (DOMAIN, ROW_SOFTMAX)
    return found if is_one else None


def _with_partners(network: Network, windows: list[_Window]) -> list[_Window]:
    """``windows`` without pairs of products around a RowSoftmax whose rows differ in order."""
    while True:
        sizes = {
            (product.outputs[0], window.is_transposed): (window.rows, window.new_rows)
            for window in windows
            for product in window.products
        }
        kept = [window for window in windows if _has_partners(network, window, sizes)]
        if len(kept) == len(windows):
            return kept
        windows = kept


def _has_partners(
    network: Network, window: _Window, sizes: dict[tuple[str, bool], tuple[int, int]]
) -> bool:
    for product in window.products:
        softmax = _softmax(network, product, window.is_transposed)
        if softmax is None:
            continue
        (shares,), scores, mask = softmax.outputs, softmax.inputs[0], softmax.input(2)
        partners = [scores] if not window.is_transposed else []
        if window.is_transposed:
            partners = [node.outputs[0] for node in network.nodes.readers(shares)]
        wanted = (window.rows, window.new_rows)
        if any(sizes.get((name, not window.is_transposed)) != wanted for name in partners):
            return False
        if shares in network.outputs:
            return False
        if mask and (network.types[mask].shape or ())[-1:] != (window.rows,):
            return False
    return True


@dataclass(frozen=True)
class _Places:
    """Names of int64 tensors: the places of the ``new`` rows, the places of all rows ``in_order``,
    oldest first, and the ``inverse`` of that permutation."""

    new: str
    in_order: str
    inverse: str


class _Rewriter:
    """Collects nodes and variables; `finish` adds them to ``network``."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._nodes: list[Node] = []
        self._states = {item.source: item for item in network.states}
        # By the numbers of rows and of new rows.
        self._places: dict[tuple[int, int], _Places] = {}
        # Masks in the order of ring buffers, by the mask and the order.
        self._masks: dict[tuple[str, str], str] = {}
        # Scores and shares in the order of a ring buffer, which `finish` renames.
        self._in_ring: dict[str, None] = {}

    def rewrite(self, window: _Window) -> None:
        """Replace the variable of ``window`` by a ring buffer. A transposed one has columns in
        place of rows."""
        network, old = self._network, window.state
        sizes = window.rows, window.new_rows
        if sizes not in self._places:
            self._places[sizes] = self._counted(*sizes)
        places = self._places[sizes]
        dimensions, missing = old.initial.ndim, window.rows - old.initial.shape[-2]
        # The first run overwrites the first rows.
        padding = [(0, 0)] * (dimensions - 2) + [(missing, 0), (0, 0)]
        initial, new, axis = np.pad(old.initial, padding), window.new, dimensions - 2
        if window.is_transposed:
            initial, axis = np.ascontiguousarray(initial.swapaxes(-1, -2)), axis + 1
            order = matrix_swap(dimensions)
            new = self._added("Transpose", f"{new}_columns", new, perm=order)
        source = network.unused_name(f"{old.source}_ring")
        network.types[source] = TensorType(initial.dtype, initial.shape)
        along = [window.new_rows if at == axis else 1 for at in range(dimensions)]
        shape = [window.new_rows if at == axis else size for at, size in enumerate(initial.shape)]
        at = self._added("Reshape", f"{source}_places", places.new, self._constant(source, along))
        indices = self._added("Expand", f"{source}_indices", at, self._constant(source, shape))
        result = self._added("ScatterElements", f"{source}_next", source, indices, new, axis=axis)
        self._states[old.source] = State(source, result, initial)
        network.inputs[network.inputs.index(old.source)] = source
        network.outputs[network.outputs.index(old.result)] = result
        for product in window.products:
            changed = renamed(product, product.inputs[_SECOND], result)
            softmax = _softmax(network, product, window.is_transposed)
            if softmax is None:
                changed = self._reordered(changed, window, places)
            elif window.is_transposed:
                self._in_ring |= dict.fromkeys((product.outputs[0], softmax.outputs[0]))
                if softmax.input(2):
                    self._reorder_mask(softmax, places)
            network.nodes.replace(product, [changed])

    def _reordered(self, product: Node, window: _Window, places: _Places) -> Node:
        """``product``, with its scores or shares in the order of the ring buffer."""
        if not window.is_transposed:
            shares = product.inputs[0]
            made = self._added("Gather", f"{shares}_in_ring", shares, places.inverse, axis=-1)
            self._network.types[made] = self._network.types[shares]
            return replace(product, inputs=(made, *product.inputs[1:]))
        scores = product.outputs[0]
        made = self._network.unused_name(f"{scores}_in_ring")
        self._network.types[made] = self._network.types[scores]
        inputs = (made, places.in_order)
        self._nodes.append(Node("Gather", f"{scores}_in_order", inputs, (scores,), {"axis": -1}))
        return replace(product, outputs=(made,))

    def _reorder_mask(self, softmax: Node, places: _Places) -> None:
        """Bring the mask of ``softmax`` to the order of the ring buffer."""
        network, (x, table, mask) = self._network, softmax.inputs
        key = mask, places.inverse
        if key not in self._masks:
            made = self._added("Gather", f"{mask}_in_ring", *key, axis=-1)
            network.types[made] = network.types[mask]
            self._masks[key] = made
        changed = replace(softmax, inputs=(x, table, self._masks[key]))
        network.nodes.replace(softmax, [changed])

    def finish(self) -> None:
        network = self._network
        for name in self._in_ring:
            self._rename(name)
        network.states = tuple(self._states.values())
        network.nodes = Nodes([*network.nodes, *self._nodes])
        network.sort()

    def _rename(self, name: str) -> None:
        """Rename a tensor whose columns are in the order of a ring buffer. The model's tensor of
        this name, with which `Session.check` compares, has them in the order of tokens.
        """
        network = self._network
        made = network.unused_name(f"{name}_in_ring")
        network.types[made] = network.types[name]
        for node in [*network.nodes.readers(name), network.maker(name)]:
            assert node is not None
            outputs = tuple(made if item == name else item for item in node.outputs)
            network.nodes.replace(node, [replace(renamed(node, name, made), outputs=outputs)])

    def _counted(self, rows: int, new_rows: int) -> _Places:
        """Add a variable with the next place to write in ring buffers of ``rows``."""
        network = self._network
        source = network.unused_name(f"place_of_{rows}_rows")
        initial = np.zeros(1, np.int64)
        network.types[source] = TensorType(initial.dtype, initial.shape)
        size = network.add_constant(f"{source}_count", np.array([rows]))

        def remainder(what: str, steps: Array, sign: int = 1) -> str:
            """The sum of ``steps`` and the next place, with a ``sign``, modulo ``rows``."""
            given = (network.add_constant(f"{source}_{what}_steps", steps), source)
            total = self._added("Add" if sign > 0 else "Sub", f"{source}_{what}_total", *given)
            return self._added("Mod", f"{source}_{what}", total, size)

        result = remainder("next", np.array([new_rows]))
        self._states[source] = State(source, result, initial, rows)
        network.inputs.append(source)
        network.outputs.append(result)
        return _Places(
            remainder("new", np.arange(new_rows)),
            remainder("in_order", np.arange(rows) + new_rows),
            remainder("inverse", np.arange(rows) - new_rows, -1),
        )

    def _constant(self, name: str, values: list[int]) -> str:
        return self._network.add_constant(f"{name}_shape", np.array(values))

    def _added(self, operator: str, name: str, *inputs: str, **attributes: object) -> str:
        """Add a node; returns the name of its result."""
        result = self._network.unused_name(name)
        self._network.types[result] = UNKNOWN
        self._nodes.append(Node(operator, result, inputs, (result,), attributes))
        return result
