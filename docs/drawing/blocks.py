"""The machine as a block diagram: what runs at the same time, and what orders it."""

from __future__ import annotations

from .svg import Drawing, Theme

TITLE = (
    "Block diagram: fetch hands instructions to load, compute and store, which exchange tokens; "
    "GEMM and ALU share two banks of accumulators; all reach DRAM over AXI4"
)


def draw(theme: Theme) -> Drawing:
    """Boxes of the modules and scratchpads, with arrows for data and tokens."""
    d = Drawing(440, 300, TITLE, theme)
    load, gemm, alu, store = theme.hues[:4]

    def box(x: float, y: float, width: float, height: float, color: str, *words: str) -> None:
        d.rect(x, y, width, height, theme.panel, color, radius=5)
        for number, line in enumerate(words):
            middle = y + height / 2 + 4 + (number - (len(words) - 1) / 2) * 14
            d.text(
                x + width / 2,
                middle,
                line,
                11.5 if number == 0 else 10,
                theme.ink if number == 0 else theme.muted,
                "middle",
                bold=number == 0,
            )

    box(10, 8, 420, 26, theme.muted, "fetch")
    for x in (55, 225, 385):
        d.line([(x, 34), (x, 58)], arrow="end")
    d.text(63, 49, "128-bit instructions", 10.5, theme.muted)

    # Compute and its contents.
    d.rect(132, 58, 186, 172, "none", theme.line, radius=7, dash="4 3")
    d.text(225, 75, "compute", 12, theme.ink, "middle", bold=True)
    box(142, 84, 166, 26, theme.muted, "micro-ops (UOP)")
    box(142, 132, 78, 40, gemm, "GEMM", "16 × 16 MAC")
    box(230, 132, 78, 40, alu, "ALU", "epilogue")
    for x in (181, 269):
        d.line([(x, 110), (x, 132)], arrow="end")
        d.line([(x, 172), (x, 194)], arrow="both")
    box(142, 194, 80, 28, theme.muted, "ACC bank 0")
    box(228, 194, 80, 28, theme.muted, "ACC bank 1")
    d.line([(196, 172), (252, 194)], arrow="both")
    d.line([(254, 172), (198, 194)], arrow="both")

    # Load with its scratchpads, and store.
    box(10, 58, 82, 40, load, "load", "rows, padding")
    box(10, 132, 42, 40, theme.muted, "INP")
    box(58, 132, 42, 40, theme.muted, "WGT")
    for x in (31, 79):
        d.line([(x, 98), (x, 132)], arrow="end")
    d.line([(100, 152), (142, 152)], arrow="end")
    box(358, 58, 72, 40, store, "store", "int8 rows")
    d.line([(308, 208), (370, 208), (370, 98)], arrow="end")

    # Tokens between neighbours.
    for x in (92, 318):
        d.line([(x + 3, 78), (x + 37, 78)], theme.hues[4], 1.6, arrow="both")
        d.text(x + 20, 94, "tokens", 10, theme.hues[4], "middle")

    box(10, 262, 420, 28, theme.muted, "DRAM, over AXI4")
    d.line([(4, 276), (4, 78), (10, 78)], arrow="end")
    d.line([(10, 276), (4, 276)])
    d.line([(225, 262), (225, 230)], arrow="end")
    d.text(232, 250, "micro-ops, biases, scales", 10.5, theme.muted)
    d.line([(400, 98), (400, 262)], arrow="end")
    return d
