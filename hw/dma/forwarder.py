"""Forwarder: copies strided rows of the accumulators' low bits to INP, with padding."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.scratchpad import geometry

from .transfer import transfer_layout


class Forwarder(wiring.Component):
    """Writes rows of the accumulators' low bits, and their padding, to the INP scratchpad.

    It walks over the destination row by row and reads an element where there is no padding.

    Timing: one element per cycle, the first one three cycles after the command is accepted, delayed
    by as many cycles as ``hold`` is high. The next command is accepted in the cycle after the last
    element is read, and its first element is written three cycles later::

        command      c
        scratchpad       i0  i1
        inp.enable               i0  i1
        done                         1

    Ports
    -----
    command : of `transfer_layout`, for a legal `isa.Forward` in range
    scratchpad : read port
    inp : write port of the inputs
    hold : nothing is written in this cycle
    done : high for one cycle when a command is completely written
    idle : no command is in progress
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__(
            {
                "command": In(stream.Signature(transfer_layout(config))),
                "scratchpad": Out(geometry(config, isa.Memory.OUT).read_port()),
                "inp": Out(geometry(config, isa.Memory.INP).write_port()),
                "hold": In(1),
                "done": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config
        depth = config.inp.depth
        # Position of the element in its row, and the row; negative in leading padding.
        place = signed((depth - 1).bit_length() + 2)
        x, y = Signal(place), Signal(place)
        first_x, last_x, x_size, y_size = (Signal(place) for _ in range(4))
        left = Signal(range(depth + 1))
        index = Signal(range(depth))
        source, row, stride = (Signal(range(config.acc.depth)) for _ in range(3))
        # Padding value of the command, and of the element that was read.
        padding, read_padding = Signal(config.inp_width), Signal(config.inp_width)

        # Read stage, then write stage.
        active, free, reads = Signal(), Signal(), Signal()
        layout = {"valid": 1, "writes": 1, "pads": 1, "last": 1, "index": range(depth)}
        read = Signal(data.StructLayout(layout))
        write = Signal(data.StructLayout(layout))
        element = Signal(config.inp.element_bits, reset_less=True)
        padding_element = read_padding.replicate(config.inp.element_bits // config.inp_width)
        pads, last, row_ends = Signal(), Signal(), Signal()
        next_row = Signal.like(row)
        m.d.comb += [
            pads.eq((x < 0) | (x >= x_size) | (y < 0) | (y >= y_size)),
            # A command without elements takes one step that writes nothing.
            last.eq(left <= 1),
            row_ends.eq(x == last_x),
            next_row.eq(row + stride),
            reads.eq(active & free),
            self.scratchpad.enable.eq(reads & ~pads),
            self.scratchpad.index.eq(source),
            self.command.ready.eq(~active),
            self.idle.eq(~active & ~read.valid & ~write.valid),
        ]
        with m.If(free):
            m.d.sync += [
                read.valid.eq(active),
                read.writes.eq(left != 0),
                read.pads.eq(pads),
                read.last.eq(last),
                read.index.eq(index),
                read_padding.eq(padding),
                write.eq(read),
                element.eq(Mux(read.pads, padding_element, self.scratchpad.data[0])),
            ]
        with m.If(reads):
            m.d.sync += [
                x.eq(Mux(row_ends, first_x, x + 1)),
                left.eq(left - 1),
                index.eq(index + 1),
                active.eq(~last),
            ]
            with m.If(~pads):
                m.d.sync += source.eq(source + 1)
            with m.If(row_ends):
                m.d.sync += y.eq(y + 1)
                with m.If(y >= 0):
                    m.d.sync += [source.eq(next_row), row.eq(next_row)]
        command = self.command.payload
        # Without ``command.valid``, which arrives late in the cycle.
        with m.If(~active):
            m.d.sync += [
                x.eq(-command.x_pad_0),
                first_x.eq(-command.x_pad_0),
                last_x.eq(command.x_size + command.x_pad_1 - 1),
                x_size.eq(command.x_size),
                y.eq(-command.y_pad_0),
                y_size.eq(command.y_size),
                left.eq(command.elements),
                index.eq(command.sram_base),
                source.eq(command.dram_base),
                row.eq(command.dram_base),
                stride.eq(command.x_stride),
                active.eq(self.command.valid & self.command.ready),
            ]
        with m.If(self.command.valid & self.command.ready):
            value = command.dram_base.bit_select(isa.SRAM_BASE_WIDTH, config.inp_width)
            m.d.sync += padding.eq(value)
        m.d.comb += [
            free.eq(~write.valid | ~write.writes | ~self.hold),
            self.inp.enable.eq(write.valid & write.writes),
            self.inp.lanes.eq(~0),
            self.inp.index.eq(write.index),
            Value.cast(self.inp.data).eq(element),
            self.done.eq(write.valid & write.last & free),
        ]
        return m
