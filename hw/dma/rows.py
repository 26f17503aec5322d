"""Rows of a transfer, with the commands of the walkers over bursts, beats and padding.

A LOAD or STORE moves rows of elements between strided places in memory and consecutive places in a
scratchpad. Address generation runs ahead of data: `BurstWalker`, which cuts rows into bursts, and
`BeatWalker`, which determines the destination of each beat, walk the same rows independently.
`PaddingWalker` enumerates the elements around the rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from amaranth.hdl import Cat, Value, signed, unsigned
from amaranth.lib import data
from amaranth.utils import exact_log2

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.interfaces import address_width
from amaranth_vta.hw.microarchitecture import Microarchitecture


@dataclass(frozen=True)
class Kind:
    """How the elements of a memory map to beats.

    A beat holds ``elements`` elements, or an element takes ``beats`` beats; one of them is 1. With
    ``serial``, a step handles one of several elements in a beat.
    """

    memory: isa.Memory
    element_bytes: int
    elements: int
    beats: int
    serial: bool = False

    @property
    def log_bytes(self) -> int:
        return exact_log2(self.element_bytes)

    @property
    def step(self) -> int:
        """Maximum number of elements per step."""
        return 1 if self.serial else self.elements

    def lane(self, index: Value) -> Value:
        """Lane of element ``index`` in its beat."""
        return index[: exact_log2(self.elements)]

    @classmethod
    def of(cls, config: Config, memory: isa.Memory) -> Self:
        """Mapping of ``memory`` in DRAM. Elements that are widened on load are serial."""
        tile = config.memory(memory)
        elements = max(1, config.bus_bytes // tile.element_bytes)
        return cls(
            memory=memory,
            element_bytes=tile.element_bytes,
            elements=elements,
            beats=max(1, tile.element_bytes // config.bus_bytes),
            serial=widening(config, memory) > 1 and elements > 1,
        )


def widening(config: Config, memory: isa.Memory) -> int:
    """Width of a scalar in the scratchpad divided by its width in DRAM."""
    filled = config.memory(isa.filled_by(memory))
    return filled.scalar_width // config.memory(memory).scalar_width


class Rows:
    """Field widths that suffice for the transfers of ``kinds`` in ``config``.

    Only transfers in range arrive here, so rows, and elements per row, are at most the depth of the
    deepest memory.
    """

    def __init__(
        self, config: Config, kinds: Sequence[Kind], choices: Microarchitecture | None = None
    ) -> None:
        self.kinds = tuple(kinds)
        # Whether the end of a row is computed one cycle ahead.
        self.looks_ahead = (choices or Microarchitecture.of(config)).row_end_lookahead
        self.depth = max(config.memory(kind.memory).depth for kind in kinds)
        self.bus_bytes = config.bus_bytes
        self.address = unsigned(address_width(config))
        self.count = range(self.depth + 1)
        self.elements = max(kind.elements for kind in kinds)
        self.lane = range(max(max(kind.elements, kind.beats) for kind in kinds))
        # Index of the element in the first lane of a beat, which may lie before the scratchpad.
        self.index = signed(exact_log2(max(self.depth, self.elements)) + 2)
        self.kind = range(len(kinds))
        self.row_bytes = range(self.depth * max(kind.element_bytes for kind in kinds))
        # A padding scalar; zero bits where padding is always zero.
        self.scalar = unsigned(
            max(
                config.memory(kind.memory).scalar_width
                if config.pad_value and isa.padding_of(kind.memory) is not None
                else 0
                for kind in kinds
            )
        )
        self.stride = range((1 << isa.SIZE_WIDTH) * max(kind.element_bytes for kind in kinds))

    def of_kind(self, number: Value, of: Callable[[Kind], Value]) -> Value:
        """The one-bit property ``of`` the kind with this ``number``."""
        return Cat((number == place) & of(kind) for place, kind in enumerate(self.kinds)).any()

    def bursts(self) -> data.StructLayout:
        """Command of `BurstWalker`: ``rows`` rows (at least one) of ``last_byte`` + 1 bytes, the
        first at ``address``, each ``stride`` bytes after its predecessor.
        """
        return data.StructLayout(
            {
                "address": self.address,
                "stride": self.stride,
                "last_byte": self.row_bytes,
                "rows": self.count,
            }
        )

    def beats(self) -> data.StructLayout:
        """Command of `BeatWalker`: ``rows`` rows (at least one) of ``row_size`` elements.

        Element ``index`` of the scratchpad is the first; ``gap`` elements lie between rows. The
        first row starts in ``lane``, which grows by ``lane_stride`` per row.
        """
        lane = unsigned(exact_log2(self.elements))
        return data.StructLayout(
            {
                "kind": self.kind,
                "index": self.index,
                "row_size": self.count,
                "rows": self.count,
                "gap": range(2 << isa.PAD_WIDTH),
                "lane": lane,
                "lane_stride": lane,
            }
        )

    def padding(self) -> data.StructLayout:
        """Command of `PaddingWalker`: the fields of a LOAD with padding, the ``width`` of a padded
        row, and the scalar ``value``.
        """
        pad = unsigned(isa.PAD_WIDTH)
        return data.StructLayout(
            {
                "kind": self.kind,
                "index": self.index,
                "x_size": self.count,
                "y_size": self.count,
                "width": self.count,
                "y_pad_0": pad,
                "y_pad_1": pad,
                "x_pad_0": pad,
                "x_pad_1": pad,
                "value": self.scalar,
            }
        )
