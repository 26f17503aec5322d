"""The register file: an AXI4-Lite slave generated from `amaranth_vta.hw.registers`."""

from dataclasses import fields
from typing import Any, NamedTuple

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.microarchitecture import Microarchitecture, Storage
from amaranth_vta.hw.registers import (
    ADDRESS_WIDTH,
    COUNTER_WIDTH,
    COUNTERS,
    COUNTERS_END,
    COUNTERS_OFFSET,
    IDENTITY,
    REGISTERS,
    VERSION,
    WORD_BYTES,
    Access,
    Register,
)

from .axi import AXI4LiteSignature

# Writable words by number: the register, and the word within it.
_WORDS = {
    register.offset // WORD_BYTES + part: (register, part)
    for register in REGISTERS.values()
    if register.access is Access.READ_WRITE
    for part in range(register.width // (8 * WORD_BYTES))
}
# Registers whose value is an input of the register file.
_INPUTS = (Access.READ, Access.CLEAR)
# The lowest bits of the number distinguish these words.
_PLACE_BITS = (max(_WORDS) ^ min(_WORDS)).bit_length()


class RegisterFile(wiring.Component):
    """Registers that software reads and writes.

    Each writable register has an output with its lower-case name, which holds its value or, for a
    command, pulses for one cycle; each read-only register has an input. A register whose bits are
    cleared by writing 1 has an input, and an output ``NAME_clear`` that pulses. Configuration and
    identification are constants.

    Timing: a write takes effect in the cycle after address and data have both been accepted. A read
    samples its inputs in the cycle in which the address is accepted, or in the next one if a write
    occurs in that cycle. A read of a counter waits until ``counters_ready`` is high. Every address
    is answered: unmapped ones read as zero and ignore writes. One read is answered before the next
    is accepted. Every path from an input of ``bus`` to an output is registered.

    A read of the low word of CYCLES or of a counter latches the high word. The next read of the
    high word returns the latched bits, unless CONTROL was written in between. A high word that is
    not latched is read directly.

    Ports
    -----
    bus : AXI4-Lite slave, 32 bits
    counter_index : selects the counter read; ``counter_value`` is its value in the same cycle
    counters_ready : a read of a counter waits for it
    """

    def __init__(self, config: Config, choices: Microarchitecture | None = None) -> None:
        constants = config.to_dict()
        # Unmapped words read as 0.
        self._left_out = {item.name.upper() for item in fields(config)} - constants.keys()
        choices = choices or Microarchitecture.of(config)
        in_block_ram = choices.register_readback is Storage.BLOCK_RAM
        self._ram_style = "block" if in_block_ram else "distributed"
        self._constants = {**constants, "IDENTITY": IDENTITY, "VERSION": VERSION}
        super().__init__(
            {
                "bus": In(AXI4LiteSignature(8 * WORD_BYTES, ADDRESS_WIDTH)),
                "counter_index": Out(range(len(COUNTERS))),
                "counter_value": In(COUNTER_WIDTH),
                "counters_ready": In(1),
                **{
                    register.name.lower(): In(register.width)
                    if register.access in _INPUTS
                    else Out(register.width, init=register.init)
                    for register in REGISTERS.values()
                    if register.name not in self._constants.keys() | self._left_out
                    and register.access is not Access.COUNTER
                },
                **{
                    f"{register.name.lower()}_clear": Out(register.width)
                    for register in REGISTERS.values()
                    if register.access is Access.CLEAR
                },
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bus = self.bus
        word = slice((WORD_BYTES - 1).bit_length(), ADDRESS_WIDTH)

        # Writes. Address and data arrive in any order, and wait until the response is accepted.
        address, address_held = Signal(ADDRESS_WIDTH), Signal()
        data, strobe, data_held = Signal(8 * WORD_BYTES), Signal(WORD_BYTES), Signal()
        write = Signal()
        m.d.comb += [
            bus.awready.eq(~address_held),
            bus.wready.eq(~data_held),
            write.eq(address_held & data_held & (~bus.bvalid | bus.bready)),
            bus.bresp.eq(0),
        ]
        with m.If(bus.awvalid & bus.awready):
            m.d.sync += [address.eq(bus.awaddr), address_held.eq(1)]
        with m.If(bus.wvalid & bus.wready):
            m.d.sync += [data.eq(bus.wdata), strobe.eq(bus.wstrb), data_held.eq(1)]
        with m.If(bus.bready):
            m.d.sync += bus.bvalid.eq(0)
        with m.If(write):
            m.d.sync += [address_held.eq(0), data_held.eq(0), bus.bvalid.eq(1)]

        # Reads. A counter read may have to wait, and every read waits for a write, since writable
        # words are read from a RAM. ``arready`` must not depend on the offered address: the address
        # is accepted and held.
        read, waiting, of_counter = Signal(), Signal(), Signal()
        read_address, read_held = Signal(ADDRESS_WIDTH), Signal(ADDRESS_WIDTH)
        m.d.comb += [
            bus.arready.eq(~bus.rvalid & ~waiting),
            read_address.eq(Mux(waiting, read_held, bus.araddr)),
            of_counter.eq((read_address >= COUNTERS_OFFSET) & (read_address < COUNTERS_END)),
            self.counter_index.eq((read_address - COUNTERS_OFFSET) >> word.start + 1),
            read.eq(
                (bus.arvalid & bus.arready | waiting) & (self.counters_ready | ~of_counter) & ~write
            ),
            bus.rresp.eq(0),
        ]
        with m.If(bus.arvalid & bus.arready):
            m.d.sync += [read_held.eq(bus.araddr), waiting.eq(1)]
        with m.If(bus.rready):
            m.d.sync += bus.rvalid.eq(0)
        with m.If(read):
            m.d.sync += [bus.rvalid.eq(1), waiting.eq(0)]
        copies = self._copy(m, write, address[word], data, strobe)
        read_data = self._answer(m, read, read_address[word], copies)
        if self._constants["COUNTERS"]:
            with m.If(of_counter):
                m.d.comb += read_data.eq(
                    self.counter_value.word_select(read_address[word.start], 8 * WORD_BYTES)
                )

        self._latch(m, read, read_address[word], of_counter, read_data)

        for register in REGISTERS.values():
            if register.access in (Access.READ, Access.COUNTER):
                continue
            clears = register.access is Access.CLEAR
            target = getattr(self, register.name.lower() + ("_clear" if clears else ""))
            if clears or register.access is Access.COMMAND:
                m.d.sync += target.eq(0)
            for number in range(register.width // (8 * WORD_BYTES)):
                part = target.word_select(number, 8 * WORD_BYTES)
                with m.If(write & (address[word] == register.offset // WORD_BYTES + number)):
                    # Each byte has an enable: no LUT selects between its new and old value.
                    for byte in range(WORD_BYTES):
                        with m.If(strobe[byte]):
                            m.d.sync += part.word_select(byte, 8).eq(data.word_select(byte, 8))
        return m

    def _latch(
        self, m: Module, read: Signal, number: Signal, of_counter: Signal, read_data: Signal
    ) -> None:
        """Latch the high word of CYCLES or a counter when the low word, whose ``number`` is even,
        is read, and answer the next read of the high word with it.
        """
        counts, is_high = Signal(), number[0]
        high, latched, latched_number = Signal(8 * WORD_BYTES), Signal(), Signal.like(number)
        current: Value = self.cycles[8 * WORD_BYTES :]
        if self._constants["COUNTERS"]:
            current = Mux(of_counter, self.counter_value[8 * WORD_BYTES :], current)
        place = REGISTERS["CYCLES"].offset // WORD_BYTES
        m.d.comb += counts.eq(of_counter | (number >> 1 == place >> 1))
        with m.If(read & counts & ~is_high):
            m.d.sync += [high.eq(current), latched.eq(1), latched_number.eq(number)]
        with m.If(is_high & latched & (latched_number >> 1 == number >> 1)):
            m.d.comb += read_data.eq(high)
            with m.If(read):
                m.d.sync += latched.eq(0)
        with m.If(self.control.any()):
            m.d.sync += latched.eq(0)

    def _copy(
        self, m: Module, write: Signal, number: Value, data: Signal, strobe: Signal
    ) -> "_Copies":
        """A RAM copy of all writable words for reads, smaller than a wide multiplexer. RAM has no
        reset, so the first write after a reset writes all bytes of a word.
        """
        m.submodules.copies = memory = Memory(
            shape=ArrayLayout(8, WORD_BYTES),
            depth=1 << _PLACE_BITS,
            init=[],
            attrs={"ram_style": self._ram_style, "no_rw_check": 1},
        )
        port = memory.write_port(granularity=1)
        init, keeps, known = Signal(8 * WORD_BYTES), Signal(), Signal()
        written = {word: Signal(name=f"written_{word:x}") for word in _WORDS}
        with m.Switch(number):
            for word, (register, part) in _WORDS.items():
                with m.Case(word):
                    m.d.comb += [
                        keeps.eq(write),
                        known.eq(written[word]),
                        init.eq(_init(register, part)),
                    ]
                    with m.If(write):
                        m.d.sync += written[word].eq(1)
        m.d.comb += port.addr.eq(number)
        for byte in range(WORD_BYTES):
            m.d.comb += [
                port.en[byte].eq(keeps & (strobe[byte] | ~known)),
                port.data[byte].eq(
                    Mux(strobe[byte], data.word_select(byte, 8), init.word_select(byte, 8))
                ),
            ]
        return _Copies(memory.read_port(), written)

    def _answer(self, m: Module, read: Signal, number: Value, copies: "_Copies") -> Signal:
        """Answer a ``read`` of word ``number`` in the next cycle; returns the answer, except for
        words that are read from RAM.
        """
        read_data, of_copy = Signal(8 * WORD_BYTES), Signal()
        answer, answer_of_copy = Signal(8 * WORD_BYTES), Signal()
        with m.If(read):
            m.d.sync += [answer.eq(read_data), answer_of_copy.eq(of_copy)]
        m.d.comb += [
            copies.reader.en.eq(read),
            copies.reader.addr.eq(number),
            self.bus.rdata.eq(Mux(answer_of_copy, Value.cast(copies.reader.data), answer)),
        ]
        with m.Switch(number):
            for word, (register, part) in _WORDS.items():
                with m.Case(word):
                    m.d.comb += [
                        of_copy.eq(copies.written[word]),
                        read_data.eq(_init(register, part)),
                    ]
            for register in REGISTERS.values():
                if register.access not in _INPUTS or register.name in self._left_out:
                    continue
                constant = self._constants.get(register.name)
                value = (
                    getattr(self, register.name.lower())
                    if constant is None
                    else Const(constant, register.width)
                )
                for part in range(register.width // (8 * WORD_BYTES)):
                    with m.Case(register.offset // WORD_BYTES + part):
                        m.d.comb += read_data.eq(value.word_select(part, 8 * WORD_BYTES))
        return read_data


class _Copies(NamedTuple):
    """``written``: per word, whether it was written to the RAM that ``reader`` reads."""

    reader: Any
    written: dict[int, Signal]


def _init(register: Register, part: int) -> int:
    """Power-up value of a word."""
    return register.init >> 8 * WORD_BYTES * part & (1 << 8 * WORD_BYTES) - 1
