"""The machine with its buses: an AXI4 master to memory, and registers on AXI4-Lite."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from . import isa
from .bus.attributes import DEFAULT_ATTRIBUTES, BusAttributes
from .bus.axi import AXI4LiteSignature, AXI4Signature
from .bus.csr import RegisterFile
from .bus.master import connect_requests, connect_transfers
from .clock_groups import ClockGroups, GroupClocks
from .compute import Unit
from .config import Config
from .core import Core
from .counters.activity import Activity
from .interfaces import within_dram
from .microarchitecture import Microarchitecture
from .registers import ADDRESS_WIDTH, REGISTERS, WORD_BYTES


class Top(wiring.Component):
    """The whole machine.

    A driver writes the program's address, length and base addresses, writes CONTROL.launch, and
    waits for the interrupt or for STATUS.done. The registers of the program are copied at its
    launch, so the next program may be set up during a run. Every program terminates; CONTROL.reset
    aborts one that takes too long.

    Timing: the run starts in the cycle after the launch reaches the register file; CYCLES counts
    from then to the end of the run.

    ``choices`` override the microarchitecture that is derived from the configuration.

    Ports
    -----
    m_axi : AXI4 master; one ID, bursts of the full width of the bus
    s_axil : AXI4-Lite slave with the registers of `amaranth_vta.hw.registers`
    irq : high while an enabled interrupt is pending: the run is done, failed, or was stopped; from
        a flip-flop
    rst : synchronous reset, an ordinary port; the clock domain has no reset. Between runs the core
        is held in reset anyway, so most registers need no second reset.
    activity : only if ``watched``: activity of the modules, for simulation
    clock : only if ``grouped``: clocks for groups of registers, for simulation
    """

    def __init__(
        self,
        config: Config,
        watched: bool = False,
        grouped: bool = False,
        attributes: BusAttributes = DEFAULT_ATTRIBUTES,
        choices: Microarchitecture | None = None,
    ) -> None:
        self._config = config
        self._choices = choices or Microarchitecture.of(config)
        self._attributes = attributes
        self._groups = ClockGroups(separate=grouped)
        self._watched = watched
        super().__init__(
            {
                "m_axi": Out(AXI4Signature(8 * config.bus_bytes)),
                "s_axil": In(AXI4LiteSignature(8 * WORD_BYTES, ADDRESS_WIDTH)),
                "irq": Out(1),
                "rst": In(1),
                **({"activity": Out(Activity(len(Unit) - 1))} if watched else {}),
                **({"clock": Out(GroupClocks())} if grouped else {}),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.core = core = Core(self._config, self._groups, self._choices)
        registers = RegisterFile(self._config, self._choices)
        m.submodules.registers = ResetInserter(self.rst)(registers)
        connect(m, flipped(self.s_axil), registers.bus)
        self._connect_memory(m, core)
        if self._watched:
            connect(m, core.activity, flipped(self.activity))
        if self._groups.separate:
            self._groups.connect(m, self.clock, core.held)

        control = REGISTERS["CONTROL"]
        asked, launch, reset = Signal(), Signal(), Signal()
        m.d.comb += [
            asked.eq(registers.control[control.part("launch").offset]),
            reset.eq(registers.control[control.part("reset").offset]),
            launch.eq(asked & ~reset & ~core.busy & ~core.draining),
            core.launch.eq(launch),
            core.stop.eq(reset),
            core.clear.eq(self.rst),
            core.timeout.eq(registers.timeout),
        ]
        self._hold_program(m, registers, core, launch)

        done, stopped, refused = Signal(), Signal(), Signal()
        fault, tokens = Signal.like(core.fault), Signal.like(core.tokens)
        cycles = Signal(64)
        with m.If(core.busy):
            m.d.sync += cycles.eq(cycles + 1)
        with m.If(launch):
            m.d.sync += cycles.eq(0)
        with m.If(asked):
            m.d.sync += refused.eq(~launch)
        with m.If(core.done):
            m.d.sync += [
                done.eq(1),
                stopped.eq(core.stopped),
                fault.eq(core.fault),
                tokens.eq(core.tokens),
            ]
        with m.Elif(launch | (reset & ~core.busy)):
            m.d.sync += [done.eq(0), stopped.eq(0), fault.eq(0)]
        with m.If(self.rst):
            m.d.sync += [
                done.eq(0),
                stopped.eq(0),
                refused.eq(0),
                fault.eq(0),
                tokens.eq(0),
                cycles.eq(0),
            ]
        status_bits = {
            "busy": core.busy,
            "done": done,
            "fault": fault.cause != 0,
            "stopped": stopped,
            "draining": core.draining,
            "refused": refused,
        }
        self._connect_status(m, registers, status_bits, fault, tokens)
        clear = launch | (reset & ~core.busy) | self.rst
        self._interrupt(m, registers, core.done, clear, status_bits)
        m.d.comb += [
            registers.cycles.eq(cycles),
            core.counter_index.eq(registers.counter_index),
            registers.counter_value.eq(core.counter_value),
            registers.counters_ready.eq(core.counters_ready),
        ]
        return m

    def _hold_program(self, m: Module, registers: RegisterFile, core: Core, launch: Signal) -> None:
        """Copy the registers that describe the program at its launch, so that writes during a run
        are for the next one.
        """

        def held(name: str, value: Value) -> Signal:
            copy = Signal(len(value), name=f"held_{name}")
            with m.If(launch):
                m.d.sync += copy.eq(value)
            return copy

        def address(name: str) -> Value:
            return within_dram(self._config, getattr(registers, name))

        m.d.comb += [
            core.insn_addr.eq(held("insn_addr", address("insn_addr"))),
            core.insn_count.eq(held("insn_count", registers.insn_count)),
        ]
        for name in (memory.name.lower() for memory in isa.LIMITED):
            base, limit = f"{name}_base", f"{name}_limit"
            m.d.comb += [
                core.bases[name].eq(held(base, address(base))),
                core.limits[name].eq(held(limit, getattr(registers, limit))),
            ]

    def _interrupt(
        self,
        m: Module,
        registers: RegisterFile,
        ends: Signal,
        clear: Value,
        status_bits: dict[str, Any],
    ) -> None:
        """Drive INTERRUPT_PENDING and the interrupt line from flip-flops. The line rises with
        STATUS.done; INTERRUPT_PENDING.fault, which depends on many gates, follows a cycle later.
        """
        bits = REGISTERS["INTERRUPT_PENDING"].bits
        ended, pending, next_pending = Signal(), Signal(len(bits)), Signal(len(bits))
        failed = ended & (status_bits["fault"] | status_bits["stopped"])
        kept = pending & ~registers.interrupt_pending_clear[: len(bits)]
        m.d.comb += [
            next_pending.eq(Mux(clear, 0, Cat(ends, failed) | kept)),
            registers.interrupt_pending.eq(pending),
        ]
        m.d.sync += [
            ended.eq(ends),
            pending.eq(next_pending),
            self.irq.eq((next_pending & registers.interrupt_enable[: len(bits)]).any()),
        ]

    def _connect_status(
        self,
        m: Module,
        registers: RegisterFile,
        status_bits: dict[str, Any],
        fault: Any,
        tokens: Any,
    ) -> None:
        """Connect the state of the run to the registers."""
        fault_bits, status = REGISTERS["FAULT"], REGISTERS["STATUS"]
        for part, value in status_bits.items():
            m.d.comb += registers.status[status.part(part).offset].eq(value)
        m.d.comb += [
            registers.fault.eq(
                (fault.cause << fault_bits.part("cause").offset)
                | (fault.module << fault_bits.part("module").offset)
            ),
            registers.fault_insn.eq(fault.index),
        ]
        for name, _ in tokens.shape():
            m.d.comb += getattr(registers, f"tokens_{name}").eq(tokens[name])

    def _connect_memory(self, m: Module, core: Core) -> None:
        bus, read, write = self.m_axi, core.read, core.write
        for channel, request in (("ar", read.request), ("aw", write.request)):
            connect_requests(m, bus, channel, request, request.payload, self._attributes, id=0)
        last = read.beat.payload.last.eq(bus.rlast)
        connect_transfers(m, bus, read, write, [last], write.response.payload.error)
