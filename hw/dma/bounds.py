"""Bounds check of LOADs and STOREs against the limit of their memory in DRAM."""

from itertools import zip_longest
from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.interfaces import (
    Limits,
    instruction_layout,
    is_forward,
    memory_of,
)

# Up to this depth products are built from adders: a small FPGA has few multipliers.
MAX_DEPTH_IN_LOGIC = 1024


class BoundsChecker(wiring.Component):
    """Compares the end of a transfer's last row with the limit of its memory or, if smaller, with
    the number of elements in DRAM. Strides are not negative, so no other row ends later. Both are
    element indices relative to the base, so no address is computed.

    Timing: one instruction per cycle; ``outside`` is valid two cycles after it is accepted::

        valid    a   b
        outside          a   b

    Parameters
    ----------
    rows : maximum number of rows of a transfer in range; for others the result is undefined

    Ports
    -----
    valid, bits : an instruction; the result is undefined unless it is a LOAD or STORE
    limits : stable during a run
    outside : it would access an element at or beyond the limit of its memory, or beyond DRAM; for
        an `isa.Forward`: it would read an accumulator beyond the depth
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
        # Width of a DRAM index.
        width = min(isa.DRAM_BASE_WIDTH, config.log_dram_size)
        if config.forward:
            width = max(width, isa.SRAM_BASE_WIDTH)
        limit, limited = Signal(width + 1, reset_less=True), Signal(reset_less=True)
        # The limit set by software; and the number of elements in DRAM, or 0 if no index reaches
        # that far.
        given_width = isa.DRAM_BASE_WIDTH + config.wgt_4bit
        given, most, no_limit = Signal(given_width), Signal(width + 1), Signal()
        beyond_most = Signal()
        m.d.comb += no_limit.eq((given == 0) | beyond_most)
        with m.Switch(memory_of(config, fields)):
            for memory in isa.transferred_memories(config.extensions):
                log_bytes = exact_log2(config.memory(memory).element_bytes)
                log_most = config.log_dram_size - log_bytes
                with m.Case(memory):
                    limit_of_memory = self.limits[isa.limited_as(memory).name.lower()]
                    if isa.per_limited(memory) > 1:
                        limit_of_memory = limit_of_memory << exact_log2(isa.per_limited(memory))
                    m.d.comb += given.eq(limit_of_memory)
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


def product_of(m: Module, name: str, a: Value, b: Value, depth: int) -> Value:
    """Product of two unsigned numbers in a machine whose deepest scratchpad has ``depth`` elements:
    by a DSP slice, or by adders in a small machine.
    """
    return sum_of_shifted(m, name, a, b) if depth <= MAX_DEPTH_IN_LOGIC else a * b


def sum_of_shifted(m: Module, name: str, a: Value, b: Value) -> Value:
    """Product of two unsigned numbers by adders."""
    terms: list[Value] = [Mux(a[place], b, 0) << place for place in range(len(a))]
    while len(terms) > 1:
        sums: list[Value] = []
        for low, high in zip_longest(terms[::2], terms[1::2], fillvalue=Const(0)):
            total = low + high
            # Kept, or Yosys would build one compressor tree: on ECP5, 9 × 16 bits take 675 LUTs and
            # 26 bits of adders instead of 145 and 146.
            node = Signal(len(total), name=f"{name}_{len(terms)}_{len(sums)}", attrs={"keep": 1})
            m.d.comb += node.eq(total)
            sums.append(node)
        terms = sums
    return terms[0]
