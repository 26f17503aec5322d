"""SVG plots for the page of an exploration: `scatter`, `roofline`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

# In units of the SVG, which scales to the width of the page.
_WIDTH, _HEIGHT = 480, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 42
POINT, BEST, ROOF = "#a9cbe0", "#e07a5f", "#2a78ad"


@dataclass(frozen=True)
class Mark:
    """A point of a plot, with its tooltip, color and radius."""

    x: float
    y: float
    title: str
    color: str = POINT
    radius: float = 3.5


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic axis from ``low`` to ``high``, over ``length`` units of the SVG from
    ``begin``."""

    low: float
    high: float
    begin: float
    length: float

    @classmethod
    def over(cls, values: Sequence[float], begin: float, length: float) -> LogAxis:
        """An axis with a margin around ``values``, which are positive."""
        low, high = min(values), max(values)
        margin = max((high / low) ** 0.06, 1.03)
        return cls(low / margin, high * margin, begin, length)

    def __call__(self, value: float) -> float:
        share = log10(value / self.low) / log10(self.high / self.low)
        return self.begin + share * self.length

    def ticks(self) -> list[float]:
        """A few round numbers for labels."""
        if self.high < 8 * self.low:
            step = 10.0 ** floor(log10((self.high - self.low) / 2))
            step *= max(n for n in (1, 2, 5) if n == 1 or (self.high - self.low) / (n * step) >= 3)
            return [step * n for n in range(ceil(self.low / step), floor(self.high / step) + 1)]
        decades = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        factors = (1, 2, 5) if self.high < 300 * self.low else (1,)
        found = [f * 10.0**d for d in decades for f in factors]
        found = [value for value in found if self.low <= value <= self.high]
        return found[:: ceil(len(found) / 6)]


def scatter(marks: Sequence[Mark], labels: tuple[str, str], front: Sequence[Mark] = ()) -> str:
    """SVG scatter plot of ``marks`` on logarithmic axes, with a step line through the ``front``."""
    x, y = _axes([mark.x for mark in (*marks, *front)], [mark.y for mark in (*marks, *front)])
    parts = [_frame(x, y, labels)]
    if len(front) > 1:
        path = [f"M {x(front[0].x):.1f} {y(front[0].y):.1f}"]
        for mark in front[1:]:
            path.append(f"H {x(mark.x):.1f} V {y(mark.y):.1f}")
        parts.append(f'<path d="{" ".join(path)}" fill="none" stroke="{BEST}"/>')
    parts += [_circle(mark, x, y) for mark in (*marks, *front)]
    return _svg(parts)


def roofline(marks: Sequence[Mark], peak: float, bandwidth: float, labels: tuple[str, str]) -> str:
    """SVG roofline plot: layers by MACs per byte (x) and MACs per cycle (y), under the roof of
    ``peak`` MACs per cycle and ``bandwidth`` bytes per cycle.
    """
    ridge = peak / bandwidth
    x, y = _axes(
        [*(mark.x for mark in marks), ridge / 4, ridge * 4],
        [*(mark.y for mark in marks), peak, peak / 8],
    )
    roof = (
        f'<path d="M {x(x.low):.1f} {y(max(x.low * bandwidth, y.low)):.1f} L {x(ridge):.1f} '
        f'{y(peak):.1f} H {x(x.high):.1f}" fill="none" stroke="{ROOF}" stroke-width="1.5"/>'
    )
    if x.low * bandwidth < y.low:
        start = y.low / bandwidth
        roof = roof.replace(f"M {x(x.low):.1f}", f"M {x(start):.1f}", 1)
    return _svg([_frame(x, y, labels), roof, *(_circle(mark, x, y) for mark in marks)])


def _axes(xs: Sequence[float], ys: Sequence[float]) -> tuple[LogAxis, LogAxis]:
    across = LogAxis.over(xs, _LEFT, _WIDTH - _LEFT - _RIGHT)
    return across, LogAxis.over(ys, _HEIGHT - _BOTTOM, _TOP + _BOTTOM - _HEIGHT)


def _circle(mark: Mark, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    return (
        f'<circle cx="{x(mark.x):.1f}" cy="{y(mark.y):.1f}" r="{mark.radius:g}" '
        f'fill="{mark.color}"><title>{escape(mark.title)}</title></circle>'
    )


def _frame(x: LogAxis, y: LogAxis, labels: tuple[str, str]) -> str:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for value in x.ticks():
        at = f"{x(value):.1f}"
        parts.append(f'<path d="M {at} {_TOP} V {bottom}" class="grid"/>')
        parts.append(f'<text x="{at}" y="{bottom + 16}" class="middle">{number(value)}</text>')
    for value in y.ticks():
        at = f"{y(value):.1f}"
        parts.append(f'<path d="M {_LEFT} {at} H {right}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at}" class="end">{number(value)}</text>')
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 6}" class="middle">{escape(labels[0])}</text>'
        f'<text transform="translate(13 {(_TOP + bottom) / 2}) rotate(-90)" class="middle">'
        f"{escape(labels[1])}</text>"
    )
    return "\n".join(parts)


def number(value: float) -> str:
    """``value`` with three digits and an SI prefix, such as 1.25M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _svg(parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">\n{body}\n</svg>'


STYLE = """\
.plot { width: 100%; max-width: 720px; display: block; font-size: 12px; }
.plot text { fill: currentColor; }
.plot .grid { stroke: var(--line); }
.plot .middle { text-anchor: middle; }
.plot .end { text-anchor: end; dominant-baseline: middle; }
"""
