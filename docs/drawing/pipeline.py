"""The pipelines of GEMM and ALU: which micro-op is in which stage, cycle by cycle."""

from __future__ import annotations

from amaranth_vta.hw.timing import DOT_PRODUCT_LATENCY, REQUANTIZING_ALU_LATENCY

from .svg import Drawing, Theme

_CELL, _ROW, _LEFT, _MICRO_OPS = 78, 32, 118, 3
TITLE = "Stages of three micro-ops in GEMM and in the ALU: each takes one micro-op per cycle"


def draw(theme: Theme) -> Drawing:
    """Three micro-ops of each unit, one line each; the columns are cycles."""
    adds = ["add"] * (DOT_PRODUCT_LATENCY - 3)
    gemm = ["read INP, WGT", "multiply", *adds, "add, read ACC", "add", "add, write ACC"]
    alu = ["read ACC", *["lane"] * REQUANTIZING_ALU_LATENCY, "write ACC"]
    cycles = max(len(gemm), len(alu)) + _MICRO_OPS - 1
    block = 12 + _ROW * _MICRO_OPS
    d = Drawing(_LEFT + _CELL * cycles + 4, 24 + 2 * block, TITLE, theme)
    for cycle in range(cycles):
        words = "t" if cycle == 0 else f"t + {cycle}"
        d.text(_LEFT + _CELL * (cycle + 0.5), 14, words, 11, theme.muted, "middle")
    for number, (name, stages) in enumerate((("GEMM", gemm), ("ALU", alu))):
        top = 24 + number * block
        for micro_op in range(_MICRO_OPS):
            y = top + micro_op * _ROW
            hue = theme.hues[micro_op]
            d.text(_LEFT - 8, y + 20, f"{name} micro-op {micro_op}", 11, theme.muted, "end")
            for stage, words in enumerate(stages):
                x = _LEFT + _CELL * (micro_op + stage)
                d.rect(x + 1, y + 3, _CELL - 2, _ROW - 6, theme.panel, hue, radius=3)
                d.text(x + _CELL / 2, y + 20, words, 10, theme.ink, "middle")
    return d
