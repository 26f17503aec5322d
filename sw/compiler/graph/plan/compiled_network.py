"""Compile a network for one machine: place, order and record its operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import onnx

from amaranth_vta.collector import collector_paused
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sw.compiler.graph.layers.support.layer import (
    RESULT,
    HostNode,
    Layer,
    Ring,
    RingWrite,
    RowTable,
    WindowSlices,
)
from amaranth_vta.sw.compiler.graph.layers.support.layer_functions import divided_functions
from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.passes.pipeline import PlacedPass
from amaranth_vta.sw.runtime.launches.scattered import ScatteredBuffer
from amaranth_vta.sw.runtime.memory import Buffer, MovingWindow
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.network_program import (
    KeptTensor,
    Launch,
    MoveWindows,
    NetworkProgram,
    RunHost,
    Step,
    ToHost,
    ToMachine,
    WriteRows,
)
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes, TiledTensor
from amaranth_vta.sw.runtime.program import Program, Recorder

from .in_place import BufferSlice, Places, overwrite_variables, stored_slices, without_copies
from .memory_plan import share_buffers
from .placement import Placement, place
from .record_layers import LayerCall, groups_between_barriers, record
from .steps import PlannedStep, planned_steps


@dataclass(frozen=True)
class CompiledNetwork:
    """A network compiled for one machine: ``program``.

    The network and its placement are not saved with a program. ``find_network`` and
    ``find_placement`` compute them on first use. ``model`` is the model that was compiled, with all
    sizes except the number of images, if it was no `Network` already; ``block`` is the block of
    ``program``.
    """

    program: NetworkProgram
    find_network: Callable[[], Network]
    find_placement: Callable[[Network], Placement]
    model: onnx.ModelProto | None = None
    block: CompiledNetwork | None = None

    @cached_property
    def network(self) -> Network:
        """The network in canonical form."""
        return self.find_network()

    @cached_property
    def placement(self) -> Placement:
        """The operators of `network` that run on the machine, as layers, and on the host."""
        return self.find_placement(self.network)


@collector_paused()
def compile_network(
    network: Network,
    config: Config,
    open_batch: bool = False,
    passes: Sequence[PlacedPass] = (),
    machines: int = 1,
    memory_bus: int = 0,
) -> CompiledNetwork:
    """Place the operators of a canonical network and compile the layers of the machine. Raises
    `ModelError` for an output that the file format cannot hold.

    ``open_batch`` and ``machines`` are as in `NetworkProgram`; ``passes`` are additional passes
    for the loop nest of each layer. Machines share a bus of ``memory_bus`` bits, by default as wide
    as in `SystemConfig`.
    """
    system = SystemConfig(config, machines, memory_bus)
    placement = place(network, config, passes)
    planned = planned_steps(placement)
    variables = _variables(network, placement)
    known = placement.network.constants
    steps, launches, program = _record(planned, system, known, variables)
    outputs = {name: network.types[name] for name in network.public_outputs}
    on_machine = {item.operand.tensor for item in variables}
    states = tuple(item for item in network.states if item.source not in on_machine)
    results = [item.result for item in states]
    written = (step.operand.tensor for step in steps if isinstance(step, ToMachine))
    needed = dict.fromkeys([*outputs, *results, *written])
    for name, info in outputs.items():
        if name in network.constants and info.dtype.kind == "O":
            raise ModelError(f"output {name} is a constant of text; outputs are numbers")
    result = NetworkProgram(
        program=program,
        steps=steps,
        inputs={name: network.types[name] for name in network.public_inputs},
        outputs=outputs,
        constants={name: network.constants[name] for name in needed if name in network.constants},
        open_batch=open_batch,
        launches=launches,
        states=states,
        kept=tuple(KeptTensor(item.operand, item.buffer) for item in variables),
        machines=machines,
    )
    return CompiledNetwork(result, lambda: network, lambda _: placement)


@dataclass(frozen=True)
class _Variable:
    """A variable that the machine keeps as ``operand`` in ``buffer``: its ``initial`` bytes, and
    the layer that copies its new value, or None for a ring buffer."""

    operand: TiledTensor
    buffer: str
    initial: Bytes
    copy: Layer | None = None


def _variables(network: Network, placement: Placement) -> list[_Variable]:
    initial = {item.source: item.initial for item in network.states}
    found = []
    for copy in placement.keeping:
        operand = copy.result
        packed = operand.pack(initial[operand.tensor])
        found.append(_Variable(operand, operand.buffer, packed, copy))
    rings = {ring for item in placement.items for ring in _rings(item)}
    # In the same order for runs of one token and of several.
    for ring in sorted(rings, key=lambda ring: (ring.source, ring.copy)):
        # The buffer is named after the value that products read.
        packed = ring.pack(initial[ring.source])
        found.append(_Variable(ring.variable, ring.operand.buffer, packed))
    return found


def _rings(item: Layer | HostNode) -> tuple[Ring, ...]:
    """The ring buffers that an item writes."""
    if isinstance(item, Layer):
        written = item.in_windows.get(RESULT)
        return (written.held,) if written and isinstance(written.held, Ring) else ()
    return item.rings if isinstance(item, RingWrite) else ()


def _record(
    steps: Sequence[PlannedStep],
    system: SystemConfig,
    known: Mapping[str, Array],
    variables: Sequence[_Variable],
) -> tuple[tuple[Step, ...], tuple[Launch, ...], Program]:
    """Record the layers' streams for the machines of ``system``, which share them. Buffers with
    disjoint lifetimes share memory. The network's ``known`` constants are packed once, into
    constant buffers; so are the initial values of ``variables``.
    """
    config = system.config
    recorder = Recorder(config)
    sizes = dict(size for step in steps for size in _buffers_of(step))
    steps, within = without_copies(steps, config)
    packed: dict[str, Buffer] = {}
    for step in steps:
        match step:
            case ToMachine(operand, name) if operand.tensor in known:
                packed[name] = recorder.allocate(operand.nbytes, name)
                packed[name].write(operand.pack(known[operand.tensor]))
            case Layer():
                for held in (slices.held for slices in step.in_windows.values()):
                    operand = held.operand
                    if isinstance(held, RowTable) and operand.buffer not in packed:
                        packed[operand.buffer] = recorder.allocate(operand.nbytes, operand.buffer)
                        packed[operand.buffer].write(operand.pack(known[operand.tensor]))
    steps = [item for item in steps if not (isinstance(item, ToMachine) and item.buffer in packed)]
    for variable in variables:
        name = variable.buffer
        packed[name] = recorder.allocate(variable.initial.size, name)
        packed[name].write(variable.initial)
    copies = {item.buffer: item.copy for item in variables if item.copy is not None}
    steps, replaced = overwrite_variables(steps, copies, _uses(steps, within), within)
    uses = _uses(steps, within)
    shared = share_buffers(
        {
            name: (when[0], when[-1], sizes[name])
            for name, when in uses.items()
            if name not in packed and name not in replaced
        }
    )
    activations = [
        recorder.allocate(size, f"activations {number}") for number, size in enumerate(shared.sizes)
    ]

    def whole(name: str) -> Buffer:
        name = replaced.get(name, name)
        return packed[name] if name in packed else activations[shared.buffer_of[name]]

    def part(place: BufferSlice, name: str) -> Buffer:
        return whole(place.buffer).part(place.offset, place.nbytes, name)

    def buffer(name: str) -> Buffer:
        if name not in within:
            return whole(name)
        (place,) = stored_slices(name, sizes[name], within)
        return part(place, name)

    def source(name: str) -> Buffer | ScatteredBuffer:
        if name not in within:
            return whole(name)
        places = stored_slices(name, sizes[name], within)
        return ScatteredBuffer([part(place, name) for place in places], name)

    windows = _Windows()
    constants = list(packed.values())
    result: list[Step | LayerCall] = []
    for step in steps:
        match step:
            case Layer():
                rings = {
                    at: windows.argument(slices, whole(slices.held.operand.buffer))
                    for at, slices in step.in_windows.items()
                }
                sources = [
                    rings[at] if at in rings else source(item.buffer)
                    for at, item in enumerate(step.sources)
                ]
                target = rings[RESULT] if RESULT in rings else buffer(step.result.buffer)
                own = []
                for name, data in step.constants.items():
                    own.append(recorder.allocate(data.size, f"{step.name} {name}"))
                    own[-1].write(data)
                constants += own
                functions = divided_functions(step, system)
                arguments = [*sources, *own, target]
                if step.second is not None:
                    arguments.append(buffer(step.second.buffer))
                result.append(LayerCall(step, functions, arguments))
            case ToMachine() | ToHost() | WriteRows():
                result.append(replace(step, buffer=buffer(step.buffer).name))
            case RunHost() | MoveWindows():
                result.append(step)
    launches = record(recorder, [*_groups(result)])
    program = recorder.program(constants=constants)
    # Layers with constant results read no input, so the program has no buffer for it.
    used = {item.name for item in program.buffers}
    kept = (step for step in result if not isinstance(step, ToMachine) or step.buffer in used)
    recorded = (step.recorded(recorder) if isinstance(step, LayerCall) else step for step in kept)
    return tuple(map(windows.moved_by, recorded)), tuple(launches), program


class _Windows:
    """The windows in which layers have arguments, by the place to which they move."""

    def __init__(self) -> None:
        self._windows: dict[str, dict[str, MovingWindow]] = {}

    def argument(self, slices: WindowSlices, within: Buffer) -> ScatteredBuffer:
        """The ``slices`` of the buffer ``within``, as the argument of a layer."""
        size = max(slices.offsets) + slices.nbytes
        name = f"{size} bytes of {within.name} at {slices.place}, {slices.motion}"
        here = self._windows.setdefault(slices.place, {})
        window = here.setdefault(name, MovingWindow(within, size, name, slices.motion))
        parts = [window.part(offset, slices.nbytes, name) for offset in slices.offsets]
        return ScatteredBuffer(parts, name)

    def moved_by(self, step: Step) -> Step:
        """``step``, with all windows that it moves."""
        if not isinstance(step, MoveWindows):
            return step
        return replace(step, windows=tuple(self._windows[step.place]))


def _groups(steps: Sequence[Step | LayerCall]) -> Iterator[list[LayerCall]]:
    """The groups of layers that can be launched at once."""
    for _, group in groupby(steps, lambda step: isinstance(step, LayerCall)):
        yield from groups_between_barriers([step for step in group if isinstance(step, LayerCall)])


def _uses(steps: Sequence[PlannedStep], within: Places) -> dict[str, list[int]]:
    """The indices of the steps that use each allocated buffer."""
    uses: dict[str, list[int]] = {}
    for index, step in enumerate(steps):
        for item in _buffers_of(step):
            for part in stored_slices(*item, within):
                uses.setdefault(part.buffer, []).append(index)
    return uses


def _buffers_of(step: PlannedStep) -> list[tuple[str, int]]:
    """The buffers that a step uses, and their sizes in bytes."""
    match step:
        case Layer():
            arguments = {**dict(enumerate(step.sources)), RESULT: step.result}
            arguments |= {at: slices.held.operand for at, slices in step.in_windows.items()}
            used = [*arguments.values(), *step.results[1:]]
            return [(item.buffer, item.nbytes) for item in used]
        case ToMachine() | ToHost() | WriteRows():
            return [(step.buffer, step.operand.nbytes)]
    return []
