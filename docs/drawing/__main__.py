"""``python -m docs.drawing [NAME ...]`` draws figures anew: ``make figures`` draws all.

Names are ``blocks``, ``bitfields``, ``pipeline``, ``layers`` and ``tutorials``; the last two run
on the RTL, which takes some minutes when the simulator with a timeline is built first.
"""

from __future__ import annotations

import sys
from functools import partial

from amaranth_vta.bench.layers import measure_layers
from amaranth_vta.hw.config import DEFAULT, PRESETS
from amaranth_vta.sim.machine.dram import memory_timing

from . import bitfields, blocks, pipeline, roofline, timeline, tutorials
from .svg import write

DRAM = "ddr"
# A layer in its steady state, for the first screen: two tiles.
LAYER, BEGIN, END = "3x3 64-64", 200_000, 206_400
# Around the end of a tile, for the tokens.
TOKENS_BEGIN, TOKENS_END = 203_500, 205_000


def _layers() -> None:
    recorder, config = timeline.Recorder(), PRESETS[DEFAULT]
    measured = list(measure_layers(config, "rtl", DRAM, timeline=recorder))
    run = next(run for run in recorder.runs if run.label == LAYER)
    strip = timeline.Strip(run, BEGIN, END, "a 3×3 convolution of ResNet-18, on the RTL")
    title = (
        "Timeline of a convolution on the RTL: while GEMM multiplies one tile, load brings the "
        "next one, and the epilogue and the store of the one before finish"
    )
    note = "one color per tile; dotted: waits for a token"
    write("timeline", lambda theme: timeline.draw(theme, [strip], 440, title, note))
    detail = timeline.Strip(
        run, TOKENS_BEGIN, TOKENS_END, "where one tile ends and the next begins"
    )
    title = "Tokens between load, GEMM, epilogue and store where one tile ends and the next begins"
    write("tokens", lambda theme: timeline.draw(theme, [detail], 760, title, tokens=True))
    words = 1 << 20
    bus = config.bus_bytes * words / memory_timing(DRAM).least_cycles(words, 0)
    peak = config.macs_per_cycle
    write("roofline", lambda theme: roofline.draw(theme, measured, peak, bus))


def _tutorials() -> None:
    before, after = tutorials.runs("4_convolution", ["blocks", "threads"])
    strips = [
        timeline.Strip(before, 0, before.cycles, f"blocks: {before.cycles:,} cycles"),
        timeline.Strip(after, 0, after.cycles, f"virtual threads: {after.cycles:,} cycles"),
    ]
    title = "Timelines of the convolution of the tutorial, before and after virtual threads"
    write("threads", lambda theme: timeline.draw(theme, strips, 760, title))


def _bitfields() -> None:
    for name, title, fields, width in bitfields.words():
        write(name, partial(bitfields.draw, title=title, fields=fields, width=width))


FIGURES = {
    "blocks": lambda: write("blocks", blocks.draw),
    "bitfields": _bitfields,
    "pipeline": lambda: write("pipeline", pipeline.draw),
    "layers": _layers,
    "tutorials": _tutorials,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name]()
