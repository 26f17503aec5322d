"""The machine in Amaranth's own simulator: needs no compiler; two thousand cycles per second."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from weakref import WeakMethod

import numpy as np
from amaranth.hdl import Cat, ClockDomain, Module, Signal, Value
from amaranth.sim import Simulator

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.amaranth_internals.simulator import simulator
from amaranth_vta.sim.trace.perfetto import Timeline
from amaranth_vta.sim.trace.timeline import MOMENT, moment_flags

from .axi_memory import Address, Answer, AxiMemory, Channel, Request, Word
from .dram import MemoryTiming, ProtocolError, memory_timing
from .elaborate import machine, pins
from .host import SimulatedDevice

_RESET_CYCLES = 4
_REGISTER_CYCLES = 1000
_CLOCK_SECONDS = 1e-8
# Each compiled machine takes tens of megabytes.
_MOST_IDLE = 4

# A register access by the host: resumed each cycle with the sampled pins; returns the value read.
_Access = Generator[None, dict[str, int], int]

# Returns a simulator for a module.
MakeSimulator = Callable[[Module], Simulator]


class PysimDevice(SimulatedDevice):
    """A cycle-accurate `Device`. ``dram`` names a memory model of `sim.machine.dram`.

    ``waves`` is a VCD file with all signals of all runs; ``timeline`` records each run;
    ``make_simulator`` selects the engine of the simulator, by default the levelized one. Compiling
    the machine takes seconds; without ``waves``, a device takes over the machine of an equal one
    that is closed or garbage-collected.
    """

    name = "pysim"

    def __init__(
        self,
        config: Config,
        memory_bytes: int,
        dram: str = "ideal",
        waves: str | Path | None = None,
        timeline: Timeline | None = None,
        origin: int = 0,
        make_simulator: MakeSimulator = simulator,
    ) -> None:
        timing = memory_timing(dram)
        super().__init__(config, memory_bytes, timeline, origin)
        watched = timeline is not None
        self.attach(
            InterpretedMachine(config, self.memory, timing, waves, watched, origin, make_simulator)
        )


class InterpretedMachine:
    """Same interface and cycle counts as `sim.machine.rtl.engine.CompiledMachine`."""

    cycles_per_poll = 100

    def __init__(
        self,
        config: Config,
        memory: Any,
        timing: MemoryTiming,
        waves: str | Path | None = None,
        watched: bool = False,
        origin: int = 0,
        make_simulator: MakeSimulator = simulator,
    ) -> None:
        self._stack = ExitStack()
        self._random = timing.seed is not None
        self._memory = AxiMemory(memory, config.bus_bytes, timing, origin)
        self._rose = 0
        self._interrupted = False
        self._access: _Access | None = None
        self._value: int | None = None
        self._problem: ProtocolError | None = None
        self._resets = 0
        self._last: dict[str, int] = {}
        self._watched = watched
        self._moments: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
        key = (config, watched, make_simulator)
        simulation = _idle.pop(key, None) if waves is None else None
        if simulation is None:
            simulation = _Simulation(*key)
        else:
            simulation.simulator.reset()
        # Weak, so that this object is garbage as soon as its device is.
        simulation.respond = WeakMethod(self._respond)
        self._simulation = simulation
        if waves is None:
            self._stack.callback(_give_back, key, simulation)
        else:
            self._stack.enter_context(simulation.simulator.write_vcd(str(waves)))
        self.reset()

    def write_register(self, address: int, value: int) -> None:
        self._perform(self._write(address, value))

    def read_register(self, address: int) -> int:
        return self._perform(self._read(address))

    def advance(self, most: int) -> bool:
        """Run the clock until the interrupt line is high; returns False after ``most`` cycles."""
        end = self.cycle + most
        while self.cycle < end:
            self._cycle()
            if self._interrupted:
                return True
        return False

    def reset(self) -> None:
        """Assert reset for a few cycles and drop the accesses in flight."""
        self._problem = None
        self._resets = _RESET_CYCLES
        for _ in range(_RESET_CYCLES + 1):
            self._cycle()

    @property
    def cycle(self) -> int:
        return self._memory.cycle

    @property
    def run_cycles(self) -> int:
        """Cycles from the last register write to the rise of the interrupt line."""
        return self._rose - self._memory.start

    @property
    def run_start(self) -> int:
        """Cycle in which the last register write was accepted."""
        return self._memory.start

    def take_moments(self) -> np.ndarray:
        """All cycles since the last call, as `MOMENT`; only if watched."""
        moments = np.array(self._moments, MOMENT)
        self._moments.clear()
        return moments

    @property
    def silent_cycles(self) -> int:
        """Cycles since the last transfer on the memory bus or the last register write."""
        return self.cycle - max(self._memory.last_moved, self._memory.start)

    @property
    def quiet(self) -> bool:
        """Whether no memory access is in flight."""
        return self._memory.quiet

    def await_writes(self, addresses: Sequence[int]) -> None:
        """Record from now on when the bytes at ``addresses`` are written, in this order."""
        self._memory.awaited, self._memory.reached = list(addresses), []

    def writes_reached(self) -> list[int]:
        """Cycles in which memory answered the awaited writes so far."""
        return self._memory.reached

    def close(self) -> None:
        """End the simulation and complete its wave file."""
        self._stack.close()

    def __del__(self) -> None:
        self.close()

    def _perform(self, access: _Access) -> int:
        next(access)
        self._access = access
        self._value = None
        while self._value is None:
            self._cycle()
        return self._value

    def _cycle(self) -> None:
        """Simulate one clock cycle."""
        if self._problem is None:
            before = self.cycle
            while self.cycle == before and self._problem is None:
                self._simulation.simulator.advance()
        if self._problem is not None:
            raise self._problem

    def _respond(self, seen: dict[str, int]) -> dict[str, int]:
        """Inputs of the machine that change for the next cycle, as `_react`."""
        try:
            drive = self._react(seen)
        except ProtocolError as error:
            self._problem = error
            return {}
        changed = {name: value for name, value in drive.items() if self._last.get(name) != value}
        self._last.update(drive)
        return changed

    def _react(self, seen: dict[str, int]) -> dict[str, int]:
        """Inputs of the machine in the next cycle, given its outputs ``seen`` in this one."""
        if self._resets:
            self._resets -= 1
            self._memory.reset()
            self._memory.cycle += 1
            self._host = dict.fromkeys(_HOST, 0)
            self._access = None
            self._interrupted = False
            self._b = Channel[int]("AXI-Lite B")
            self._r = Channel[tuple[int, int]]("AXI-Lite R")
            return {**_answer(self._memory.answer), **self._host, "rst": int(self._resets > 0)}
        if self._watched:
            self._moments.append(_moment(self.cycle, seen))
        irq = bool(seen["irq"])
        if irq and not self._interrupted:
            self._rose = self.cycle
        self._interrupted = irq
        response, data = seen["s_axil_bresp"], (seen["s_axil_rdata"], seen["s_axil_rresp"])
        ready = self._host["s_axil_bready"], self._host["s_axil_rready"]
        self._b.take(response if seen["s_axil_bvalid"] else None, ready[0], self.cycle)
        self._r.take(data if seen["s_axil_rvalid"] else None, ready[1], self.cycle)
        if self._access is not None:
            try:
                self._access.send(seen)
            except StopIteration as end:
                self._access, self._value = None, end.value
        return {**_answer(self._memory.step(_request(seen))), **self._host}

    def _write(self, address: int, value: int) -> _Access:
        address_delay, data_delay, response_delay = (self._delay() for _ in range(3))
        host = self._host
        yield
        host.update(s_axil_awaddr=address, s_axil_wdata=value, s_axil_wstrb=15)
        address_done = data_done = False
        for i in range(_REGISTER_CYCLES):
            host["s_axil_awvalid"] = int(not address_done and i >= address_delay)
            host["s_axil_wvalid"] = int(not data_done and i >= data_delay)
            host["s_axil_bready"] = int(address_done and data_done and i >= response_delay)
            seen = yield
            taken = host["s_axil_awvalid"] & seen["s_axil_awready"]
            data_taken = host["s_axil_wvalid"] & seen["s_axil_wready"]
            if (taken or data_taken) and (taken or address_done) and (data_taken or data_done):
                self._memory.start = self.cycle
                self._memory.begin()
            address_done |= bool(taken)
            data_done |= bool(data_taken)
            if host["s_axil_bready"] and seen["s_axil_bvalid"]:
                host["s_axil_bready"] = 0
                if seen["s_axil_bresp"]:
                    raise ProtocolError(f"register {address:#x} refuses a write")
                return 0
        raise ProtocolError(f"register {address:#x} does not answer a write")

    def _read(self, address: int) -> _Access:
        response_delay = self._delay()
        host = self._host
        yield
        host["s_axil_araddr"] = address
        address_done = False
        for i in range(_REGISTER_CYCLES):
            host["s_axil_arvalid"] = int(not address_done)
            host["s_axil_rready"] = int(address_done and i >= response_delay)
            seen = yield
            address_done |= bool(host["s_axil_arvalid"] & seen["s_axil_arready"])
            if host["s_axil_rready"] and seen["s_axil_rvalid"]:
                host["s_axil_rready"] = 0
                if seen["s_axil_rresp"]:
                    raise ProtocolError(f"register {address:#x} refuses a read")
                return seen["s_axil_rdata"]
        raise ProtocolError(f"register {address:#x} does not answer a read")

    def _delay(self) -> int:
        return self._memory.dice.draw(4) if self._random else 0


class _Simulation:
    """A compiled machine, for one `InterpretedMachine` after the other, whose method ``respond``
    returns the inputs that change after each cycle, given the outputs in it.
    """

    respond: WeakMethod[Callable[[dict[str, int]], dict[str, int]]]

    def __init__(self, config: Config, watched: bool, make_simulator: MakeSimulator) -> None:
        top = machine(config, watched)
        self._inputs, outputs = pins(top)
        wrapper = Module()
        wrapper.domains.sync = ClockDomain(reset_less=True)
        wrapper.submodules.vta = top
        # All outputs concatenated, since sampling them one by one takes a seventh of the run time.
        self._outputs = _Word(outputs)
        wrapper.d.comb += self._outputs.signal.eq(Cat(*outputs.values()))
        self.simulator = make_simulator(wrapper)
        self.simulator.add_clock(_CLOCK_SECONDS)
        self.simulator.add_process(self._bench)

    async def _bench(self, context: Any) -> None:
        context.set(self._inputs["rst"], 1)
        while True:
            _, _, seen = await context.tick().sample(self._outputs.signal)
            for name, value in self._changes(self._outputs.parts(seen)).items():
                context.set(self._inputs[name], value)

    def _changes(self, seen: dict[str, int]) -> dict[str, int]:
        respond = self.respond()
        assert respond is not None
        return respond(seen)


_Key = tuple[Config, bool, MakeSimulator]
_idle: dict[_Key, _Simulation] = {}


def _give_back(key: _Key, simulation: _Simulation) -> None:
    _idle.setdefault(key, simulation)
    if len(_idle) > _MOST_IDLE:
        del _idle[next(iter(_idle))]


class _Word:
    """Signals concatenated to one, ``signal``, and extraction of each from its value."""

    def __init__(self, signals: Mapping[str, Value]) -> None:
        self._places: list[tuple[str, int, int]] = []  # name, first bit, mask
        width = 0
        for name, signal in signals.items():
            self._places.append((name, width, (1 << len(signal)) - 1))
            width += len(signal)
        self.signal = Signal(width, name="outputs")

    def parts(self, value: int) -> dict[str, int]:
        return {name: value >> first & mask for name, first, mask in self._places}


_HOST = (
    "s_axil_awaddr",
    "s_axil_awvalid",
    "s_axil_wdata",
    "s_axil_wstrb",
    "s_axil_wvalid",
    "s_axil_bready",
    "s_axil_araddr",
    "s_axil_arvalid",
    "s_axil_rready",
)


def _request(seen: dict[str, int]) -> Request:
    def address(channel: str) -> Address | None:
        if not seen[f"m_axi_{channel}valid"]:
            return None
        return Address(
            *(seen[f"m_axi_{channel}{name}"] for name in ("addr", "len", "size", "burst", "id"))
        )

    word = Word(seen["m_axi_wdata"], seen["m_axi_wstrb"], seen["m_axi_wlast"])
    return Request(
        address("ar"),
        address("aw"),
        word if seen["m_axi_wvalid"] else None,
        seen["m_axi_rready"],
        seen["m_axi_bready"],
    )


def _moment(cycle: int, seen: dict[str, int]) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    parts = ("starts", "begins", "ends", "lacks_prev", "lacks_next", "unit")
    flags = [
        moment_flags(*(seen[f"activity_{module}_{part}"] for part in parts))
        for module in ("load", "compute", "store")
    ]
    modules = ("fetch", "load", "compute", "store")
    indices = tuple(seen[f"activity_{module}_index"] for module in modules)
    return cycle, indices, (seen["activity_fetch_hands_over"], *flags)


def _answer(answer: Answer) -> dict[str, int]:
    return {
        "m_axi_arready": answer.ar_ready,
        "m_axi_awready": answer.aw_ready,
        "m_axi_wready": answer.w_ready,
        "m_axi_rvalid": answer.r_valid,
        "m_axi_rdata": answer.r_data,
        "m_axi_rresp": answer.r_resp,
        "m_axi_rlast": answer.r_last,
        "m_axi_bvalid": answer.b_valid,
        "m_axi_bresp": answer.b_resp,
    }
