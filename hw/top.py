"""The machine with its buses: an AXI4 master to memory, and registers on AXI4-Lite."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from .axi import AXI4LiteSignature, AXI4Signature
from .config import Config
from .core import Core
from .csr import RegisterFile
from .registers import ADDRESS_WIDTH, REGISTERS, WORD_BYTES

# Bits of a base address that are used, so that no sum of a base and an offset can wrap.
_BASE_WIDTH = 47
# What AXI calls a burst of consecutive addresses, and memory that may be merged and buffered.
_INCREMENTING = 0b01
_BUFFERABLE = 0b0011


class Top(wiring.Component):
    """The whole machine.

    A driver writes the program's address and length and the base addresses, writes
    CONTROL.launch, and waits for the interrupt line or for STATUS.done.

    Timing: the run starts in the cycle after the launch shows at the register file; CYCLES
    counts from then to the end of the run.

    Ports
    -----
    m_axi : AXI4 master; one ID, bursts of the full width of the bus
    s_axil : AXI4-Lite slave with the registers of `amaranth_vta.hw.registers`
    irq : high while the run is done and the interrupt enabled
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__(
            {
                "m_axi": Out(AXI4Signature(8 * config.bus_bytes)),
                "s_axil": In(AXI4LiteSignature(8 * WORD_BYTES, ADDRESS_WIDTH)),
                "irq": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.core = core = Core(self._config)
        m.submodules.registers = registers = RegisterFile(self._config)
        connect(m, flipped(self.s_axil), registers.bus)
        self._connect_memory(m, core)

        control, status = REGISTERS["CONTROL"], REGISTERS["STATUS"]
        launch = Signal()
        m.d.comb += [
            launch.eq(registers.control[control.part("launch").offset] & ~core.busy),
            core.launch.eq(launch),
            core.insn_addr.eq(registers.insn_addr),
            core.insn_count.eq(registers.insn_count),
        ]
        for name in ("uop", "inp", "wgt", "acc", "out"):
            base = getattr(registers, f"{name}_base")
            m.d.comb += getattr(core.bases, name).eq(base[:_BASE_WIDTH])

        done, fault, tokens = Signal(), Signal.like(core.fault), Signal.like(core.tokens)
        cycles = Signal(64)
        with m.If(core.busy):
            m.d.sync += cycles.eq(cycles + 1)
        with m.If(launch):
            m.d.sync += [done.eq(0), cycles.eq(0), fault.eq(0)]
        with m.If(core.done):
            m.d.sync += [done.eq(1), fault.eq(core.fault), tokens.eq(core.tokens)]

        fault_bits = REGISTERS["FAULT"]
        m.d.comb += [
            registers.status[status.part("busy").offset].eq(core.busy),
            registers.status[status.part("done").offset].eq(done),
            registers.status[status.part("fault").offset].eq(fault.cause != 0),
            registers.fault.eq(
                (fault.cause << fault_bits.part("cause").offset)
                | (fault.module << fault_bits.part("module").offset)
            ),
            registers.fault_insn.eq(fault.index),
            registers.cycles.eq(cycles),
            self.irq.eq(
                done & registers.interrupt_enable[REGISTERS["INTERRUPT_ENABLE"].part("done").offset]
            ),
        ]
        for name, _ in tokens.shape():
            m.d.comb += getattr(registers, f"tokens_{name}").eq(tokens[name])
        return m

    def _connect_memory(self, m: Module, core: Core) -> None:
        bus, read, write = self.m_axi, core.read, core.write
        size = (self._config.bus_bytes - 1).bit_length()
        for channel, request in (("ar", read.request), ("aw", write.request)):
            for wire, value in (
                ("id", 0),
                ("addr", request.payload.address),
                ("len", request.payload.length),
                ("size", size),
                ("burst", _INCREMENTING),
                ("lock", 0),
                ("cache", _BUFFERABLE),
                ("prot", 0),
                ("qos", 0),
                ("valid", request.valid),
            ):
                m.d.comb += getattr(bus, f"{channel}{wire}").eq(value)
            m.d.comb += request.ready.eq(getattr(bus, f"{channel}ready"))
        m.d.comb += [
            read.beat.payload.data.eq(bus.rdata),
            # SLVERR and DECERR are the two responses with the upper bit.
            read.beat.payload.error.eq(bus.rresp[1]),
            read.beat.payload.last.eq(bus.rlast),
            read.beat.valid.eq(bus.rvalid),
            bus.rready.eq(read.beat.ready),
            bus.wdata.eq(write.beat.payload.data),
            bus.wstrb.eq(write.beat.payload.strobe),
            bus.wlast.eq(write.beat.payload.last),
            bus.wvalid.eq(write.beat.valid),
            write.beat.ready.eq(bus.wready),
            write.response.payload.error.eq(bus.bresp[1]),
            write.response.valid.eq(bus.bvalid),
            bus.bready.eq(write.response.ready),
        ]
