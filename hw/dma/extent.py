"""How many elements a LOAD or STORE touches, and whether the scratchpad has them all."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.fabric.structures import Limits, QueueEntry, instruction_layout, is_forward

from .bounds import BoundsChecker
from .product import product_of, sum_of_shifted

ELEMENTS_WIDTH = isa.SRAM_BASE_WIDTH + 1


class CheckedEntry(data.Struct):
    """An instruction, and for a LOAD or STORE: the elements that it touches in the scratchpad,
    padding included (`isa.Load.elements`), the index of the first that is not padding, whether any
    is past the depth, and whether its rows leave the bounds of their memory in DRAM.

    All but ``out_of_range`` are only meaningful if the instruction is not out of range.
    """

    entry: QueueEntry
    elements: ELEMENTS_WIDTH
    first: isa.SRAM_BASE_WIDTH
    out_of_range: 1
    out_of_bounds: 1


class ExtentChecker(wiring.Component):
    """Counts the elements of the LOADs and STOREs that pass; other instructions just pass.

    The multiplier is as wide as the deepest memory asks for (one DSP slice), since a side that is
    longer is out of range whatever the other one is.

    Timing: one instruction per cycle, in three stages: registers, sums, product; an instruction
    shows at ``o`` three cycles after it is taken. Nothing stalls it.

    Ports
    -----
    i, o : instructions
    limits : as those of `BoundsChecker`
    empty : none is in the pipeline
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._depths = {memory: config.memory(memory).depth for memory in _MEMORIES}
        super().__init__(
            {
                "i": In(stream.Signature(QueueEntry, always_ready=True)),
                "o": Out(stream.Signature(CheckedEntry, always_ready=True)),
                "limits": In(Limits()),
                "empty": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        layout = instruction_layout(self._config, isa.Opcode.LOAD)
        deepest = max(self._depths.values())
        side = range(deepest + 1)

        valid = [self.i.valid, *(Signal(name=f"valid_{stage}") for stage in range(3))]
        entries = [
            self.i.payload,
            *(Signal(QueueEntry, name=f"entry_{stage}", reset_less=True) for stage in range(3)),
        ]
        for stage in range(3):
            m.d.sync += valid[stage + 1].eq(valid[stage])
            with m.If(valid[stage]):
                m.d.sync += entries[stage + 1].eq(entries[stage])

        # Sums.
        fields = data.View(layout, entries[1].bits)
        rows_wide = Signal(range(1 << isa.SIZE_WIDTH + 1))
        columns_wide = Signal(range(1 << isa.SIZE_WIDTH + 1))
        m.d.comb += [
            rows_wide.eq(fields.y_pad_0 + fields.y_size + fields.y_pad_1),
            columns_wide.eq(fields.x_pad_0 + fields.x_size + fields.x_pad_1),
        ]
        rows, columns = Signal(side, reset_less=True), Signal(side, reset_less=True)
        too_long, empty = Signal(reset_less=True), Signal(reset_less=True)
        with m.If(valid[1]):
            m.d.sync += [
                rows.eq(rows_wide),
                columns.eq(columns_wide),
                too_long.eq((rows_wide > deepest) | (columns_wide > deepest)),
                empty.eq((fields.x_size == 0) | (rows_wide == 0)),
            ]

        # Product.
        product = Signal(range(deepest * deepest + 1), reset_less=True)
        above = Signal(isa.SRAM_BASE_WIDTH, reset_less=True)
        too_long_next, empty_next = Signal(reset_less=True), Signal(reset_less=True)
        y_pad_0 = data.View(layout, entries[2].bits).y_pad_0
        with m.If(valid[2]):
            m.d.sync += [
                above.eq(sum_of_shifted(m, "above", y_pad_0, columns)),
                product.eq(product_of(m, "product", rows, columns, deepest)),
                too_long_next.eq(too_long & ~empty),
                empty_next.eq(empty),
            ]

        m.submodules.bounds = bounds = BoundsChecker(self._config, deepest)
        m.d.comb += [
            bounds.valid.eq(valid[1]),
            bounds.bits.eq(entries[1].bits),
            bounds.limits.eq(self.limits),
        ]

        # Comparison.
        fields = data.View(layout, entries[3].bits)
        end = Signal(range(deepest * deepest + (1 << isa.SRAM_BASE_WIDTH) + 1))
        past = Signal()
        m.d.comb += end.eq(fields.sram_base + product)
        with m.Switch(fields.memory):
            for memory, depth in self._depths.items():
                # Both ways of loading accumulators fill one memory.
                ids = [memory, isa.Memory.ACC_8BIT] if memory is isa.Memory.ACC else [memory]
                with m.Case(*ids):
                    m.d.comb += past.eq(end > depth)
        m.d.comb += [
            self.o.valid.eq(valid[3]),
            self.empty.eq(~Cat(valid[1:]).any()),
            self.o.payload.entry.eq(entries[3]),
            self.o.payload.first.eq(fields.sram_base + above + fields.x_pad_0),
            self.o.payload.elements.eq(Mux(empty_next, 0, product)),
            self.o.payload.out_of_range.eq(too_long_next | (past & ~empty_next)),
            self.o.payload.out_of_bounds.eq(bounds.outside),
        ]
        if self._config.forward:
            # What bounds its rows is not DRAM but the accumulators.
            with m.If(is_forward(fields) & bounds.outside):
                checked = self.o.payload
                m.d.comb += [checked.out_of_range.eq(1), checked.out_of_bounds.eq(0)]
        return m


_MEMORIES = tuple(memory for memory in isa.Memory if memory is not isa.Memory.ACC_8BIT)
