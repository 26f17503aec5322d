"""A network compiled for one machine: its operators placed, ordered and recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.graph.layers.parts.layer import HostNode, Layer
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.passes.pipeline import PlacedPass
from amaranth_vta.sw.runtime.memory import Buffer
from amaranth_vta.sw.runtime.network.network_program import (
    NetworkProgram,
    OnHost,
    RunHost,
    RunLayer,
    Step,
    ToHost,
    ToMachine,
)
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor
from amaranth_vta.sw.runtime.program import Program, Recorder
from amaranth_vta.sw.runtime.work import work

from .memory_plan import share_buffers
from .placement import Placement, place


@dataclass(frozen=True)
class CompiledNetwork:
    """A network compiled for one machine: ``program``.

    What the program was made of is looked for when it is first asked for, by ``find_network`` and
    ``find_placement``: it is not kept with a program.
    """

    program: NetworkProgram
    find_network: Callable[[], Network]
    find_placement: Callable[[Network], Placement]

    @cached_property
    def network(self) -> Network:
        """The network in canonical form."""
        return self.find_network()

    @cached_property
    def placement(self) -> Placement:
        """Which operators of `network` the machine runs, and as what."""
        return self.find_placement(self.network)


def compile_network(
    network: Network,
    config: Config,
    open_batch: bool = False,
    passes: Sequence[PlacedPass] = (),
) -> CompiledNetwork:
    """Places the operators of a canonical network and compiles those that are the machine's.

    ``open_batch`` is that of `NetworkProgram`; ``passes`` are additional passes, for each layer.
    """
    placement = place(network, config, passes)
    planned = _Planner(network, placement).steps()
    steps, program = _record(planned, config)
    outputs = {name: network.types[name] for name in network.outputs}
    result = NetworkProgram(
        program=program,
        steps=steps,
        inputs={name: network.types[name] for name in network.inputs},
        outputs=outputs,
        constants={name: network.constants[name] for name in outputs if name in network.constants},
        open_batch=open_batch,
    )
    return CompiledNetwork(result, lambda: network, lambda _: placement)


class _Planner:
    """Orders what was placed, and brings tensors to where they are read."""

    def __init__(self, network: Network, placement: Placement) -> None:
        self.network = network
        self.placement = placement
        self.on_host = set(network.inputs) | set(network.constants)
        # How the machine holds a tensor.
        self.held: dict[str, list[TiledTensor]] = {}
        self.done: list[RunHost | Layer | ToMachine | ToHost] = []

    def steps(self) -> list[RunHost | Layer | ToMachine | ToHost]:
        for segment in _segments(self.network, self.placement):
            hosts = [item for item in segment if isinstance(item, HostNode)]
            if hosts:
                self._run_host(hosts)
            for item in segment:
                if isinstance(item, Layer):
                    self._run_layer(item)
        for name in self.network.outputs:
            self._bring_to_host(name)
        return self.done

    def _run_host(self, hosts: Sequence[HostNode]) -> None:
        made = {name for item in hosts for name in item.node.outputs if name}
        read = {name for item in hosts for name in item.node.reads}
        inputs = sorted(read - made - self.network.constants.keys())
        for name in inputs:
            self._bring_to_host(name)
        own = {id(item.node) for item in hosts}
        later = {name for node in self.network.nodes if id(node) not in own for name in node.reads}
        # A layer reads integers where its first node reads what is dequantized from them.
        layers = [item for item in self.placement.items if isinstance(item, Layer)]
        later |= {source.tensor for layer in layers for source in layer.sources}
        outputs = sorted(made & (later | set(self.network.outputs)))
        model = self.network.part([item.node for item in hosts], inputs, outputs)
        operators = (OnHost(item.node.name, item.node.operator, item.reason) for item in hosts)
        data = model.SerializeToString(deterministic=True)
        self.done.append(RunHost(data, tuple(inputs), tuple(outputs), tuple(operators)))
        self.on_host.update(outputs)

    def _run_layer(self, layer: Layer) -> None:
        for source in layer.sources:
            held = self.held.setdefault(source.tensor, [])
            if source not in held:
                self._bring_to_host(source.tensor)
                self.done.append(ToMachine(source, source.buffer))
                held.append(source)
        self.done.append(layer)
        self.held[layer.result.tensor] = [layer.result]

    def _bring_to_host(self, name: str) -> None:
        if name in self.on_host:
            return
        operand = self.held[self.placement.views.get(name, name)][0]
        self.done.append(ToHost(name, self.network.types[name], operand, operand.buffer))
        self.on_host.add(name)


def _segments(network: Network, placement: Placement) -> Iterator[list[Layer | HostNode]]:
    """Items in groups of one side, each group as large as the data allow."""
    known = set(network.inputs) | set(network.constants)
    waiting = list(placement.items)

    def reads(item: Layer | HostNode) -> set[str]:
        if isinstance(item, Layer):
            return {source.tensor for source in item.sources}
        return {placement.views.get(name, name) for name in item.node.reads}

    side: type[Layer] | type[HostNode] = HostNode
    while waiting:
        segment: list[Layer | HostNode] = []
        later: list[Layer | HostNode] = []
        for item in waiting:
            if isinstance(item, side) and known.issuperset(reads(item)):
                segment.append(item)
                known.update([item.result.tensor] if isinstance(item, Layer) else item.node.outputs)
            else:
                later.append(item)
        if segment:
            yield segment
        waiting = later
        side = Layer if side is HostNode else HostNode


def _record(
    steps: Sequence[RunHost | Layer | ToMachine | ToHost], config: Config
) -> tuple[tuple[Step, ...], Program]:
    """Records the layers' streams; buffers that are not needed at a time share memory."""
    recorder = Recorder(config)
    uses: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for index, step in enumerate(steps):
        for name, size in _touched(step):
            uses.setdefault(name, []).append(index)
            sizes[name] = size
    shared = share_buffers({name: (when[0], when[-1], sizes[name]) for name, when in uses.items()})
    activations = [
        recorder.allocate(size, f"activations {number}") for number, size in enumerate(shared.sizes)
    ]
    constants: list[Buffer] = []
    result: list[Step] = []
    for step in steps:
        match step:
            case Layer():
                sources = [activations[shared.place[item.buffer]] for item in step.sources]
                target = activations[shared.place[step.result.buffer]]
                own = []
                for name, data in step.constants.items():
                    own.append(recorder.allocate(data.size, f"{step.name} {name}"))
                    own[-1].write(data)
                constants += own
                first = len(recorder.streams)
                step.function.run_on(recorder, *sources, *own, target)
                recorder.synchronize()
                streams = range(first, len(recorder.streams))
                words = np.concatenate([recorder.streams[index][0] for index in streams])
                needed = work(config, words)
                result.append(RunLayer(step.name, step.operator, step.macs, streams, needed))
            case ToMachine():
                result.append(replace(step, buffer=activations[shared.place[step.buffer]].name))
            case ToHost():
                result.append(replace(step, buffer=activations[shared.place[step.buffer]].name))
            case RunHost():
                result.append(step)
    return tuple(result), recorder.program(constants=constants)


def _touched(step: RunHost | Layer | ToMachine | ToHost) -> list[tuple[str, int]]:
    """Buffers that a step uses, and their bytes."""
    match step:
        case Layer():
            return [(item.buffer, item.nbytes) for item in (*step.sources, step.result)]
        case ToMachine() | ToHost():
            return [(step.buffer, step.operand.nbytes)]
    return []
