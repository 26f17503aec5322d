"""A small SVG writer: shapes and text in the colours of a theme, and files that git can compare.

Coordinates are in pixels, y downwards. Numbers are written with at most one decimal, and nothing
depends on the date or on a library's version, so that a figure changes only with what it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

FIGURES = Path(__file__).parent.parent / "figures"
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_MONO = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True)
class Theme:
    """Colours by purpose. ``hues`` can be told apart with colour blindness."""

    name: str
    ink: str
    muted: str
    line: str
    panel: str
    hues: tuple[str, ...]


LIGHT = Theme(
    "light",
    ink="#1f2328",
    muted="#59636e",
    line="#b6bfc8",
    panel="#f3f5f8",
    hues=("#0b6bb0", "#c85a00", "#0a7d5c", "#8e4a9e", "#8a6d00"),
)
DARK = Theme(
    "dark",
    ink="#e6edf3",
    muted="#9ba4ae",
    line="#545d68",
    panel="#1b222c",
    hues=("#5cb3f0", "#f2924a", "#45c79c", "#cf93de", "#d6b84a"),
)


@dataclass
class Drawing:
    """Shapes in painting order. ``title`` is the text for screen readers."""

    width: int
    height: int
    title: str
    theme: Theme
    _shapes: list[str] = field(default_factory=list)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str = "none",
        stroke: str = "none",
        radius: float = 0,
        dash: str = "",
        opacity: float = 1,
        tip: str = "",
    ) -> None:
        """A rectangle; ``tip`` is its tooltip."""
        more = f' rx="{_n(radius)}"' if radius else ""
        more += f' stroke="{stroke}"' if stroke != "none" else ""
        more += f' stroke-dasharray="{dash}"' if dash else ""
        more += f' opacity="{opacity:g}"' if opacity != 1 else ""
        end = f"><title>{escape(tip)}</title></rect>" if tip else "/>"
        self._shapes.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" '
            f'fill="{fill}"{more}{end}'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = 12,
        color: str = "",
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
        turn: float = 0,
        after: float | None = None,
    ) -> None:
        """Text with its baseline at ``y``, aligned by ``anchor`` (start, middle or end), rotated by
        ``turn`` degrees.

        ``mono`` text keeps its blanks. Text of the class ``later`` (`style`) appears ``after`` that
        many seconds.
        """
        more = f' text-anchor="{anchor}"' if anchor != "start" else ""
        more += ' font-weight="600"' if bold else ""
        more += f' font-family="{_MONO}" xml:space="preserve"' if mono else ""
        more += f' class="later" style="animation-delay: {after:.2f}s"' if after is not None else ""
        more += f' transform="rotate({_n(turn)} {_n(x)} {_n(y)})"' if turn else ""
        self._shapes.append(
            f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" '
            f'fill="{color or self.theme.ink}"{more}>{escape(words)}</text>'
        )

    def line(
        self,
        points: Iterable[tuple[float, float]],
        color: str = "",
        width: float = 1.2,
        arrow: str = "",
        dash: str = "",
    ) -> None:
        """A line through ``points``; ``arrow`` is "end", "both" or nothing."""
        color = color or self.theme.muted
        path = list(points)
        more = f' stroke-dasharray="{dash}"' if dash else ""
        self._shapes.append(
            f'<polyline points="{" ".join(f"{_n(x)},{_n(y)}" for x, y in path)}" fill="none" '
            f'stroke="{color}" stroke-width="{_n(width)}"{more}/>'
        )
        if arrow:
            self._head(path[-2], path[-1], color)
        if arrow == "both":
            self._head(path[1], path[0], color)

    def style(self, rules: str) -> None:
        """CSS for the shapes of the figure."""
        self._shapes.append(f"<style>{rules}</style>")

    def circle(self, x: float, y: float, radius: float, fill: str, tip: str = "") -> None:
        end = f"><title>{escape(tip)}</title></circle>" if tip else "/>"
        self._shapes.append(
            f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" fill="{fill}"{end}'
        )

    def _head(self, tail: tuple[float, float], tip: tuple[float, float], color: str) -> None:
        dx, dy = tip[0] - tail[0], tip[1] - tail[1]
        length = (dx * dx + dy * dy) ** 0.5
        ux, uy = dx / length * 6, dy / length * 6
        back = (tip[0] - ux, tip[1] - uy)
        corners = (
            (tip[0] + ux * 0.2, tip[1] + uy * 0.2),
            (back[0] - uy * 0.55, back[1] + ux * 0.55),
            (back[0] + uy * 0.55, back[1] - ux * 0.55),
        )
        points = " ".join(f"{_n(x)},{_n(y)}" for x, y in corners)
        self._shapes.append(f'<polygon points="{points}" fill="{color}"/>')

    def source(self) -> str:
        """The SVG file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" font-family="{_FONT}" role="img">\n'
            f"<title>{escape(self.title)}</title>"
        )
        return "\n".join([head, *self._shapes, "</svg>", ""])


# Draws a figure in the colours of a theme.
Draw = Callable[[Theme], Drawing]


def sources(name: str, draw: Draw) -> Iterator[tuple[Path, str]]:
    """The files of a figure: ``name``.svg for light pages and ``name``-dark.svg for dark ones."""
    for theme, suffix in ((LIGHT, ""), (DARK, "-dark")):
        yield FIGURES / f"{name}{suffix}.svg", draw(theme).source()


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
