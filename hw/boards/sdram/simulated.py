"""A simulated SDRAM chip that detects timing violations."""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from .chip import ALL_BANKS, FIRST_REFRESHES, WORD_BITS, WORD_BYTES, SdramChip, SdramCommand
from .pins import SdramSignature

_CAS = 2
# Counters of cycles since an event saturate here.
_LONG = 255
# Maximum overdue refreshes.
_LATE_REFRESHES = 8


class SimulatedSdram(wiring.Component):
    """The chip and the registers of its pins. After the first violation, reads return the
    complement of the correct data.

    Timing: a command reaches the pins, and takes effect, in the cycle after it is issued. Words of
    a READ appear on ``dq_i`` from the second cycle after that on; words of a WRITE are sampled from
    the WRITE's own cycle on, one per cycle.

    Ports
    -----
    bus : driven by the controller
    violations : number of cycles with a violation, modulo 2^16: a command too early or to a bank in
        the wrong state, both ends driving the data, or overdue refreshes
    """

    def __init__(self, chip: SdramChip, clock_hz: int) -> None:
        if chip.cas != _CAS:
            raise ValueError(f"a latency of {chip.cas} cycles: only {_CAS} are simulated")
        self._chip = chip
        self._timing = chip.timing(clock_hz)
        super().__init__({"bus": In(SdramSignature(chip)), "violations": Out(16)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        chip, bus = self._chip, self.bus
        self._command, self._bank = Signal(SdramCommand), Signal(chip.bank_bits)
        self._address, self._dqm = Signal(chip.row_bits), Signal(WORD_BYTES)
        self._dq, self._driven = Signal(WORD_BITS), Signal()
        m.d.sync += [
            self._command.eq(bus.command),
            self._bank.eq(bus.ba),
            self._address.eq(bus.a),
            self._dqm.eq(bus.dqm),
            self._dq.eq(bus.dq_o),
            self._driven.eq(bus.dq_oe),
        ]
        is_read, is_write = (
            self._command == command for command in (SdramCommand.READ, SdramCommand.WRITE)
        )
        # The burst in progress: words left, whether it writes, and its bank.
        self._left, self._writes = Signal(4), Signal()
        self._burst_bank, self._burst = Signal(chip.bank_bits), Signal(4, init=1)
        self._starts, self._word_written = Signal(), Signal()
        m.d.comb += [
            self._starts.eq(is_read | is_write),
            self._word_written.eq(is_write | (self._writes & (self._left != 0))),
        ]
        with m.If(self._starts):
            m.d.sync += [
                self._left.eq(self._burst - 1),
                self._writes.eq(is_write),
                self._burst_bank.eq(self._bank),
            ]
        with m.Elif(self._left != 0):
            m.d.sync += self._left.eq(self._left - 1)

        wrong = Cat(
            *self._follow_banks(m), *self._follow_refreshes(m), *self._pass_words(m, is_read)
        )
        with m.If(wrong.any()):
            m.d.sync += self.violations.eq(self.violations + 1)
        return m

    def _since(self, m: Module, event: Any, name: str) -> Signal:
        """Number of cycles since ``event``, saturating at `_LONG`; 1 in the cycle after it."""
        cycles = Signal(8, name=name, init=_LONG)
        with m.If(event):
            m.d.sync += cycles.eq(1)
        with m.Elif(cycles != _LONG):
            m.d.sync += cycles.eq(cycles + 1)
        return cycles

    def _follow_banks(self, m: Module) -> list[Value]:
        """Track open rows and the times of bank commands; returns the violation conditions."""
        chip, timing, command = self._chip, self._timing, self._command
        banks = range(1 << chip.bank_bits)
        self._rows = Array(Signal(chip.row_bits, name=f"row_of_{bank}") for bank in banks)
        activates = command == SdramCommand.ACTIVATE
        precharges = command == SdramCommand.PRECHARGE
        wrong: list[Value] = []
        opens: list[Signal] = []
        for bank in banks:
            is_open = Signal(name=f"open_{bank}")
            opens.append(is_open)
            mine = self._bank == bank
            opened = activates & mine
            closed = precharges & (mine | self._address[ALL_BANKS])
            of_burst = self._burst_bank == bank
            written = self._word_written & Mux(self._starts, mine, of_burst)
            since_open = self._since(m, opened, f"since_open_{bank}")
            since_closed = self._since(m, closed, f"since_closed_{bank}")
            since_written = self._since(m, written, f"since_written_{bank}")
            with m.If(opened):
                m.d.sync += [is_open.eq(1), self._rows[bank].eq(self._address)]
            with m.Elif(closed):
                m.d.sync += is_open.eq(0)
            wrong += [
                opened & (is_open | (since_closed < timing.rp)),
                opened & (since_open < timing.ras + timing.rp),
                self._starts & mine & (~is_open | (since_open < timing.rcd)),
                closed & is_open & ((since_open < timing.ras) | (since_written < timing.wr)),
                closed & is_open & (self._left != 0) & of_burst,
                (command == SdramCommand.REFRESH) & (since_closed < timing.rp),
            ]
        rests = (command == SdramCommand.REFRESH) | (command == SdramCommand.MODE)
        return [*wrong, rests & Cat(opens).any(), rests & (self._left != 0)]

    def _follow_refreshes(self, m: Module) -> list[Value]:
        """Track power-up, mode and refreshes; returns the violation conditions."""
        timing, command = self._timing, self._command
        refreshes, sets_mode = command == SdramCommand.REFRESH, command == SdramCommand.MODE
        since_refresh = self._since(m, refreshes, "since_refresh")
        since_mode = self._since(m, sets_mode, "since_mode")
        powering_up = Signal(range(timing.power_up + 1), init=timing.power_up)
        first = Signal(range(FIRST_REFRESHES + 1), init=FIRST_REFRESHES)
        is_ready, is_late = Signal(), Signal()
        # Cycle within the refresh interval, and number of refreshes due.
        cycle, due = Signal(range(timing.refresh)), Signal(range(_LATE_REFRESHES + 2))
        with m.If(powering_up != 0):
            m.d.sync += powering_up.eq(powering_up - 1)
        with m.If(refreshes & (first != 0)):
            m.d.sync += first.eq(first - 1)
        with m.If(sets_mode):
            m.d.sync += [is_ready.eq(1), self._burst.eq(1 << self._address[:2])]
        ends = cycle == timing.refresh - 1
        m.d.comb += is_late.eq(due > _LATE_REFRESHES)
        with m.If(is_ready):
            m.d.sync += cycle.eq(Mux(ends, 0, cycle + 1))
            with m.If(ends & ~refreshes & ~is_late):
                m.d.sync += due.eq(due + 1)
            with m.Elif(refreshes & ~ends & (due != 0)):
                m.d.sync += due.eq(due - 1)
        uses = self._starts | (command == SdramCommand.ACTIVATE)
        return [
            (command != SdramCommand.NOP)
            & ((powering_up != 0) | (since_refresh < timing.rfc) | (since_mode < timing.mrd)),
            uses & ~is_ready,
            # Only sequential bursts of up to 8 words, with the simulated latency, are legal.
            sets_mode & ((first != 0) | (self._address[2:] != _CAS << 2)),
            is_late,
        ]

    def _pass_words(self, m: Module, is_read: Any) -> list[Value]:
        """Transfer the words of bursts; returns the violation conditions."""
        chip = self._chip
        place = Signal(chip.column_bits + chip.bank_bits + chip.row_bits)
        following = Signal.like(place)
        m.submodules.words = words = Memory(shape=WORD_BITS, depth=1 << len(place), init=[])
        read, write = words.read_port(), words.write_port(granularity=8)
        column = self._address[: chip.column_bits]
        start = Cat(column, self._bank, self._rows[self._bank])
        # A word read is on the pins in the next cycle, and slightly longer.
        shows, showed = Signal(), Signal()
        m.d.comb += [
            place.eq(Mux(self._starts, start, following)),
            read.addr.eq(place),
            write.addr.eq(place),
            write.data.eq(self._dq),
            write.en.eq(Mux(self._word_written, ~self._dqm, 0)),
        ]
        m.d.sync += [
            following.eq(place + 1),
            shows.eq(is_read | (~self._writes & (self._left != 0))),
            showed.eq(shows),
            self.bus.dq_i.eq(Mux(self.violations != 0, ~read.data, read.data)),
        ]
        return [
            self._starts & (self._left != 0),
            self._starts & self._address[ALL_BANKS],
            self._starts & ((column & (self._burst - 1)) != 0),
            self._word_written & ~self._driven,
            self._driven & (shows | showed),
        ]
