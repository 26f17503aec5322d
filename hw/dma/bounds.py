"""Whether a LOAD or STORE leaves the elements in DRAM that software has given its memory."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.fabric.structures import Limits, instruction_layout, is_forward

from .product import product_of


class BoundsChecker(wiring.Component):
    """Compares the end of the last row, which no other row exceeds since strides are not negative,
    with the limit of its memory, or with the elements that DRAM holds if these are fewer. Both
    count elements from the base, so no address is needed.

    Timing: one instruction per cycle; ``outside`` two cycles after it is taken::

        valid    a   b
        outside          a   b

    Parameters
    ----------
    rows : the most rows of a transfer that is in range; of others the result means nothing

    Ports
    -----
    valid, bits : an instruction; of one that is no LOAD or STORE the result means nothing
    limits : stable during a run
    outside : it would access an element at the limit of its memory, or beyond; or further from the
        base than DRAM is large; of an `isa.Forward`: it would read an accumulator past the depth
    """

    def __init__(self, config: Config, rows: int) -> None:
        self._config = config
        self._rows = rows
        super().__init__(
            {
                "valid": In(1),
                "bits": In(isa.INSTRUCTION_WIDTH),
                "limits": In(Limits()),
                "outside": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        fields = data.View(instruction_layout(self._config, isa.Opcode.LOAD), self.bits)
        config = self._config
        # Bits of an index of an element that DRAM may hold.
        width = min(isa.DRAM_BASE_WIDTH, config.log_dram_size)
        if config.forward:
            width = max(width, isa.SRAM_BASE_WIDTH)
        limit, limited = Signal(width + 1, reset_less=True), Signal(reset_less=True)
        # The limit that software has set; the elements that DRAM holds, or 0 if all indices do not
        # reach as far.
        given, most, no_limit = Signal(isa.DRAM_BASE_WIDTH), Signal(width + 1), Signal()
        beyond_most = Signal()
        m.d.comb += no_limit.eq((given == 0) | beyond_most)
        with m.Switch(fields.memory):
            for memory in isa.Memory:
                log_bytes = exact_log2(config.memory(memory).element_bytes)
                log_most = config.log_dram_size - log_bytes
                with m.Case(memory):
                    m.d.comb += given.eq(self.limits[isa.limited_as(memory).name.lower()])
                    if log_most <= isa.DRAM_BASE_WIDTH:
                        m.d.comb += [most.eq(1 << log_most), beyond_most.eq(given[log_most:].any())]
        row_end = Signal(range(1 << max(width, isa.SIZE_WIDTH) + 1), reset_less=True)
        far = Signal(reset_less=True)
        rows_before = Signal(range(self._rows), reset_less=True)
        stride = Signal(isa.SIZE_WIDTH, reset_less=True)
        accesses = Signal(reset_less=True)
        with m.If(self.valid):
            m.d.sync += [
                row_end.eq(fields.dram_base[:width] + fields.x_size),
                far.eq(fields.dram_base[width:].any()),
                rows_before.eq(fields.y_size - 1),
                stride.eq(fields.x_stride),
                accesses.eq((fields.x_size != 0) & (fields.y_size != 0)),
                limit.eq(Mux(no_limit, most, given)),
                limited.eq(~no_limit | (most != 0)),
            ]

        if config.forward:
            with m.If(self.valid & is_forward(fields)):
                m.d.sync += [
                    row_end.eq(fields.dram_base[: isa.SRAM_BASE_WIDTH] + fields.x_size),
                    far.eq(0),
                    limit.eq(config.acc.depth),
                    limited.eq(1),
                ]

        moved = Signal()
        room = Signal(signed(len(row_end) + 1), reset_less=True)
        reach = Signal(range((self._rows - 1) * ((1 << isa.SIZE_WIDTH) - 1) + 1), reset_less=True)
        bounded, beyond = Signal(reset_less=True), Signal(reset_less=True)
        m.d.sync += moved.eq(self.valid)
        with m.If(moved):
            m.d.sync += [
                room.eq(limit - row_end),
                reach.eq(product_of(m, "reach", rows_before, stride, self._rows)),
                bounded.eq(accesses & limited),
                beyond.eq(accesses & far),
            ]
        m.d.comb += self.outside.eq((bounded & (reach > room)) | beyond)
        return m
