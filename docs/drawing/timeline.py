"""Timelines of real runs: what load, GEMM, the epilogue and store did, cycle by cycle."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.trace.perfetto import Timeline
from amaranth_vta.sim.trace.timeline import Span

from .svg import Drawing, Theme

# Lanes of the trace that are drawn, with their labels.
LANES = {"load": "load", "gemm": "GEMM", "alu": "epilogue", "store": "store"}
_LEFT, _RIGHT, _BAR, _PITCH = 62, 12, 24, 38


@dataclass
class Run:
    """One run of an instruction stream on a device with a clock."""

    label: str
    instructions: list[isa.Instruction | isa.Unknown]
    spans: list[Span]
    cycles: int

    def starts_of_tiles(self) -> list[int]:
        """Indices of the first instruction after each epilogue, where the next tile begins."""
        after = []
        for index, instruction in enumerate(self.instructions[:-1]):
            following = self.instructions[index + 1]
            if isinstance(instruction, isa.Alu) and not isinstance(following, isa.Alu):
                after.append(index + 1)
        return after


class Recorder(Timeline):
    """Keeps the spans of every run instead of writing them."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Run] = []
        self._for = ""

    def begin(self, label: str) -> None:
        self._for = label

    def add(
        self,
        config: Config,
        words: list[int],
        spans: Iterable[Span],
        cycles: int,
        estimated: bool = False,
    ) -> None:
        decode = isa.instruction_set(config).decode
        self.runs.append(Run(self._for, [decode(word) for word in words], list(spans), cycles))


@dataclass(frozen=True)
class Strip:
    """Cycles ``begin`` up to ``end`` of a run, under a caption."""

    run: Run
    begin: int
    end: int
    caption: str


def draw(
    theme: Theme,
    strips: Sequence[Strip],
    width: int,
    title: str,
    note: str = "",
    tokens: bool = False,
) -> Drawing:
    """Draw the strips below one another on one scale of cycles; colours change with the tile.

    With ``tokens``, an arrow leads from the instruction that pushes a token to the one that pops
    it.
    """
    height = sum(28 + _PITCH * len(LANES) for _ in strips) + 26 + (18 if note else 0)
    d = Drawing(width, height, title, theme)
    longest = max(strip.end - strip.begin for strip in strips)
    scale = (width - _LEFT - _RIGHT) / longest
    top = 0.0
    for strip in strips:
        d.text(_LEFT, top + 18, strip.caption, 12, theme.ink, bold=True)
        top += 28
        _lanes(d, strip, top, scale)
        if tokens:
            _tokens(d, strip, top, scale)
        top += _PITCH * len(LANES)
    _axis(d, top, longest, scale)
    if note:
        d.text(_LEFT, top + 38, note, 10.5, theme.muted)
    return d


def _lanes(d: Drawing, strip: Strip, top: float, scale: float) -> None:
    starts = strip.run.starts_of_tiles()
    for number, (lane, words) in enumerate(LANES.items()):
        y = top + number * _PITCH + (_PITCH - _BAR) / 2
        d.text(_LEFT - 8, y + _BAR / 2 + 4, words, 12, d.theme.ink, "end")
        d.rect(_LEFT, y, (strip.end - strip.begin) * scale, _BAR, d.theme.panel)
        for span in strip.run.spans:
            begin, end = max(span.begin, strip.begin), min(span.end, strip.end)
            if span.lane != lane or begin >= end:
                continue
            x, length = _LEFT + (begin - strip.begin) * scale, (end - begin) * scale
            if span.waits_for:
                middle = y + _BAR / 2
                d.line([(x, middle), (x + length, middle)], d.theme.line, dash="2 2")
                continue
            tile = _tile(starts, span)
            hue = d.theme.hues[tile % 3]
            tip = f"{words}, tile {tile}: instruction {span.index}, {span.end - span.begin} cycles"
            d.rect(x, y, max(length - 0.6, 0.6), _BAR, hue, tip=tip)


def _tokens(d: Drawing, strip: Strip, top: float, scale: float) -> None:
    executed = {span.index: span for span in strip.run.spans if not span.waits_for}
    lanes = list(LANES)
    for giver, taker in _passed(strip.run.instructions):
        if giver not in executed or taker not in executed:
            continue
        given, taken = executed[giver], executed[taker]
        if given.lane not in LANES or taken.lane not in LANES:
            continue
        if not strip.begin <= given.end <= taken.begin <= strip.end:
            continue
        ends = []
        rows = [lanes.index(given.lane), lanes.index(taken.lane)]
        for cycle, row, other in ((given.end, *rows), (taken.begin, *rows[::-1])):
            y = top + row * _PITCH + _PITCH / 2 + (_BAR / 2 if other > row else -_BAR / 2)
            ends.append((_LEFT + (cycle - strip.begin) * scale, y))
        if ends[0] != ends[1]:
            d.line(ends, d.theme.ink, 1.2, arrow="end")


def _passed(instructions: Sequence[isa.Instruction | isa.Unknown]) -> Iterator[tuple[int, int]]:
    """Indices of the instructions that push and pop each token; token queues are in order."""
    order = ("load", "compute", "store")
    given: dict[tuple[str, str], list[int]] = {}
    taken: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(instructions):
        here = _module(item)
        place = order.index(here)
        for flag, step in ((item.push_prev, -1), (item.push_next, 1)):
            if flag:
                given.setdefault((here, order[place + step]), []).append(index)
        for flag, step in ((item.pop_prev, -1), (item.pop_next, 1)):
            if flag:
                taken.setdefault((order[place + step], here), []).append(index)
    for queue, givers in given.items():
        yield from zip(givers, taken.get(queue, []), strict=False)


def _module(item: isa.Instruction | isa.Unknown) -> str:
    if isinstance(item, isa.Store):
        return "store"
    if isinstance(item, isa.Load) and item.memory in (isa.Memory.INP, isa.Memory.WGT):
        return "load"
    return "compute"


def _tile(starts: Sequence[int], span: Span) -> int:
    """The tile of an instruction; a store follows the epilogue of its tile."""
    after = bisect_left(starts, span.index + 1)
    return after - 1 if span.lane == "store" else after


def _axis(d: Drawing, y: float, longest: int, scale: float) -> None:
    step = next(s for s in (100, 200, 500, 1000, 2000, 5000, 10000, 20000) if longest / s <= 8)
    for cycle in range(0, longest + 1, step):
        x = _LEFT + cycle * scale
        d.line([(x, y), (x, y + 5)], d.theme.line)
        d.text(x, y + 18, f"{cycle:,}", 10.5, d.theme.muted, "middle" if cycle else "start")
    d.text(_LEFT - 8, y + 18, "cycles", 10.5, d.theme.muted, "end")
