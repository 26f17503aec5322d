"""The shape of a memory's contents."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TileMemory:
    """Shape of one memory, in elements; an element is one tensor tile.

    ``rows`` x ``columns`` scalars of ``scalar_width`` bits, row-major; a micro-op counts as
    one 32-bit scalar.
    """

    name: str
    rows: int
    columns: int
    scalar_width: int
    depth: int

    @property
    def element_bits(self) -> int:
        return self.rows * self.columns * self.scalar_width

    @property
    def element_bytes(self) -> int:
        return self.element_bits // 8

    @property
    def index_width(self) -> int:
        """Bits of an index into the memory: log2 of its depth."""
        return (self.depth - 1).bit_length()
