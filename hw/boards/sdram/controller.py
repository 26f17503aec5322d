"""Translates memory accesses to SDRAM commands: `SdramController`."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .chip import ALL_BANKS, FIRST_REFRESHES, WORD_BITS, WORD_BYTES, SdramChip, SdramCommand
from .pins import SdramSignature

# Burst lengths that chips support, in words.
_BURSTS = (1, 2, 4, 8)
# Cycles from a command to the pins: one register here and one in the pin.
_OUT_CYCLES = 2


class Access(data.StructLayout):
    """A beat to read or write: its index in the memory, and the written bytes of ``data``."""

    def __init__(self, chip: SdramChip, beat_bits: int) -> None:
        beats = chip.bytes // (beat_bits // 8)
        super().__init__(
            {
                "beat": (beats - 1).bit_length(),
                "write": 1,
                "data": beat_bits,
                "strobe": beat_bits // 8,
            }
        )


class SdramController(wiring.Component):
    """Turns each access into one burst, in order, and refreshes the chip.

    A row stays open in each bank until another one is needed or the chip is refreshed. The next
    access opens its row while the words of its predecessor are transferred. Raises `ValueError` if
    the chip has no burst of a beat's length.

    Timing: accesses to open rows are accepted every ``beat_bits / 16`` cycles; a write after a read
    additionally waits for the read to finish. Read data arrive 4 cycles + the chip's latency + a
    burst after the access is accepted: at 64 bits::

        access    a   .   .   .   b
        command       a   .   .   .   b
        words                     a0  a1  a2  a3  b0
        read                                      a

    Parameters
    ----------
    chip : the memory
    clock_hz : of the domain ``sync``
    beat_bits : of an access, a multiple of 16

    Ports
    -----
    rst : holds the controller in reset before the chip's power-up
    i : the accesses
    read : read data, in the order of the accesses
    pins : the chip
    """

    def __init__(self, chip: SdramChip, clock_hz: int, beat_bits: int) -> None:
        self._chip = chip
        self._timing = chip.timing(clock_hz)
        self._words = beat_bits // WORD_BITS
        if self._words not in _BURSTS:
            raise ValueError(
                f"a bus of {beat_bits} bits: an SDRAM of {WORD_BITS} bits has bursts of "
                f"{', '.join(str(WORD_BITS * words) for words in _BURSTS)} bits"
            )
        super().__init__(
            {
                "rst": In(1),
                "i": In(stream.Signature(Access(chip, beat_bits))),
                "read": Out(stream.Signature(beat_bits, always_ready=True)),
                "pins": Out(SdramSignature(chip)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        chip, timing = self._chip, self._timing
        # The command issued in this cycle.
        self._command, self._bank = Signal(SdramCommand), Signal(chip.bank_bits)
        self._address = Signal(chip.row_bits)
        m.d.sync += [
            self.pins.command.eq(self._command),
            self.pins.ba.eq(self._bank),
            self.pins.a.eq(self._address),
        ]
        # Cycles until a command may follow: any command, a READ or WRITE, a WRITE, or a PRECHARGE.
        # All banks share the counter of PRECHARGE.
        after_all = max(timing.power_up, timing.rfc)
        self._any = self._countdown(m, "any_wait", after_all, timing.power_up)
        self._column = self._countdown(m, "column_wait", self._words)
        self._write = self._countdown(m, "write_wait", timing.cas + self._words)
        self._precharge = self._countdown(m, "precharge_wait", self._words + timing.ras + timing.wr)
        with m.If(self.rst):
            m.d.sync += self._any.eq(timing.power_up)
        self._is_open = Signal(1 << chip.bank_bits)
        self._open_rows = Array(
            Signal(chip.row_bits, name=f"row_of_{bank}") for bank in range(1 << chip.bank_bits)
        )
        self._column_command = Signal()
        due = self._count_refreshes(m)
        with m.If((self._any == 0) & ~self.rst):
            self._issue(m, due)
        self._pass_words(m)
        return m

    def _countdown(self, m: Module, name: str, most: int, init: int = 0) -> Signal:
        """A counter that decrements to 0, unless it is set in the same cycle."""
        left = Signal(range(most + 1), name=name, init=init)
        m.d.sync += left.eq(Mux(left == 0, 0, left - 1))
        return left

    def _count_refreshes(self, m: Module) -> Signal:
        """Whether a refresh is due."""
        due, left = Signal(), Signal(range(self._timing.refresh))
        m.d.sync += left.eq(Mux(left == 0, self._timing.refresh - 1, left - 1))
        with m.If(self._command == SdramCommand.REFRESH):
            m.d.sync += due.eq(0)
        with m.Elif(left == 0):
            m.d.sync += due.eq(1)
        return due

    def _issue(self, m: Module, due: Signal) -> None:
        """Choose the command of a cycle in which one may be issued."""
        timing = self._timing
        first = Signal(range(FIRST_REFRESHES + 1), init=FIRST_REFRESHES)
        with m.FSM():
            with m.State("close"):
                with m.If(self._precharge == 0):
                    self._give(m, SdramCommand.PRECHARGE, timing.rp, address=1 << ALL_BANKS)
                    m.d.sync += self._is_open.eq(0)
                    m.next = "refresh"
            with m.State("refresh"):
                self._give(m, SdramCommand.REFRESH, timing.rfc)
                m.next = "ready"
                with m.If(first != 0):
                    m.d.sync += first.eq(first - 1)
                    m.next = "mode"
                    with m.If(first != 1):
                        m.next = "refresh"
            with m.State("mode"):
                mode = timing.cas << 4 | _BURSTS.index(self._words)
                self._give(m, SdramCommand.MODE, timing.mrd, address=mode)
                m.next = "ready"
            with m.State("ready"):
                with m.If(due):
                    m.next = "close"
                with m.Elif(self.i.valid):
                    self._serve(m)

    def _serve(self, m: Module) -> None:
        """Issue the next command for the waiting access."""
        chip, timing, access = self._chip, self._timing, self.i.payload
        burst_bits = (self._words - 1).bit_length()
        address = Cat(Const(0, burst_bits), access.beat)
        column = address[: chip.column_bits]
        row = address[chip.column_bits + chip.bank_bits :]
        bank = address[chip.column_bits :][: chip.bank_bits]
        m.d.comb += self._bank.eq(bank)
        with m.If(~self._is_open.bit_select(bank, 1)):
            self._give(m, SdramCommand.ACTIVATE, timing.rcd, address=row)
            m.d.sync += [
                self._is_open.bit_select(bank, 1).eq(1),
                self._open_rows[bank].eq(row),
            ]
            self._keep_open(m, timing.ras)
        with m.Elif(self._open_rows[bank] != row):
            with m.If(self._precharge == 0):
                self._give(m, SdramCommand.PRECHARGE, timing.rp)
                m.d.sync += self._is_open.bit_select(bank, 1).eq(0)
        with m.Elif((self._column == 0) & ((self._write == 0) | ~access.write)):
            m.d.comb += self._column_command.eq(1)
            m.d.sync += self._column.eq(self._words - 1)
            with m.If(access.write):
                self._give(m, SdramCommand.WRITE, 1, address=column)
                self._keep_open(m, self._words - 1 + timing.wr)
            with m.Else():
                self._give(m, SdramCommand.READ, 1, address=column)
                m.d.sync += self._write.eq(timing.cas + self._words - 1)
                self._keep_open(m, self._words)

    def _give(self, m: Module, command: Any, cycles: int, address: Any = 0) -> None:
        """Issue ``command``; the next one may follow after ``cycles``."""
        m.d.comb += [self._command.eq(command), self._address.eq(address)]
        m.d.sync += self._any.eq(cycles - 1)

    def _keep_open(self, m: Module, cycles: int) -> None:
        """Delay a PRECHARGE by at least ``cycles``."""
        with m.If(self._precharge < cycles):
            m.d.sync += self._precharge.eq(cycles - 1)

    def _pass_words(self, m: Module) -> None:
        """Transfer the words of bursts to and from the pins."""
        access, pins = self.i.payload, self.pins
        left = Signal(range(self._words + 1))
        words, masks = Signal(WORD_BITS * self._words), Signal(WORD_BYTES * self._words)
        m.d.comb += [
            self.i.ready.eq(self._column_command),
            pins.dq_oe.eq(left != 0),
            pins.dq_o.eq(words),
            pins.dqm.eq(masks),
        ]
        # Masks are 0 while words are read.
        m.d.sync += [words.eq(words >> WORD_BITS), masks.eq(masks >> WORD_BYTES)]
        with m.If(left != 0):
            m.d.sync += left.eq(left - 1)
        with m.If(self._column_command & access.write):
            m.d.sync += [left.eq(self._words), words.eq(access.data), masks.eq(~access.strobe)]
        reads = Signal(_OUT_CYCLES + self._timing.cas + self._words)
        m.d.sync += [
            reads.eq(Cat(self._column_command & ~access.write, reads)),
            self.read.payload.eq(Cat(self.read.payload, pins.dq_i)[WORD_BITS:]),
        ]
        m.d.comb += self.read.valid.eq(reads[-1])
