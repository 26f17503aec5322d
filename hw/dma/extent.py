"""How many elements a LOAD or STORE touches, and whether they are all there."""

from collections.abc import Iterable
from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.fabric.structures import QueueEntry, instruction_layout

ELEMENTS_WIDTH = isa.SRAM_BASE_WIDTH + 1


class CheckedEntry(data.Struct):
    """An instruction, and for a LOAD or STORE: the elements that it touches in the scratchpad,
    padding included (`isa.Load.elements`), the index of the first that is not padding, and
    whether any is past the depth.

    ``elements`` and ``first`` are only meaningful if the instruction is not out of range.
    """

    entry: QueueEntry
    elements: ELEMENTS_WIDTH
    first: isa.SRAM_BASE_WIDTH
    out_of_range: 1


class ExtentChecker(wiring.Component):
    """Counts the elements of the LOADs and STOREs that pass; other instructions just pass.

    The multiplier is as wide as the deepest memory asks for (one DSP slice), since a side that is
    longer is out of range whatever the other one is.

    Timing: one instruction per cycle, in three stages: sums, product, comparison. What is taken in
    one cycle shows three cycles later; a stage whose result is not taken keeps it.

    Parameters
    ----------
    memories : whose depths count; the memory of an instruction that is none of these is not
        checked against a depth that means anything
    """

    i: In(stream.Signature(QueueEntry))
    o: Out(stream.Signature(CheckedEntry))

    def __init__(self, config: Config, memories: Iterable[isa.Memory]) -> None:
        self._config = config
        self._depths = {memory: config.memory(memory).depth for memory in memories}
        super().__init__()

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        layout = instruction_layout(self._config, isa.Opcode.LOAD)
        deepest = max(self._depths.values())
        side = range(deepest + 1)

        valid = [Signal(name=f"valid_{stage}") for stage in range(3)]
        move = [Signal(name=f"move_{stage}") for stage in range(3)]
        for stage in range(3):
            follows = move[stage + 1] if stage < 2 else self.o.ready
            source = valid[stage - 1] if stage else self.i.valid
            m.d.comb += move[stage].eq(~valid[stage] | follows)
            with m.If(move[stage]):
                m.d.sync += valid[stage].eq(source)
        m.d.comb += [self.i.ready.eq(move[0]), self.o.valid.eq(valid[2])]

        # Sums.
        fields = data.View(layout, self.i.payload.bits)
        rows_wide = Signal(range(1 << isa.SIZE_WIDTH + 1))
        columns_wide = Signal(range(1 << isa.SIZE_WIDTH + 1))
        m.d.comb += [
            rows_wide.eq(fields.y_pad_0 + fields.y_size + fields.y_pad_1),
            columns_wide.eq(fields.x_pad_0 + fields.x_size + fields.x_pad_1),
        ]
        entries = [Signal(QueueEntry, name=f"entry_{stage}") for stage in range(2)]
        rows, columns = Signal(side), Signal(side)
        too_long, empty = Signal(), Signal()
        with m.If(move[0]):
            m.d.sync += [
                entries[0].eq(self.i.payload),
                rows.eq(rows_wide),
                columns.eq(columns_wide),
                too_long.eq((rows_wide > deepest) | (columns_wide > deepest)),
                empty.eq((fields.x_size == 0) | (rows_wide == 0)),
            ]

        # Product.
        product = Signal(range(deepest * deepest + 1))
        above = Signal(isa.SRAM_BASE_WIDTH)
        too_long_next, empty_next = Signal(), Signal()
        fields = data.View(layout, entries[0].bits)
        with m.If(move[1]):
            m.d.sync += [
                above.eq(fields.y_pad_0 * columns),
                entries[1].eq(entries[0]),
                product.eq(rows * columns),
                too_long_next.eq(too_long & ~empty),
                empty_next.eq(empty),
            ]

        # Comparison.
        fields = data.View(layout, entries[1].bits)
        end = Signal(range(deepest * deepest + (1 << isa.SRAM_BASE_WIDTH) + 1))
        past = Signal()
        m.d.comb += end.eq(fields.sram_base + product)
        with m.Switch(fields.memory):
            for memory, depth in self._depths.items():
                # Both ways of loading accumulators fill one memory.
                ids = [memory, isa.Memory.ACC_8BIT] if memory is isa.Memory.ACC else [memory]
                with m.Case(*ids):
                    m.d.comb += past.eq(end > depth)
        with m.If(move[2]):
            m.d.sync += [
                self.o.payload.entry.eq(entries[1]),
                self.o.payload.first.eq(fields.sram_base + above + fields.x_pad_0),
                self.o.payload.elements.eq(Mux(empty_next, 0, product)),
                self.o.payload.out_of_range.eq(too_long_next | (past & ~empty_next)),
            ]
        return m
