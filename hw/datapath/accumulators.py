"""The accumulator scratchpad: in two banks if GEMM and ALU work beside each other."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.fabric.buffer import (
    ReadPortSignature,
    Scratchpad,
    WritePortSignature,
    geometry,
)


class Accumulators(wiring.Component):
    """Accumulators that GEMM and ALU read and write each cycle, and that store reads.

    With the extension OVERLAP the upper half is a bank of its own, and the two units may be at
    work in different banks in the same cycle; who is in which bank is settled elsewhere: at most
    one of ``gemm_read`` and ``alu_dst``, and one of the three write ports, may use a bank in a
    cycle. Store never waits for a port: it reads a memory of the low bits, which are written
    wherever the accumulators are.

    Timing: data one cycle after an enabled read. A read by a unit sees what that unit itself writes
    in the same cycle, and of others what they have written before: a unit is never to read what
    another one is just writing.

    Ports
    -----
    gemm_read, alu_dst, alu_src : read ports, of one element
    gemm_write, alu_write : write ports, of one element, all of it
    load_write : write port of the loader
    out_read : what store reads, elements of OUT
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._shape = shape = geometry(config, isa.Memory.ACC)
        self._out_elements = geometry(config, isa.Memory.OUT).elements
        read = ReadPortSignature(shape.element_bits, shape.depth, 1)
        write = WritePortSignature(shape.element_bits, shape.depth, 1, shape.lanes)
        super().__init__(
            {
                "gemm_read": In(read),
                "alu_dst": In(read),
                "alu_src": In(read),
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
        ports = [self._add_bank(m, bank, size) for bank in range(banks)]
        destinations, sources, shadows = zip(*ports, strict=True)
        _connect_read(m, "gemm_read", self.gemm_read, destinations, self.gemm_write)
        _connect_read(m, "alu_dst", self.alu_dst, destinations, self.alu_write)
        _connect_read(m, "alu_src", self.alu_src, sources, self.alu_write)
        for element in range(self._out_elements):
            bank = Signal(name=f"out_bank_{element}")
            with m.If(self.out_read.enable):
                m.d.sync += bank.eq(_bank(self.out_read.index + element, size, banks))
            m.d.comb += self.out_read.data[element].eq(
                Mux(bank, shadows[-1].data[element], shadows[0].data[element])
            )
        return m

    def _add_bank(self, m: Module, bank: int, size: int) -> tuple[Any, Any, Any]:
        """One bank of ``size`` elements; its read ports for destinations, sources and store."""
        config, shape = self._config, self._shape
        banks = shape.depth // size
        accumulators = Scratchpad(
            element_bits=shape.element_bits,
            depth=size,
            write_elements=shape.elements,
            lanes=shape.lanes,
            read_elements=(1, 1),
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

        def use(name: str, port: Any) -> Signal:
            signal = Signal(name=f"{name}_bank{bank}")
            m.d.comb += signal.eq(port.enable[0] & (_bank(port.index, size, banks) == bank))
            return signal

        gemm_reads = use("gemm_read", self.gemm_read)
        destination, source = accumulators.read0, accumulators.read1
        m.d.comb += [
            destination.enable.eq(gemm_reads | use("alu_dst", self.alu_dst)),
            destination.index.eq(
                _within(Mux(gemm_reads, self.gemm_read.index, self.alu_dst.index), size)
            ),
            source.enable.eq(use("alu_src", self.alu_src)),
            source.index.eq(_within(self.alu_src.index, size)),
            shadow.read0.enable.eq(self.out_read.enable),
            shadow.read0.index.eq(self.out_read.index - bank * size),
        ]

        write, load = accumulators.write, self.load_write
        gemm_writes = use("gemm_write", self.gemm_write)
        alu_writes = use("alu_write", self.alu_write)
        m.submodules[f"written{bank}"] = written = _Written(shape.element_bits)
        m.d.comb += [
            written.gemm_writes.eq(gemm_writes),
            written.alu_writes.eq(alu_writes),
            written.gemm.eq(self.gemm_write.data[0]),
            written.alu.eq(self.alu_write.data[0]),
            written.load.eq(load.data[0]),
        ]
        # Units write one element, the loader up to a beat of them.
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
            shadow.write.enable.eq(write.enable),
            shadow.write.lanes.eq(write.lanes),
            shadow.write.index.eq(write.index),
        ]
        for element in range(shape.elements):
            scalars = (
                write.data[element].word_select(scalar, config.acc_width)
                for scalar in range(config.acc.rows * config.acc.columns)
            )
            m.d.comb += shadow.write.data[element].eq(
                Cat(scalar[: config.out_width] for scalar in scalars)
            )
        return destination, source, shadow.read0


class _Written(wiring.Component):
    """What is written into a bank: the data of the unit that writes, else of the loader.

    A module of its own, so that a bit takes one LUT: a synthesizer that sees how it is found out
    who writes does that again for each bit, to be quicker.

    Timing: combinational.
    """

    def __init__(self, width: int) -> None:
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
        unit = Mux(self.gemm_writes, self.gemm, self.alu)
        m.d.comb += self.data.eq(Mux(self.gemm_writes | self.alu_writes, unit, self.load))
        return m


def _connect_read(m: Module, name: str, port: Any, banks: Sequence[Any], write: Any) -> None:
    """``port`` gives what one of the read ports of ``banks`` does, or what ``write`` has just
    written there: of three a choice by two bits of which a LUT makes one bit of data."""
    size = 1 << len(banks[0].index) - 1
    bank, hit = Signal(name=f"{name}_bank"), Signal(name=f"{name}_hit")
    forwarded = Signal.like(port.data[0], name=f"{name}_forwarded")
    with m.If(port.enable):
        m.d.sync += [
            bank.eq(_bank(port.index, size, len(banks))),
            hit.eq(write.enable[0] & (write.index == port.index)),
            forwarded.eq(write.data[0]),
        ]
    stored = Mux(bank, banks[-1].data[0], banks[0].data[0])
    m.d.comb += port.data[0].eq(Mux(hit, forwarded, stored))


def _bank(index: Value, size: int, banks: int) -> Value:
    """The number of the bank, of so many of ``size`` elements, that has the element."""
    return index[(size - 1).bit_length()] if banks > 1 else Const(0, 1)


def _within(index: Value, size: int) -> Value:
    """The index of an element within its bank."""
    return index[: (size - 1).bit_length()]
