"""Timeline of a simulated machine: when each module executes or waits, by cycle."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa

# A cycle with an event: for each of `_MODULES`, the index of its next instruction, and flags. Bits
# 3..0, per unit: the instruction issues to it (fetch, bit 0: the instruction is dispatched). Bits
# 7..4, per unit: its oldest instruction is done. Bits 8 and 9: the instruction lacks a token from
# the previous or next neighbour. Bits 11..10: the unit that will execute the instruction. Bits
# 15..12, per unit: it accepts its next instruction.
MOMENT = np.dtype([("cycle", "<u8"), ("index", "<u4", 4), ("flags", "<u2", 4)])
_MODULES = ("fetch", "load", "compute", "store")
_ENDS, _LACKS_PREV, _LACKS_NEXT, _UNIT, _BEGINS = 4, 8, 9, 10, 12
# Units of compute as in hw.compute, the first for FINISH; load and store have a single unit, named
# like the module.
_COMPUTE_UNITS = ("compute", "compute loads", "gemm", "alu")
LANES = ("fetch", "load", *_COMPUTE_UNITS, "store")
_LACKS = {"prev": _LACKS_PREV, "next": _LACKS_NEXT}
_NEIGHBOURS = {
    module.name.lower(): {
        _LACKS[side]: neighbour.name.lower() for side, neighbour in isa.neighbours(module).items()
    }
    for module in (isa.Module.LOAD, isa.Module.COMPUTE, isa.Module.STORE)
}


@dataclass(frozen=True)
class Span:
    """Cycles ``begin`` up to ``end`` that ``lane`` spent on instruction ``index``.

    The lane executes the instruction or, before that, waits for a token of the module
    ``waits_for``. An instruction may issue, at ``issued``, and be accepted by its unit while its
    predecessor still executes; its span begins when the predecessor ends. So spans of a lane do not
    overlap, except waits for two neighbours, which begin together.
    """

    lane: str
    index: int
    begin: int
    end: int
    issued: int
    waits_for: str | None = None


def spans(moments: Iterable[npt.NDArray[np.void]], start: int, end: int) -> Iterator[Span]:
    """Spans of a run from cycle ``start`` to ``end``, in cycles from ``start``.

    ``moments`` are records of `MOMENT`, in order. Spans cut off by a fault end with the run.
    """
    issued: dict[str, deque[tuple[int, int]]] = {lane: deque() for lane in LANES}
    begun: dict[str, deque[int]] = {lane: deque() for lane in LANES}
    free = dict.fromkeys(LANES, 0)
    waiting: dict[tuple[str, int], tuple[str, int, int]] = {}
    for moment in moments:
        cycle = int(moment["cycle"]) - start
        for module, index, flags in zip(
            _MODULES, moment["index"].tolist(), moment["flags"].tolist(), strict=True
        ):
            if module == "fetch":
                if flags:
                    yield Span("fetch", index, free["fetch"], cycle + 1, free["fetch"])
                    free["fetch"] = cycle + 1
                continue
            for bit, neighbour in _NEIGHBOURS[module].items():
                lane = _lane(module, flags >> _UNIT & 3)
                if flags >> bit & 1:
                    waiting.setdefault((module, bit), (lane, index, cycle))
                elif (module, bit) in waiting:
                    lane, waits, begin = waiting.pop((module, bit))
                    yield Span(lane, waits, begin, cycle, begin, neighbour)
            for unit in range(_ENDS):
                lane = _lane(module, unit)
                if flags >> unit & 1:
                    issued[lane].append((index, cycle))
                if flags >> _BEGINS + unit & 1:
                    begun[lane].append(cycle)
                if flags >> _ENDS + unit & 1 and begun[lane]:
                    done, since = issued[lane].popleft()
                    yield Span(lane, done, max(begun[lane].popleft(), free[lane]), cycle, since)
                    free[lane] = cycle
    for (module, bit), (lane, index, begin) in waiting.items():
        yield Span(lane, index, begin, end - start, begin, _NEIGHBOURS[module][bit])
    for lane, items in issued.items():
        for (index, since), began in zip(items, begun[lane], strict=False):
            yield Span(lane, index, max(began, free[lane]), end - start, since)
            free[lane] = end - start


def _lane(module: str, unit: int) -> str:
    return _COMPUTE_UNITS[unit] if module == "compute" else module


def moment_flags(
    starts: int, begins: int, ends: int, lacks_prev: int, lacks_next: int, unit: int
) -> int:
    """Encode the flags of a module in a `MOMENT`."""
    lacks = lacks_prev << _LACKS_PREV | lacks_next << _LACKS_NEXT
    return starts | ends << _ENDS | lacks | unit << _UNIT | begins << _BEGINS
