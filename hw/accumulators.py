"""The accumulator scratchpad: in two banks if GEMM and ALU work beside each other."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from . import isa
from .buffer import ReadPortSignature, Scratchpad, WritePortSignature, geometry
from .config import Config


class Accumulators(wiring.Component):
    """Accumulators that GEMM and ALU read and write each cycle, and that store reads.

    With the extension OVERLAP the upper half is a bank of its own, and the two units may be at
    work in different banks in the same cycle; who is in which bank is settled elsewhere: at most
    one of ``gemm_read`` and ``alu_dst``, and one of the three write ports, may use a bank in a
    cycle. Store never waits for a port: it reads a memory of the low bits, which are written
    wherever the accumulators are.

    Timing: data one cycle after an enabled read, which sees a write of the same cycle, except
    through ``out_read``.

    Ports
    -----
    gemm_read, alu_dst, alu_src : read ports, of one element
    gemm_write, alu_write : write ports, of one element
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
        if banks == 1:
            for port, name in zip(
                (self.gemm_read, self.alu_dst, self.alu_src), (0, 0, 1), strict=True
            ):
                m.d.comb += Value.cast(port.data).eq(Value.cast(ports[0][name].data))
            m.d.comb += Value.cast(self.out_read.data).eq(Value.cast(ports[0][2].data))
            return m
        for number, port, name in (
            (0, self.gemm_read, 0),
            (1, self.alu_dst, 0),
            (2, self.alu_src, 1),
        ):
            bank = Signal(name=f"read_bank_{number}")
            with m.If(port.enable):
                m.d.sync += bank.eq(_bank(port.index, size))
            m.d.comb += Value.cast(port.data).eq(
                Mux(bank, Value.cast(ports[1][name].data), Value.cast(ports[0][name].data))
            )
        for element in range(self._out_elements):
            bank = Signal(name=f"out_bank_{element}")
            with m.If(self.out_read.enable):
                m.d.sync += bank.eq(_bank(self.out_read.index + element, size))
            m.d.comb += self.out_read.data[element].eq(
                Mux(bank, ports[1][2].data[element], ports[0][2].data[element])
            )
        return m

    def _add_bank(self, m: Module, bank: int, size: int) -> tuple[Any, Any, Any]:
        """One bank of ``size`` elements; its read ports for destinations, sources and store."""
        config, shape = self._config, self._shape
        whole = size == shape.depth
        accumulators = Scratchpad(
            element_bits=shape.element_bits,
            depth=size,
            write_elements=shape.elements,
            lanes=shape.lanes,
            read_elements=(1, 1),
            transparent=(0, 1),
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

        def mine(index: Value) -> Value | int:
            return 1 if whole else _bank(index, size) == bank

        def use(name: str, port: Any) -> Signal:
            signal = Signal(name=f"{name}_bank{bank}")
            m.d.comb += signal.eq(port.enable[0] & mine(port.index))
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

        write = accumulators.write
        gemm_writes = use("gemm_write", self.gemm_write)
        alu_writes = use("alu_write", self.alu_write)
        with m.If(gemm_writes):
            _connect_write(m, write, self.gemm_write, size)
        with m.Elif(alu_writes):
            _connect_write(m, write, self.alu_write, size)
        with m.Else():
            port = self.load_write
            m.d.comb += [
                write.enable.eq(
                    Cat(
                        port.enable[element] & mine(port.index + element)
                        for element in range(shape.elements)
                    )
                ),
                write.lanes.eq(port.lanes),
                write.index.eq(port.index - bank * size),
                write.data.eq(port.data),
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


def _bank(index: Value, size: int) -> Value:
    return index[(size - 1).bit_length()]


def _within(index: Value, size: int) -> Value:
    """The index of an element within its bank."""
    return index[: (size - 1).bit_length()]


def _connect_write(m: Module, bank: Any, port: Any, size: int) -> None:
    m.d.comb += [
        bank.enable.eq(1),
        bank.lanes.eq(port.lanes),
        bank.index.eq(_within(port.index, size)),
        bank.data[0].eq(port.data[0]),
    ]
