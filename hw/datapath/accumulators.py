"""The accumulator scratchpad, in two banks where GEMM and ALU overlap."""

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.scratchpad import ReadPortSignature, Scratchpad, geometry
from amaranth_vta.hw.timing import copied_sources

from .gemm import acc_read_port, acc_write_port

_NEVER = Const(0, 1)


class Accumulators(wiring.Component):
    """Accumulators, read and written by GEMM and the ALU each cycle, and read by store.

    With the extension OVERLAP the upper half is a separate bank, and the two units may use
    different banks in the same cycle. `Compute` arbitrates: the data of ``alu_dst`` are not used if
    ``gemm_read`` reads the same bank, and at most one of the three write ports may use a bank per
    cycle. Store uses none of these ports: it reads a copy of the low bits, written together with
    the accumulators.

    Timing: data are valid one cycle after an enabled read, two for GEMM and ``alu_ahead``. A unit's
    write is forwarded to its own read of the same element in the same cycle, and GEMM's writes also
    to its reads of the previous cycle; nothing is forwarded to ``alu_ahead``. A unit must not read
    an element in the cycle in which another unit writes it.

    Ports
    -----
    gemm_read, alu_dst, alu_src : single-element read ports; with OVERLAP ``alu_src`` reads only the
        last accumulators, which have a copy (`copied_sources`)
    gemm_clear, alu_src_clear : with ``gemm_read`` or ``alu_src``: the data are 0
    alu_ahead, alu_ahead_keeps : (with OVERLAP) a single-element read port for a bank that neither
        ``alu_dst`` nor GEMM reads, unless GEMM clears; and per bank whether the data read from it
        are kept for another cycle. The port's data are the OR of all data just read or kept
    gemm_write, alu_write : single-element write ports; without REQUANTIZE the data of the ALU are 0
        while it writes nothing
    load_write : write port of the loader, whose data are 0 while a unit writes
    out_read : read port of store, in elements of OUT
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._shape = shape = geometry(config, isa.Memory.ACC)
        self._out_elements = geometry(config, isa.Memory.OUT).elements
        read, write = acc_read_port(config), acc_write_port(config)
        super().__init__(
            {
                "gemm_read": In(acc_read_port(config, cycles=2)),
                "gemm_clear": In(1),
                "alu_dst": In(read),
                "alu_src": In(read),
                "alu_src_clear": In(1),
                **(
                    {"alu_ahead": In(acc_read_port(config, cycles=2)), "alu_ahead_keeps": In(2)}
                    if config.overlap
                    else {}
                ),
                "gemm_write": In(write),
                "alu_write": In(write),
                "load_write": In(shape.write_port()),
                "out_read": In(
                    ReadPortSignature(config.out.element_bits, shape.depth, self._out_elements)
                ),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        banks = 2 if self._config.overlap else 1
        size = self._shape.depth // banks
        parts = [self._add_bank(m, bank, size) for bank in range(banks)]
        destinations, sources, shadows = zip(*parts, strict=True)
        self._connect_gemm_read(m, destinations)
        _connect_read(m, "alu_dst", self.alu_dst, destinations, self.alu_write)
        _connect_read(
            *(m, "alu_src", self.alu_src, sources[-1:], self.alu_write), clear=self.alu_src_clear
        )
        if self._config.overlap:
            self._connect_ahead(m, destinations)
        for element in range(self._out_elements):
            bank = Signal(name=f"out_bank_{element}")
            with m.If(self.out_read.enable):
                m.d.sync += bank.eq(_bank(self.out_read.index + element, size, banks))
            m.d.comb += self.out_read.data[element].eq(
                Mux(bank, shadows[-1].data[element], shadows[0].data[element])
            )
        return m

    def _connect_ahead(self, m: Module, banks: Sequence[Any]) -> None:
        """Drive ``alu_ahead`` from a register per bank, which is reset when another bank is
        selected.
        """
        port, size = self.alu_ahead, self._shape.depth // len(banks)
        found = []
        for bank, stored in enumerate(banks):
            arrives = Signal(name=f"ahead_arrives_{bank}")
            kept = Signal.like(stored.data[0], name=f"ahead_kept_{bank}", reset_less=True)
            m.d.sync += arrives.eq(self._uses(m, "alu_ahead", bank, size))
            keeps = self.alu_ahead_keeps[bank]
            with m.If(arrives | ~keeps):
                m.d.sync += kept.eq(stored.data[0])
            with m.If(~arrives & ~keeps):
                m.d.sync += kept.eq(0)
            found.append(kept)
        m.d.comb += port.data[0].eq(reduce(or_, found))

    def _connect_gemm_read(self, m: Module, banks: Sequence[Any]) -> None:
        """Drive ``gemm_read`` with the addend of a sum: from a bank, or from GEMM's latest writes.

        Each source has a register that is reset when another source is selected, so they merge
        without a multiplexer in the LUTs of GEMM's adders.
        """
        port, write = self.gemm_read, self.gemm_write
        size = self._shape.depth // len(banks)
        index = Signal.like(port.index, name="gemm_index", reset_less=True)
        cleared, hit, hit_now, had_hit = (
            Signal(name=f"gemm_{name}") for name in ("cleared", "hit", "hit_now", "had_hit")
        )

        def keep(name: str, value: Value, unless: Value) -> Signal:
            """A register that takes ``value``, or 0 if ``unless``."""
            kept = Signal.like(write.data[0], name=f"gemm_{name}", reset_less=True)
            m.d.sync += kept.eq(value)
            with m.If(unless):
                m.d.sync += kept.eq(0)
            return kept

        m.d.comb += [
            hit.eq(write.enable[0] & (write.index == port.index)),
            hit_now.eq(write.enable[0] & (write.index == index)),
        ]
        m.d.sync += [
            index.eq(port.index),
            cleared.eq(self.gemm_clear),
            had_hit.eq(hit),
        ]
        # ``before``: data written in the cycle of the read. ``latest``: data written in the next
        # cycle.
        first = keep("first", write.data[0], ~hit)
        before = keep("before", first, cleared | hit_now)
        latest = keep("latest", write.data[0], cleared | ~hit_now)
        found = [latest, before]
        for bank, stored in enumerate(banks):
            elsewhere = cleared | had_hit | hit_now | (_bank(index, size, len(banks)) != bank)
            found.append(keep(f"kept_{bank}", stored.data[0], elsewhere))
        m.d.comb += port.data[0].eq(reduce(or_, found))

    def _add_bank(self, m: Module, bank: int, size: int) -> "_Bank":
        """Add a bank of ``size`` elements."""
        config, shape = self._config, self._shape
        accumulators = Scratchpad(
            element_bits=shape.element_bits,
            depth=size,
            write_elements=shape.elements,
            lanes=shape.lanes,
            read_elements=(1,) if self._config.overlap else (1, 1),
        )
        shadow = Scratchpad(
            element_bits=config.out.element_bits,
            depth=size,
            write_elements=shape.elements,
            lanes=shape.lanes,
            read_elements=(self._out_elements,),
        )
        m.submodules[f"bank{bank}"] = accumulators
        m.submodules[f"shadow{bank}"] = shadow

        gemm_reads: Value = self._uses(m, "gemm_read", bank, size)
        if self._config.overlap:
            gemm_reads &= ~self.gemm_clear
        destination, source = accumulators.read0, None
        alu_reads = self._uses(m, "alu_dst", bank, size)
        index, enable = self.alu_dst.index, alu_reads
        if self._config.overlap:
            index = Mux(alu_reads, self.alu_dst.index, self.alu_ahead.index)
            enable = Const(1)
        reads = [
            destination.enable.eq(gemm_reads | enable),
            destination.index.eq(_within(Mux(gemm_reads, self.gemm_read.index, index), size)),
        ]
        if not self._config.overlap:
            source = accumulators.read1
            reads += [
                source.enable.eq(self._uses(m, "alu_src", bank, size)),
                source.index.eq(_within(self.alu_src.index, size)),
            ]
        m.d.comb += [
            *reads,
            shadow.read0.enable.eq(self.out_read.enable),
            shadow.read0.index.eq(self.out_read.index - bank * size),
        ]

        self._connect_writes(m, accumulators.write, shadow.write, bank, size)
        if self._config.overlap and bank:
            source = self._copy_last(m, accumulators.write, size)
        return _Bank(destination, source, shadow.read0)

    def _copy_last(self, m: Module, write: Any, size: int) -> Any:
        """Add a copy of the last accumulators of a bank of ``size`` elements that ``write`` writes;
        returns its read port.
        """
        shape, copied = self._shape, copied_sources(self._config)
        m.submodules.copy = copy = Scratchpad(
            element_bits=shape.element_bits,
            depth=copied,
            write_elements=shape.elements,
            lanes=shape.lanes,
        )
        parts = size // copied
        m.d.comb += [
            copy.write.enable.eq(
                Cat(
                    enable & (_bank(write.index + element, copied, parts) == parts - 1)
                    for element, enable in enumerate(write.enable)
                )
            ),
            copy.write.lanes.eq(write.lanes),
            copy.write.index.eq(write.index - (size - copied)),
            copy.write.data.eq(write.data),
            copy.read0.enable.eq(self.alu_src.enable),
            copy.read0.index.eq(_within(self.alu_src.index, copied)),
        ]
        return copy.read0

    def _connect_writes(self, m: Module, write: Any, shadow: Any, bank: int, size: int) -> None:
        """Connect the writes to a bank of ``size`` elements and to its ``shadow`` of low bits."""
        shape, load = self._shape, self.load_write
        banks = shape.depth // size
        gemm_writes = self._uses(m, "gemm_write", bank, size)
        alu_writes = self._uses(m, "alu_write", bank, size)
        m.submodules[f"written{bank}"] = written = _Written(
            shape.element_bits, alu_rests=not self._config.requantize
        )
        m.d.comb += [
            written.gemm_writes.eq(gemm_writes),
            written.alu_writes.eq(alu_writes),
            written.gemm.eq(self.gemm_write.data[0]),
            written.alu.eq(self.alu_write.data[0]),
            written.load.eq(load.data[0]),
        ]
        # Units write one element, the loader up to a beat of elements.
        m.d.comb += write.data[0].eq(written.data)
        for element in range(1, shape.elements):
            m.d.comb += write.data[element].eq(load.data[element])
        with m.If(gemm_writes | alu_writes):
            index = Mux(gemm_writes, self.gemm_write.index, self.alu_write.index)
            m.d.comb += [
                write.enable.eq(1),
                write.lanes.eq(~0),
                write.index.eq(_within(index, size)),
            ]
        with m.Else():
            m.d.comb += [
                write.enable.eq(
                    Cat(
                        load.enable[element] & (_bank(load.index + element, size, banks) == bank)
                        for element in range(shape.elements)
                    )
                ),
                write.lanes.eq(load.lanes),
                write.index.eq(load.index - bank * size),
            ]
        m.d.comb += [
            shadow.enable.eq(write.enable),
            shadow.lanes.eq(write.lanes),
            shadow.index.eq(write.index),
        ]
        for element in range(shape.elements):
            m.d.comb += shadow.data[element].eq(self._low_bits(write.data[element]))

    def _low_bits(self, element: Value) -> Value:
        """The low bits of an element, which store reads."""
        config = self._config
        scalars = range(config.acc.rows * config.acc.columns)
        return Cat(element.word_select(n, config.acc_width)[: config.out_width] for n in scalars)

    def _uses(self, m: Module, name: str, bank: int, size: int) -> Signal:
        """Whether a unit's port ``name`` uses the bank."""
        port = getattr(self, name)
        uses = Signal(name=f"{name}_bank{bank}")
        banks = self._shape.depth // size
        m.d.comb += uses.eq(port.enable[0] & (_bank(port.index, size, banks) == bank))
        return uses


class _Bank(NamedTuple):
    """Read ports of a bank for destinations, sources (only if it has a copy) and store."""

    destination: Any
    source: Any
    shadow: Any


class _Written(wiring.Component):
    """Data written to a bank: of the unit that writes, else of the loader.

    A separate module, so that each bit takes one LUT: a synthesizer that sees the logic of the
    selects duplicates it per bit to shorten the path. One four-input LUT suffices because the
    ALU's data are 0 while it writes nothing (``alu_rests``).

    Timing: combinational.
    """

    def __init__(self, width: int, alu_rests: bool) -> None:
        self._alu_rests = alu_rests
        super().__init__(
            {
                "gemm_writes": In(1),
                "alu_writes": In(1),
                "gemm": In(width),
                "alu": In(width),
                "load": In(width),
                "data": Out(width),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        alu = self.alu if self._alu_rests else Mux(self.alu_writes, self.alu, 0)
        m.d.comb += self.data.eq(Mux(self.gemm_writes, self.gemm, alu | self.load))
        return m


def _connect_read(
    m: Module, name: str, port: Any, banks: Sequence[Any], write: Any, clear: Value = _NEVER
) -> None:
    """Drive ``port`` with the data of its bank, with forwarded data of ``write``, or with 0 for a
    read with ``clear``.

    Three inputs and two selects: one LUT per bit. Zeros are forwarded too: ``clear`` alone resets
    the forwarding register, which takes no LUT. A second reset would take one LUT per bit and is
    unnecessary: nothing is forwarded before it is written.
    """
    size = 1 << len(banks[0].index) - 1
    bank, hit = Signal(name=f"{name}_bank"), Signal(name=f"{name}_hit")
    forwarded = Signal.like(port.data[0], name=f"{name}_forwarded", reset_less=True)
    with m.If(port.enable):
        m.d.sync += [
            bank.eq(_bank(port.index, size, len(banks))),
            hit.eq(clear | (write.enable[0] & (write.index == port.index))),
            forwarded.eq(write.data[0]),
        ]
    with m.If(port.enable & clear):
        m.d.sync += forwarded.eq(0)
    stored = Mux(bank, banks[-1].data[0], banks[0].data[0])
    m.d.comb += port.data[0].eq(Mux(hit, forwarded, stored))


def _bank(index: Value, size: int, banks: int) -> Value:
    """Bank number of an element, among ``banks`` of ``size`` elements each."""
    return index[(size - 1).bit_length()] if banks > 1 else Const(0, 1)


def _within(index: Value, size: int) -> Value:
    """Index of an element within its bank."""
    return index[: (size - 1).bit_length()]
