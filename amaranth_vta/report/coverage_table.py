"""The coverage of random programs, as text tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from amaranth_vta.hw import isa
from amaranth_vta.sim.fuzz.coverage import ASPECTS, FAULTS, TOTAL, Point

from .text_table import text_table

_CAUSES = tuple(cause.name.lower() for cause in isa.Cause)


def coverage_tables(covered: Mapping[Point, int], width: int | None = None) -> Iterator[str]:
    """Tables of how often each kind of instruction occurred, in total and by aspect, and of the
    faults that ended programs. A dot marks a point that no program reached.
    """
    kinds = sorted({point.kind for point in covered if not point.kind.startswith(FAULTS)})
    for aspects in ASPECTS:
        rows = [
            [kind, f"{covered[Point(kind, TOTAL)]:,}", *_cells(covered, kind, aspects)]
            for kind in kinds
            if any(Point(kind, aspect) in covered for aspect in aspects)
        ]
        if rows:
            heads = ["instruction", TOTAL, *(aspect.replace(" ", "\n") for aspect in aspects)]
            yield text_table(heads, rows, width=width)
    modules = sorted({point.kind for point in covered if point.kind.startswith(FAULTS)})
    if modules:
        heads = ["program ends at a", *(cause.replace("_", "\n") for cause in _CAUSES)]
        rows = [[module, *_cells(covered, module, _CAUSES)] for module in modules]
        yield text_table(heads, rows, width=width)


def _cells(covered: Mapping[Point, int], kind: str, aspects: tuple[str, ...]) -> list[str]:
    counts = (covered.get(Point(kind, aspect), 0) for aspect in aspects)
    return [f"{count:,}" if count else "·" for count in counts]
