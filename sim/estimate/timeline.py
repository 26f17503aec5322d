"""Spans of a replayed stream, in the format of simulated machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.trace.timeline import Span

from .library import NEVER, Replay

_NEIGHBOURS = {
    "load": {"next": "compute"},
    "compute": {"prev": "load", "next": "store"},
    "store": {"prev": "compute"},
}


def spans(config: Config, words: Sequence[int], replay: Replay) -> Iterator[Span]:
    """Spans of a stream of 128-bit ``words`` that completed."""
    decode = isa.instruction_set(config).decode
    free: dict[str, int] = {}
    for index, (word, record) in enumerate(zip(words, replay.records, strict=True)):
        handed, issued, begun, done = (
            int(record[name]) for name in ("handed", "issued", "begun", "done")
        )
        yield Span("fetch", index, free.get("fetch", 0), handed + 1, free.get("fetch", 0))
        free["fetch"] = handed + 1
        instruction = decode(word)
        module = isa.module_of(instruction).name.lower()
        lane = _lane(module, instruction)
        for side, neighbour in _NEIGHBOURS[module].items():
            since, until = int(record[f"lacks_{side}"]), int(record[f"has_{side}"])
            if since != NEVER:
                yield Span(lane, index, since, until, since, neighbour)
        yield Span(lane, index, max(begun, free.get(lane, 0)), done, issued)
        free[lane] = done


def _lane(module: str, instruction: isa.Instruction) -> str:
    """Lane of an instruction, one of `sim.trace.timeline.LANES`."""
    if module != "compute":
        return module
    match instruction:
        case isa.Gemm():
            return "gemm"
        case isa.Alu():
            return "alu"
        case isa.Finish():
            return "compute"
    return "compute loads"
