"""Redraw figures: ``python -m docs.drawing [--check] [NAME ...]``; ``make figures`` draws all.

Names are ``blocks``, ``bitfields``, ``pipeline``, ``exploration``, ``terminal``, ``layers`` and
``tutorials``. The last three run on the RTL, which takes some minutes if a simulator must be built
first. With ``--check`` nothing is written: lists stale files and exits with 1 if there are any.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

from amaranth_vta.hw.config import DEFAULT, PRESETS
from amaranth_vta.measurements.layers import measure_layers
from amaranth_vta.sim.devices import RunOptions
from amaranth_vta.sim.machine.dram import memory_timing

from . import bitfields, blocks, exploration, pipeline, roofline, terminal, timeline, tutorials
from .svg import Draw, sources

DRAM = "ddr"
# Cycles of a layer in its steady state, for the first screen: two tiles.
LAYER, BEGIN, END = "3x3 64-64", 200_000, 206_400
# Cycles around the end of a tile, for the figure of tokens.
TOKENS_BEGIN, TOKENS_END = 203_500, 205_000

# Names of figures, each with the function that draws it.
Figures = Iterator[tuple[str, Draw]]


def _blocks() -> Figures:
    yield "blocks", blocks.draw


def _pipeline() -> Figures:
    yield "pipeline", pipeline.draw


def _exploration() -> Figures:
    found = exploration.points()
    yield "exploration", lambda theme: exploration.draw(theme, found)


def _terminal() -> Figures:
    lines = terminal.output()
    yield "terminal", lambda theme: terminal.draw(theme, lines)


def _layers() -> Figures:
    recorder, config = timeline.Recorder(), PRESETS[DEFAULT]
    measured = list(measure_layers(config, RunOptions("rtl", DRAM, timeline=recorder)))
    run = next(run for run in recorder.runs if run.label == LAYER)
    strip = timeline.Strip(run, BEGIN, END, "a 3×3 convolution of ResNet-18, on the RTL")
    title = (
        "Timeline of a convolution on the RTL: while GEMM multiplies one tile, load brings the "
        "next one, and the epilogue and the store of the one before finish"
    )
    note = "one color per tile; dotted: waits for a token"
    yield "timeline", partial(timeline.draw, strips=[strip], width=440, title=title, note=note)
    detail = timeline.Strip(
        run, TOKENS_BEGIN, TOKENS_END, "where one tile ends and the next begins"
    )
    title = "Tokens between load, GEMM, epilogue and store where one tile ends and the next begins"
    yield "tokens", partial(timeline.draw, strips=[detail], width=760, title=title, tokens=True)
    words = 1 << 20
    bus = config.bus_bytes * words / memory_timing(DRAM).least_cycles(words, 0)
    peak = config.macs_per_cycle
    yield "roofline", lambda theme: roofline.draw(theme, measured, peak, bus)


def _tutorials() -> Figures:
    before, after = tutorials.runs("4_convolution", ["blocks", "threads"])
    strips = [
        timeline.Strip(before, 0, before.cycles, f"blocks: {before.cycles:,} cycles"),
        timeline.Strip(after, 0, after.cycles, f"virtual threads: {after.cycles:,} cycles"),
    ]
    title = "Timelines of the convolution of the tutorial, before and after virtual threads"
    yield "threads", lambda theme: timeline.draw(theme, strips, 760, title)


def _bitfields() -> Figures:
    for name, title, fields, width in bitfields.words():
        yield name, partial(bitfields.draw, title=title, fields=fields, width=width)


FIGURES: dict[str, Callable[[], Figures]] = {
    "blocks": _blocks,
    "bitfields": _bitfields,
    "pipeline": _pipeline,
    "exploration": _exploration,
    "terminal": _terminal,
    "layers": _layers,
    "tutorials": _tutorials,
}


def main(arguments: list[str]) -> int:
    names = [name for name in arguments if name != "--check"]
    stale = []
    for name in names or FIGURES:
        for figure, draw in FIGURES[name]():
            for path, source in sources(figure, draw):
                if "--check" not in arguments:
                    path.write_text(source, encoding="utf-8")
                elif not path.exists() or path.read_text(encoding="utf-8") != source:
                    stale.append(path.name)
    if stale:
        print(f"stale, `make figures` draws them anew: {', '.join(stale)}")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
