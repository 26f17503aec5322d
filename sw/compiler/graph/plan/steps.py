"""Order the steps of host and machine, and insert the transfers between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush

from amaranth_vta.sw.compiler.graph.layers.support.layer import (
    RESULT,
    HostNode,
    Layer,
    RingWrite,
)
from amaranth_vta.sw.compiler.graph.macs import macs
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.runtime.network.network_program import (
    MoveWindows,
    OnHost,
    RunHost,
    ToHost,
    ToMachine,
    WriteRows,
)
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor

from .known_runs import known_nodes, with_known_runs
from .placement import Placement

Item = Layer | HostNode
PlannedStep = RunHost | Layer | ToMachine | ToHost | WriteRows | MoveWindows


def planned_steps(placement: Placement) -> list[PlannedStep]:
    """The operators of ``placement`` in execution order, each preceded by transfers of the tensors
    that it needs from the other side."""
    return _Planner(placement).steps()


class _Planner:
    def __init__(self, placement: Placement) -> None:
        self.network = network = placement.network
        self.placement = placement
        # Copies of the new values of variables that the machine keeps, by variable.
        self.keeping = {copy.result.tensor: copy for copy in placement.keeping}
        self.on_host = (set(network.inputs) - self.keeping.keys()) | set(network.constants)
        # By tensor, the tiled layouts in which the machine holds it.
        self.held = {name: [copy.result] for name, copy in self.keeping.items()}
        self.done: list[PlannedStep] = []
        # Ring buffers with the rows of this run.
        self.written: set[str] = set()
        # Places to which windows have moved.
        self.moved: set[str] = set()
        # A layer may read the integers of a DequantizeLinear whose float result its first node
        # reads.
        layers = [item for item in placement.items if isinstance(item, Layer)]
        self.needed = {source.tensor for layer in layers for source in layer.sources}
        self.needed |= set(network.outputs)

    def steps(self) -> list[PlannedStep]:
        segments = [*_segments(self.network, self.placement)]
        last = _last_uses(segments, self.keeping.values(), self.placement)
        for number, segment in enumerate(segments):
            on_host = [item for item in segment if isinstance(item, HostNode)]
            writes = [item for item in on_host if isinstance(item, RingWrite)]
            if hosts := [item for item in on_host if not isinstance(item, RingWrite)]:
                self._run_hosts(hosts)
            for item in writes:
                self._write_rows(item)
            layers = [item for item in segment if isinstance(item, Layer)]
            # Transfers first, since those between layers would divide their launch.
            for layer in layers:
                self._move_windows(layer)
                self._bring_to_machine(layer, lambda source: source.tensor in self.on_host)
            for layer in layers:
                self._bring_to_machine(layer)
                self.done.append(layer)
                self._note_result(layer)
            self.done += [copy for name, copy in self.keeping.items() if last[name] == number]
        own = {state.result for state in self.network.states if state.source in self.keeping}
        for name in self.network.outputs:
            if name not in own and name not in self.written:
                self._bring_to_host(name)
        return self.done

    def _run_hosts(self, hosts: Sequence[HostNode]) -> None:
        """Run ``hosts``, those apart whose results are known for the tokens of a generation."""
        if known := known_nodes(self.network, hosts):
            step = with_known_runs(self.network, self._host_step(known))
            if step.known is not None:
                self._add_host(step)
                hosts = [item for item in hosts if all(item is not other for other in known)]
        if hosts:
            self._add_host(self._host_step(hosts))

    def _add_host(self, step: RunHost) -> None:
        self.done.append(step)
        self.on_host.update(step.outputs)

    def _host_step(self, hosts: Sequence[HostNode]) -> RunHost:
        """The step that runs ``hosts``, whose operands are brought to the host."""
        made = {name for item in hosts for name in item.node.outputs if name}
        read = {name for item in hosts for name in item.reads}
        inputs = sorted(read - made - self.network.constants.keys())
        for name in inputs:
            self._bring_to_host(name)
        own = {id(item.node) for item in hosts}
        readers = self.network.nodes.readers
        outputs = sorted(
            name
            for name in made
            if name in self.needed or any(id(node) not in own for node in readers(name))
        )
        model = self.network.part([item.node for item in hosts], inputs, outputs)
        operators = (
            OnHost(item.node.name, item.node.operator, item.reason, macs(self.network, item.node))
            for item in hosts
        )
        data = model.SerializeToString(deterministic=True)
        return RunHost(data, tuple(inputs), tuple(outputs), tuple(operators))

    def _write_rows(self, item: RingWrite) -> None:
        rows, places = item.node.inputs
        for name in (rows, places):
            self._bring_to_host(name)
        matrices = item.rings[0].operand.image[0]
        for ring in item.rings:
            operand, stacked = ring.operand, matrices if ring.copy else 0
            step = WriteRows(operand, operand.buffer, rows, places, ring.axis, stacked)
            self.done.append(step)
        (result,) = item.node.outputs
        self.held[result] = [item.rings[0].operand]
        self.written.add(result)

    def _move_windows(self, layer: Layer) -> None:
        """Move the windows of ``layer``, and others that move to the same place."""
        for slices in layer.in_windows.values():
            if slices.place not in self.moved:
                self._bring_to_host(slices.place)
                # The windows are known once the layers are recorded.
                self.done.append(MoveWindows((), slices.place, slices.held.rows))
                self.moved.add(slices.place)

    def _note_result(self, layer: Layer) -> None:
        held = layer.result
        if RESULT in layer.in_windows:
            held = layer.in_windows[RESULT].held.operand
            self.written.add(layer.result.tensor)
        self.held[layer.result.tensor] = [held]
        if layer.second is not None:
            self.held[layer.second.tensor] = [layer.second]

    def _bring_to_machine(
        self, layer: Layer, which: Callable[[TiledTensor], bool] = lambda _: True
    ) -> None:
        """Transfer the sources of ``layer`` that the machine does not hold yet."""
        sources = [item for at, item in enumerate(layer.sources) if at not in layer.in_windows]
        for source in filter(which, sources):
            held = self.held.setdefault(source.tensor, [])
            if not any(source.is_in_memory_of(other) for other in held):
                self._bring_to_host(source.tensor)
                self.done.append(ToMachine(source, source.buffer))
                held.append(source)

    def _bring_to_host(self, name: str) -> None:
        if name in self.on_host:
            return
        tiled = self.held[self.placement.views.get(name, name)][0]
        self.done.append(ToHost(name, self.network.types[name], tiled, tiled.buffer))
        self.on_host.add(name)


def _segments(network: Network, placement: Placement) -> Iterator[list[Item]]:
    """Group items that run on the same side into segments as large as dependences allow, beginning
    with the host.

    Items keep their order within a segment.
    """
    items = placement.items
    known = set(network.inputs) | set(network.constants)
    missing: list[int] = []
    readers: dict[str, list[int]] = {}
    ready: dict[type[Item], list[int]] = {HostNode: [], Layer: []}

    def side_of(item: Item) -> type[Item]:
        return Layer if isinstance(item, Layer) else HostNode

    for index, item in enumerate(items):
        unknown = _reads(item, placement) - known
        missing.append(len(unknown))
        for name in unknown:
            readers.setdefault(name, []).append(index)
        if not unknown:
            ready[side_of(item)].append(index)
    side: type[Item] = HostNode
    left = len(items)
    while left:
        segment: list[Item] = []
        while ready[side]:
            item = items[heappop(ready[side])]
            segment.append(item)
            for name in item.makes:
                for index in readers.pop(name, ()):
                    missing[index] -= 1
                    if not missing[index]:
                        heappush(ready[side_of(items[index])], index)
        left -= len(segment)
        if segment:
            yield segment
        elif not any(ready.values()):
            waiting = next(item for item, count in zip(items, missing, strict=True) if count > 0)
            lacks = ", ".join(sorted(_reads(waiting, placement) & readers.keys()))
            raise AssertionError(f"nothing in the placement makes {lacks} for {_named(waiting)}")
        side = Layer if side is HostNode else HostNode


def _last_uses(
    segments: Sequence[Sequence[Item]], keeping: Iterable[Layer], placement: Placement
) -> dict[str, int]:
    """For each variable that the machine keeps, the segment after which its new value can replace
    the old one."""
    last: dict[str, int] = {}
    for number, segment in enumerate(segments):
        for item in segment:
            last |= dict.fromkeys((*_reads(item, placement), *item.makes), number)
    found = {}
    for copy in keeping:
        (made,) = copy.sources
        found[copy.result.tensor] = max(last[made.tensor], last.get(copy.result.tensor, 0))
    return found


def _reads(item: Item, placement: Placement) -> set[str]:
    return {placement.views.get(name, name) for name in item.reads}


def _named(item: Item) -> str:
    return item.name if isinstance(item, Layer) else item.node.name
