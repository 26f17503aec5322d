"""A recording of ``vta run``: the command is typed, then its output appears line by line.

The animation is CSS; viewers without it show the end.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import wrap

from .svg import Drawing, Theme

ROOT = Path(__file__).parents[2]
SHOWN = "vta run digits.onnx --device rtl --inputs images.npz --images 8 --check"
_COLUMNS, _LINES = 80, 12
_CHARACTER, _LINE, _SIZE = 7.8, 17, 13
# Seconds until the command is typed, and from line to line.
_TYPED, _STEP = 0.6, 0.12


def output() -> list[str]:
    """The lines that `SHOWN` prints up to the end of the table, and the line of the comparison."""
    digits = ROOT / "examples" / "digits"
    command = [sys.executable, "-m", "amaranth_vta", *SHOWN.split()[1:]]
    done = subprocess.run(command, cwd=digits, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    compared = next(line for line in lines if line.startswith("ONNX Runtime:"))
    return [*lines[:_LINES], "…", *wrap(compared, _COLUMNS)]


def draw(theme: Theme, lines: list[str]) -> Drawing:
    """The command and ``lines``; as wide as a terminal of 80 columns."""
    width = round(_COLUMNS * _CHARACTER) + 24
    height = _LINE * (len(lines) + 2) + 24
    drawing = Drawing(width, height, f"A terminal: {SHOWN}", theme)
    drawing.style(
        "@keyframes appear { from { opacity: 0 } to { opacity: 1 } }"
        " .later { animation: appear 0.01s both }"
        " @media (prefers-reduced-motion: reduce) { .later { animation: none } }"
    )
    drawing.rect(0, 0, width, height, theme.panel, theme.line, radius=8)
    drawing.text(12, 12 + _LINE, f"$ {SHOWN}", _SIZE, bold=True, mono=True, after=0.1)
    for number, line in enumerate(lines):
        y = 12 + _LINE * (number + 2.4)
        color = theme.hues[2] if number > _LINES else ""
        drawing.text(12, y, line, _SIZE, color, mono=True, after=_TYPED + _STEP * number)
    return drawing
