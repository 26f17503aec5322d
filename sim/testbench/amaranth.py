"""Helpers for tests of hardware components: streams, clocks, and pauses.

A test drives a component's input stream with `put_all`, collects its output stream with
`get_all`, and passes a `Pauses` to each of them, so that the same test runs at full rate, with gaps
between items, and under backpressure.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

from amaranth.hdl import Const, ShapeCastable, Value, signed
from amaranth.lib import data
from amaranth.sim import Simulator

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.amaranth_internals.simulator import remove_testbenches, simulator

_P = ParamSpec("_P")
_T = TypeVar("_T")
Pauses = Callable[[], bool]
"""Says, once per cycle, whether to wait in that cycle."""

# Unit tests take a few thousand.
_MAX_CYCLES = 100_000
# Tests of one file share few components, each of which takes megabytes when compiled.
_MAX_SHARED = 16


def never() -> bool:
    return False


def pauses(probability: float, seed: int = 0) -> Pauses:
    """Pause in each cycle with this probability; deterministic for a seed."""
    generator = random.Random(seed)
    return lambda: generator.random() < probability


async def put_all(ctx: Any, stream: Any, payloads: Iterable[Any], pause: Pauses = never) -> None:
    """Offers each payload on ``stream`` until it is taken."""
    cycles = aiter(ctx.tick().sample(stream.ready))
    for payload in payloads:
        while pause():
            await anext(cycles)
        ctx.set(stream.payload, payload)
        ctx.set(stream.valid, 1)
        taken = False
        while not taken:  # without the time limit of `until`
            _, _, taken = await anext(cycles)
        ctx.set(stream.valid, 0)


async def get_all(
    ctx: Any, stream: Any, count: int, pause: Pauses = never, within: int = 100_000
) -> list[Any]:
    """Accept ``count`` payloads; `TimeoutError` if they do not arrive within ``within`` cycles."""
    payloads: list[Any] = []
    shape = stream.payload.shape()
    cycles = aiter(ctx.tick().sample(stream.valid, Value.cast(stream.payload)))
    for _ in range(within):
        if len(payloads) == count:
            return payloads
        if pause():
            await anext(cycles)
            continue
        ctx.set(stream.ready, 1)
        _, _, valid, bits = await anext(cycles)
        if valid:
            payloads.append(shape.from_bits(bits) if isinstance(shape, ShapeCastable) else bits)
        ctx.set(stream.ready, 0)
    if len(payloads) == count:
        return payloads
    raise TimeoutError(f"{len(payloads)} of {count} items came within {within} cycles")


def transfer_command(
    instruction: isa.Load | isa.Store | isa.Forward | isa.SetPadding,
) -> dict[str, int]:
    """Command payload of a `Loader` or `Storer` for an instruction."""
    names = "memory sram_base dram_base y_size x_size x_stride y_pad_0 y_pad_1 x_pad_0 x_pad_1"
    pads_before = instruction.y_pad_0 * instruction.row_elements + instruction.x_pad_0
    return {
        **{name: int(getattr(instruction, name)) for name in names.split()},
        "elements": instruction.elements,
        "first": instruction.sram_base + pads_before,
        "has_data": int(instruction.x_size != 0 and instruction.y_size != 0),
    }


def checked_entry(config: Config, instruction: isa.Instruction, index: int = 0) -> dict[str, Any]:
    """Payload of `CheckedEntry` for an instruction."""
    entry = {"bits": isa.instruction_set(config).encode(instruction), "index": index}
    if not isinstance(instruction, isa.Load | isa.Store | isa.Forward):
        return {"entry": entry}
    memory = isa.Memory(instruction.memory)
    depth = config.memory(memory).depth
    elements = instruction.elements
    if elements and instruction.sram_base + elements > depth:
        return {"entry": entry, "out_of_range": 1}
    outside = isinstance(instruction, isa.Forward) and instruction.source_end > config.acc.depth
    if outside and instruction.x_size and instruction.y_size:
        return {"entry": entry, "out_of_range": 1}
    command = transfer_command(instruction)
    return {"entry": entry, "elements": elements, "first": command["first"]}


class BurstMemory:
    """DRAM behind a `ReadSignature` or `WriteSignature` port, for tests.

    Answers in order, one beat per cycle, at least ``latency`` cycles after the request, with at
    most ``outstanding`` bursts in flight; ``pause`` stalls requests, beats and responses. Bursts
    that touch one of the ``bad`` addresses end in an error. Every burst is checked against the bus
    rules, and writes against `Storer`'s own: at most two words after an error; raises
    `AssertionError` for a violation.

    Attributes
    ----------
    contents : uint8, index = byte address
    bursts : (address, beats) of all bursts so far
    beats : number of beats transferred
    refused : number of beats written without strobes after an error
    """

    def __init__(
        self,
        contents: Any,
        *,
        latency: int = 4,
        outstanding: int = 8,
        pause: Pauses = never,
        bad: Iterable[int] = (),
    ) -> None:
        self.contents = contents
        self.bursts: list[tuple[int, int]] = []
        self.beats = 0
        self.refused = 0
        self._latency = latency
        self._outstanding = outstanding
        self._pause = pause
        self._bad = frozenset(bad)

    def _accept(self, address: int, beats: int, size: int) -> None:
        assert address % size == 0, f"{address:#x} is not aligned to the bus"
        assert address // 4096 == (address + beats * size - 1) // 4096, "a burst crosses 4 KiB"
        self.bursts.append((address, beats))

    async def serve_reads(self, ctx: Any, port: Any) -> None:
        """Runs forever: add it as a background process."""
        size = len(port.beat.payload.data) // 8
        due: deque[tuple[int, dict[str, int]]] = deque()
        bursts, cycle, offered = 0, 0, False
        asks, request_ready, requested = (
            port.request.valid,
            port.request.ready,
            port.request.payload,
        )
        offer, payload, takes = port.beat.valid, port.beat.payload, port.beat.ready
        cycles = aiter(ctx.tick().sample(asks, request_ready, Value.cast(requested), takes))
        while True:
            ctx.set(request_ready, bursts < self._outstanding and not self._pause())
            if not offered and due and due[0][0] <= cycle and not self._pause():
                ctx.set(payload, due[0][1])
                offered = True
            ctx.set(offer, offered)
            _, _, asked, ready, bits, taken = await anext(cycles)
            cycle += 1
            if offered and taken:
                offered = False
                self.beats += 1
                bursts -= due.popleft()[1]["last"]
            if asked and ready:
                bursts += 1
                request = requested.shape().from_bits(bits)
                beats = request.length + 1
                self._accept(request.address, beats, size)
                for number in range(beats):
                    address = request.address + number * size
                    word = bytes(self.contents[address : address + size])
                    beat = {
                        "data": int.from_bytes(word, "little"),
                        "error": any(address <= bad < address + size for bad in self._bad),
                        "last": number == beats - 1,
                    }
                    due.append((cycle + self._latency - 1, beat))

    async def serve_writes(self, ctx: Any, port: Any) -> None:
        """Runs forever: add it as a background process."""
        size = len(port.beat.payload.strobe)
        announced: deque[tuple[int, int]] = deque()
        due: deque[tuple[int, int]] = deque()
        cycle, number, offered, bursts, error = 0, 0, False, 0, 0
        failed, written_after = False, 0
        asks, request_ready, requested = (
            port.request.valid,
            port.request.ready,
            port.request.payload,
        )
        sends, beat_ready, written = port.beat.valid, port.beat.ready, port.beat.payload
        answer, answer_error = port.response.valid, port.response.payload.error
        bits_of = map(Value.cast, (requested, written))
        cycles = aiter(
            ctx.tick().sample(asks, request_ready, sends, beat_ready, port.response.ready, *bits_of)
        )
        while True:
            ctx.set(request_ready, bursts < self._outstanding and not self._pause())
            ctx.set(beat_ready, bool(announced) and not self._pause())
            if not offered and due and due[0][0] <= cycle and not self._pause():
                ctx.set(answer_error, due[0][1])
                offered = True
            ctx.set(answer, offered)
            _, _, asked, ready, sent, taken, answered, *bits = await anext(cycles)
            cycle += 1
            beat = written.shape().from_bits(bits[1]) if sent and taken else None
            if beat is not None and failed:
                written_after += beat.strobe != 0
                self.refused += beat.strobe == 0
                assert written_after <= 2, "a burst is written after an error"
            if offered and answered:
                offered = False
                bursts -= 1
                failed |= bool(due.popleft()[1])
            if beat is not None:
                address, beats = announced[0]
                self.beats += 1
                for place in range(size):
                    byte = address + number * size + place
                    if beat.strobe >> place & 1:
                        error |= byte in self._bad
                        self.contents[byte] = beat.data >> 8 * place & 0xFF
                number += 1
                assert beat.last == (number == beats), "the last beat is not marked as such"
                if beat.last:
                    announced.popleft()
                    due.append((cycle + self._latency - 1, error))
                    number = error = 0
            if asked and ready:
                bursts += 1
                request = requested.shape().from_bits(bits[0])
                self._accept(request.address, request.length + 1, size)
                announced.append((request.address, request.length + 1))


class ReadAhead:
    """Serves the port ``ahead_read`` of an `AluUnit` from an array (element, row, column): data
    appear two cycles after a read and stay as long as the unit keeps them; otherwise they are 0.
    """

    def __init__(self, contents: Any) -> None:
        self._contents = contents
        # Per half of the accumulators.
        self._arriving: list[Any] = [None, None]
        self._kept: list[Any] = [0 * contents[0]] * 2

    def given(self, enable: int, index: int, keeps: int) -> Any:
        """The port's data after a cycle in which its inputs were ``enable`` and ``index``, and
        ``ahead_read_keeps`` was ``keeps``. Call it before updating the array with the writes of
        that cycle.
        """
        for half, arrived in enumerate(self._arriving):
            if arrived is not None:
                self._kept[half] = arrived
            elif not keeps >> half & 1:
                self._kept[half] = 0 * self._contents[0]
        self._arriving = [None, None]
        if enable:
            self._arriving[2 * index // len(self._contents)] = self._contents[index].copy()
        return self._kept[0] | self._kept[1]


def run_unit(
    unit: Any,
    micro_ops: Iterable[Any],
    reads: Mapping[str, Any],
    writes: Mapping[str, Any],
    pause: Pauses = never,
) -> tuple[list[int], int]:
    """Feed ``micro_ops`` to a GEMM or ALU unit.

    Returns the value of ``error`` at each ``done``, and the cycles until the last micro-op was
    accepted. The read and write ports named by the keys of ``reads`` and ``writes`` are served from
    arrays (element, row, column); a write is visible to a read in the same cycle, and to a
    two-cycle port in the second one. A read with an output NAME_clear, if the unit has one, returns
    zeros. ``ahead_read``, if the unit has it, is served with ``dst_read``.
    """
    errors: list[int] = []
    cycles = taken = 0

    sampled: list[Any] = []
    for name, contents in writes.items():
        port = getattr(unit, name)
        sampled += [port.enable, port.index, _tile(port, contents)]
    for name in reads:
        port = getattr(unit, name)
        sampled += [port.enable, port.index, getattr(unit, f"{name}_clear", Const(0))]

    given_to = {name: _tile(getattr(unit, name), contents) for name, contents in reads.items()}
    # Requests of two-cycle ports in the previous cycle.
    asked_before = {name: (0, 0, 0) for name in reads if getattr(unit, name).signature.cycles == 2}

    async def serve(ctx: Any) -> None:
        nonlocal cycles
        ticks = aiter(ctx.tick().sample(unit.done, unit.error, *sampled))
        while True:
            _, _, done, error, *values = await anext(ticks)
            cycles += 1
            value = iter(values)
            for contents in writes.values():
                enable, index, tile = next(value), next(value), next(value)
                if enable:
                    contents[index] = [list(row) for row in tile]
            for name, contents in reads.items():
                asked = next(value), next(value), next(value)
                if name in asked_before:
                    asked, asked_before[name] = asked_before[name], asked
                enable, index, clear = asked
                if enable:
                    given = 0 * contents[index] if clear else contents[index]
                    ctx.set(given_to[name], given.tolist())
            if done:
                errors.append(error)

    async def drive(ctx: Any) -> None:
        nonlocal taken
        await put_all(ctx, unit.i, micro_ops, pause)
        taken = cycles
        await ctx.tick().repeat(20)

    simulate(unit, drive, background=[*_serve_ahead(unit, reads), serve])
    return errors, taken


def _serve_ahead(unit: Any, reads: Mapping[str, Any]) -> Iterator[Callable[[Any], Any]]:
    """A process that serves the port ``ahead_read``, if there is one, before writes."""
    if not hasattr(unit, "ahead_read"):
        return
    port, contents = unit.ahead_read, reads["dst_read"]
    served, tile = ReadAhead(contents), _tile(port, contents)

    async def serve(ctx: Any) -> None:
        sampled = ctx.tick().sample(port.enable, port.index, unit.ahead_read_keeps)
        async for _, _, *asked in sampled:
            ctx.set(tile, served.given(*asked).tolist())

    yield serve


def _tile(port: Any, contents: Any) -> data.View:
    """The data of a port, viewed as a tile of ``contents``."""
    _, rows, columns = contents.shape
    width = len(port.data[0]) // (rows * columns)
    layout = data.ArrayLayout(data.ArrayLayout(signed(width), columns), rows)
    return data.View(layout, port.data[0])


def simulate(
    component: Any,
    *testbenches: Callable[[Any], Any],
    background: Iterable[Callable[[Any], Any]] = (),
    waves: str | None = None,
) -> None:
    """Simulate the component, with a clock, until all testbenches have ended.

    Those in the ``background`` may run forever. Raises `TimeoutError` if the others take more than
    100,000 cycles, for instance because one waits for an event that never happens. A component of
    `shared` is compiled when it is first simulated.
    """
    simulation = (_kept if component in _shared else _clocked)(component)
    try:
        for testbench in background:
            simulation.add_testbench(testbench, background=True)
        for testbench in testbenches:
            simulation.add_testbench(testbench)
        with nullcontext() if waves is None else simulation.write_vcd(waves):
            for _ in range(2 * _MAX_CYCLES):  # edges
                if not simulation.advance():
                    return
        raise TimeoutError(f"a testbench has not ended after {_MAX_CYCLES} cycles")
    finally:
        remove_testbenches(simulation)


def shared(component: Callable[_P, _T], *parameters: _P.args, **named: _P.kwargs) -> _T:
    """The component ``component(*parameters, **named)``, cached so that all tests of a process
    share its compiled simulation: compiling takes as long as a short test.

    Parameters are hashable. Each simulation starts from reset.
    """
    made: _T = _made(component, *parameters, **named)  # type: ignore[arg-type]
    return made


@lru_cache(maxsize=_MAX_SHARED)
def _made(component: Callable[..., Any], *parameters: Any, **named: Any) -> Any:
    made = component(*parameters, **named)
    _shared.add(made)
    return made


_shared: WeakSet[Any] = WeakSet()


def _clocked(component: Any) -> Simulator:
    simulation = simulator(component)
    simulation.add_clock(1e-8)
    return simulation


_kept = lru_cache(maxsize=_MAX_SHARED)(_clocked)
