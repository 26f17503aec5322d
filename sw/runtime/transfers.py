"""Encodes transfers of any size, stride and padding as LOADs and STOREs.

All counts are in elements of the memory that is loaded or stored. A transfer that exceeds the
fields of one instruction is split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Memory, Module

from .kernels import CommandError
from .memory import Buffer

_SIZES = (1 << isa.SIZE_WIDTH) - 1
_DRAM_ELEMENTS = 1 << isa.DRAM_BASE_WIDTH


@dataclass(frozen=True)
class TransferredMemory:
    """Properties of LOADs and STOREs of one memory that follow from the configuration.

    ``head`` are the bits of such an instruction with all other fields 0. ``padding`` selects the
    padding value of its loads, of ``scalar_width`` bits; None if it cannot be set.
    """

    name: str
    module: Module
    head: int
    element_bytes: int
    depth: int
    padding: isa.Padding | None
    scalar_width: int

    @classmethod
    def of(cls, memory: Memory, config: Config) -> TransferredMemory:
        empty = {"memory": memory, "y_size": 0, "x_size": 0}
        instruction = isa.Store(**empty) if memory is Memory.OUT else isa.Load(**empty)
        geometry = config.memory(memory)
        return cls(
            memory.name,
            isa.module_of(instruction),
            isa.instruction_set(config).encode(instruction),
            geometry.element_bytes,
            geometry.depth,
            isa.padding_of(memory),
            config.memory(isa.filled_by(memory)).scalar_width,
        )

    def check_pad_value(self, value: int, config: Config) -> None:
        """Raises `CommandError` if ``value`` is not 0 and loads cannot be padded with it."""
        if not config.pad_value or self.padding is None:
            why = "are" if config.pad_value else "of a machine without PAD_VALUE are"
            raise CommandError(
                f"a load of {self.name} padded with {value}: those {why} padded with 0"
            )
        limit = 1 << self.scalar_width - 1
        if not -limit <= value < limit:
            raise CommandError(
                f"a load of {self.name} padded with {value}, which is not within int"
                f"{self.scalar_width}"
            )

    def check_reach(self, verb: str, sram_index: int, count: int) -> None:
        """Raises `CommandError` unless the ``count`` elements at ``sram_index`` exist."""
        if sram_index < 0 or sram_index + count > self.depth:
            raise CommandError(
                f"a {verb} reaches {self.name} {sram_index} to {sram_index + count - 1}; the "
                f"scratchpad has 0 to {self.depth - 1}"
            )

    def rows_of(
        self, buffer: Buffer, element_offset: int, x_size: int, y_size: int, x_stride: int
    ) -> MemoryRows:
        """Rows that begin at an element of ``buffer``. Raises `CommandError` if they exceed the
        buffer, or if instructions cannot address them.
        """
        if buffer.address % self.element_bytes:
            raise CommandError(
                f"{buffer.name} lies at {buffer.address:#x}, no multiple of the "
                f"{self.element_bytes} bytes of a {self.name} element"
            )
        rows = MemoryRows(
            buffer.address // self.element_bytes + element_offset, x_size, y_size, x_stride
        )
        if min(x_size, y_size, x_stride) < 0:
            raise CommandError(
                f"a transfer of {y_size} rows of {x_size} elements, {x_stride} apart: none can be "
                "negative"
            )
        end = element_offset + rows.reach if rows.reach else 0
        if element_offset < 0 or end * self.element_bytes > buffer.size:
            raise CommandError(
                f"a transfer reaches elements {element_offset} to {end - 1} of {buffer.name}, "
                f"which has {buffer.size // self.element_bytes} {self.name} elements "
                f"({buffer.size} bytes)"
            )
        if rows.base >= _DRAM_ELEMENTS:
            raise CommandError(
                f"{buffer.name} lies at {buffer.address:#x}, beyond the addressable range: "
                f"instructions address "
                f"{_DRAM_ELEMENTS:,} elements of {self.name}, {self.element_bytes} bytes each"
            )
        return rows


class MemoryRows(NamedTuple):
    """``y_size`` rows of ``x_size`` elements in device memory, ``x_stride`` elements apart.

    The first element has index ``base``, counted from address 0.
    """

    base: int
    x_size: int
    y_size: int = 1
    x_stride: int = 0

    @property
    def reach(self) -> int:
        """Number of elements from the first to the last, inclusive."""
        return (self.y_size - 1) * self.x_stride + self.x_size if self.x_size and self.y_size else 0


class Pads(NamedTuple):
    """Columns and rows of padding around rows."""

    x_before: int = 0
    y_before: int = 0
    x_after: int = 0
    y_after: int = 0

    def around(self, rows: MemoryRows) -> int:
        """Number of scratchpad elements of ``rows`` with this padding."""
        row = self.x_before + rows.x_size + self.x_after
        return (self.y_before + rows.y_size + self.y_after) * row

    @property
    def any_bits(self) -> int:
        """The bitwise or of all pads: 0 without padding, negative if one is negative."""
        return self.x_before | self.x_after | self.y_before | self.y_after


NO_PADS = Pads()


class Transfer(NamedTuple):
    """One instruction; ``moves`` is False if it only pads and therefore has no address."""

    bits: int
    moves: bool


class TransferEncoder:
    """Encodes the LOADs and STOREs of one configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._memories = {
            memory: TransferredMemory.of(memory, config)
            for memory in isa.transferred_memories(config.extensions)
        }
        fields = isa.instruction_set(config).layouts[isa.Opcode.LOAD]
        self._at_sram_base = fields["sram_base"].offset
        self._at_dram_base = fields["dram_base"].offset
        self._at_y_size = fields["y_size"].offset
        self._at_x_size = fields["x_size"].offset
        self._at_x_stride = fields["x_stride"].offset
        self._at_y_pad_0 = fields["y_pad_0"].offset
        self._at_y_pad_1 = fields["y_pad_1"].offset
        self._at_x_pad_0 = fields["x_pad_0"].offset
        self._at_x_pad_1 = fields["x_pad_1"].offset

    def memory(self, memory: Memory) -> TransferredMemory:
        return self._memories[memory]

    def forward(self, rows: MemoryRows, pads: Pads, sram_index: int, pad_value: int) -> int:
        """Encode a FORWARD of ``rows`` of accumulators to INP, with ``pads`` around them. Raises
        `CommandError` if one instruction does not suffice, or the machine has no FORWARD.
        """
        if not self._config.forward:
            raise CommandError("the machine has no extension FORWARD")
        inputs = self._memories[Memory.INP]
        fields = (rows.x_size | rows.y_size | rows.x_stride) >> isa.SIZE_WIDTH
        if fields or pads.any_bits >> isa.PAD_WIDTH or min(*rows, 0) < 0:
            raise CommandError(f"one instruction cannot forward {rows} with {pads}")
        self._memories[Memory.OUT].check_reach("forward", rows.base, rows.reach)
        inputs.check_reach("forward", sram_index, pads.around(rows))
        if pad_value:
            inputs.check_pad_value(pad_value, self._config)
        return isa.instruction_set(self._config).encode(
            isa.Forward(
                sram_base=sram_index,
                dram_base=isa.forward_base(rows.base, pad_value),
                y_size=rows.y_size,
                x_size=rows.x_size,
                x_stride=rows.x_stride,
                y_pad_0=pads.y_before,
                y_pad_1=pads.y_after,
                x_pad_0=pads.x_before,
                x_pad_1=pads.x_after,
            )
        )

    def load(
        self, memory: TransferredMemory, sram_index: int, rows: MemoryRows, pads: Pads
    ) -> Iterable[Transfer]:
        """Load ``rows``, padded by ``pads``, to consecutive elements from ``sram_index`` on."""
        x_size, y_size, any_pad = rows.x_size, rows.y_size, pads.any_bits
        sizes = x_size | y_size | rows.x_stride
        if x_size and y_size and not sizes >> isa.SIZE_WIDTH and not any_pad >> isa.PAD_WIDTH:
            return (Transfer(self.encode(memory, sram_index, rows, pads), moves=True),)
        return self._load_in_parts(memory, sram_index, rows, pads)

    def _load_in_parts(
        self, memory: TransferredMemory, sram_index: int, rows: MemoryRows, pads: Pads
    ) -> Iterator[Transfer]:
        x_size, y_size = rows.x_size, rows.y_size
        if pads.any_bits < 0:
            raise CommandError(
                f"a load padded by {pads.x_before}, {pads.y_before}, {pads.x_after}, "
                f"{pads.y_after}: no padding can be negative"
            )
        row = pads.x_before + x_size + pads.x_after
        if not x_size or not y_size:
            yield from self.padding(memory, sram_index, pads.around(rows))
            return
        yield from self.padding(memory, sram_index, pads.y_before * row)
        start = sram_index + pads.y_before * row
        yield from self._padded_rows(memory, start, rows, pads)
        yield from self.padding(memory, start + y_size * row, pads.y_after * row)

    def rows(
        self, memory: TransferredMemory, sram_index: int, rows: MemoryRows, pads: Pads = NO_PADS
    ) -> Iterator[Transfer]:
        """Transfer ``rows`` of any size and stride in as few instructions as their fields allow."""
        x_size, y_size, x_stride = rows.x_size, rows.y_size, rows.x_stride
        row = pads.x_before + x_size + pads.x_after
        if x_size <= _SIZES and (x_stride <= _SIZES or y_size == 1):
            for y in range(0, y_size, _SIZES):
                height = min(_SIZES, y_size - y)
                stride = x_stride if height > 1 else 0
                part = MemoryRows(rows.base + y * x_stride, x_size, height, stride)
                yield Transfer(self.encode(memory, sram_index + y * row, part, pads), moves=True)
            return
        for y in range(y_size):
            for x in range(0, x_size, _SIZES):
                part = MemoryRows(rows.base + y * x_stride + x, min(_SIZES, x_size - x))
                # A row that needs two instructions fills the scratchpad, so it has no padding.
                start = sram_index + y * row + x
                yield Transfer(self.encode(memory, start, part, pads), moves=True)

    def encode(
        self, memory: TransferredMemory, sram_index: int, rows: MemoryRows, pads: Pads = NO_PADS
    ) -> int:
        """Encode one instruction; all values must fit its fields."""
        return (
            memory.head
            | sram_index << self._at_sram_base
            | rows.base << self._at_dram_base
            | rows.y_size << self._at_y_size
            | rows.x_size << self._at_x_size
            | rows.x_stride << self._at_x_stride
            | pads.y_before << self._at_y_pad_0
            | pads.y_after << self._at_y_pad_1
            | pads.x_before << self._at_x_pad_0
            | pads.x_after << self._at_x_pad_1
        )

    def _padded_rows(
        self, memory: TransferredMemory, start: int, rows: MemoryRows, pads: Pads
    ) -> Iterator[Transfer]:
        if not (pads.x_before | pads.x_after) >> isa.PAD_WIDTH:
            yield from self.rows(memory, start, rows, pads._replace(y_before=0, y_after=0))
            return
        row = pads.x_before + rows.x_size + pads.x_after
        for y in range(rows.y_size):
            at = start + y * row
            data = MemoryRows(rows.base + y * rows.x_stride, rows.x_size)
            yield from self.padding(memory, at, pads.x_before)
            yield from self.rows(memory, at + pads.x_before, data)
            yield from self.padding(memory, at + pads.x_before + rows.x_size, pads.x_after)

    def padding(self, memory: TransferredMemory, sram_index: int, count: int) -> Iterator[Transfer]:
        """Load ``count`` elements of padding, as rows of padding around no data."""
        for x in range(0, count, _SIZES):
            nothing = MemoryRows(0, min(_SIZES, count - x), y_size=0)
            bits = self.encode(memory, sram_index + x, nothing, Pads(y_before=1))
            yield Transfer(bits, moves=False)
