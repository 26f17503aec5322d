"""Range check: elements that a LOAD or STORE touches, against the depth of the scratchpad."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.interfaces import (
    CheckedEntry,
    Limits,
    QueueEntry,
    instruction_layout,
    is_forward,
    memory_of,
)

from .bounds import BoundsChecker, product_of, sum_of_shifted


class ExtentChecker(wiring.Component):
    """Counts the elements of LOADs and STOREs; other instructions pass unchanged.

    The multiplier is only as wide as the deepest memory requires (one DSP slice), since a transfer
    with a longer side is out of range anyway.

    Timing: one instruction per cycle, in three stages: sums, product, comparison. An instruction
    appears at ``o``, registered, three cycles after it is accepted. Nothing stalls it.

    Ports
    -----
    i, o : instructions
    limits : as in `BoundsChecker`
    empty : no instruction is in the pipeline
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
            *(Signal(QueueEntry, name=f"entry_{stage}", reset_less=True) for stage in range(2)),
        ]
        checked = Signal(CheckedEntry, reset_less=True)
        entries.append(checked.entry)
        for stage in range(3):
            m.d.sync += valid[stage + 1].eq(valid[stage])
            with m.If(valid[stage]):
                m.d.sync += entries[stage + 1].eq(entries[stage])

        # Sums.
        fields = data.View(layout, entries[0].bits)
        wide = range(1 << isa.SIZE_WIDTH + 1)
        rows_wide, columns_wide = Signal(wide, reset_less=True), Signal(wide, reset_less=True)
        no_data = Signal(reset_less=True)
        with m.If(valid[0]):
            m.d.sync += [
                rows_wide.eq(fields.y_pad_0 + fields.y_size + fields.y_pad_1),
                columns_wide.eq(fields.x_pad_0 + fields.x_size + fields.x_pad_1),
                no_data.eq(fields.x_size == 0),
            ]
        m.submodules.bounds = bounds = BoundsChecker(self._config, deepest)
        m.d.comb += [
            bounds.valid.eq(valid[0]),
            bounds.bits.eq(entries[0].bits),
            bounds.limits.eq(self.limits),
        ]

        # Product.
        rows, columns, is_empty, too_long = Signal(side), Signal(side), Signal(), Signal()
        m.d.comb += [
            rows.eq(rows_wide),
            columns.eq(columns_wide),
            is_empty.eq(no_data | (rows_wide == 0)),
            too_long.eq((rows_wide > deepest) | (columns_wide > deepest)),
        ]
        product = Signal(range(deepest * deepest + 1), reset_less=True)
        above = Signal(isa.SRAM_BASE_WIDTH, reset_less=True)
        refused, empty = Signal(reset_less=True), Signal(reset_less=True)
        # Number of scratchpad elements from the first touched one on.
        fields = data.View(layout, entries[1].bits)
        room = Signal(range(-(1 << isa.SRAM_BASE_WIDTH), deepest + 1), reset_less=True)
        depth = self._depth_of(m, memory_of(self._config, fields))
        with m.If(valid[1]):
            m.d.sync += [
                room.eq(depth - fields.sram_base),
                above.eq(sum_of_shifted(m, "above", fields.y_pad_0, columns)),
                product.eq(product_of(m, "product", rows, columns, deepest)),
                refused.eq(too_long & ~is_empty),
                empty.eq(is_empty),
            ]

        # Comparison.
        fields = data.View(layout, entries[2].bits)
        past, outside = refused | ((product > room) & ~empty), bounds.outside
        # For a FORWARD, rows are bounded by the accumulators, so exceeding the bounds is out of
        # range.
        of_forward = is_forward(fields) if self._config.forward else Const(0)
        with m.If(valid[2]):
            m.d.sync += [
                checked.first.eq(fields.sram_base + above + fields.x_pad_0),
                checked.elements.eq(Mux(empty, 0, product)),
                checked.out_of_range.eq(past | (outside & of_forward)),
                checked.out_of_bounds.eq(outside & ~of_forward),
            ]
        m.d.comb += [
            self.o.valid.eq(valid[3]),
            self.empty.eq(~Cat(valid[1:]).any()),
            self.o.payload.eq(checked),
        ]
        return m

    def _depth_of(self, m: Module, memory: Value) -> Signal:
        depth = Signal(range(max(self._depths.values()) + 1))
        transferred = isa.transferred_memories(self._config.extensions)
        with m.Switch(memory):
            for item, its_depth in self._depths.items():
                # Two kinds of LOADs may fill the same memory.
                kinds = [kind for kind in transferred if isa.filled_by(kind) is item]
                with m.Case(*kinds):
                    m.d.comb += depth.eq(its_depth)
        return depth


_MEMORIES = tuple(memory for memory in isa.Memory if isa.filled_by(memory) is memory)
