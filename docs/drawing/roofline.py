"""The roofline of layers: MACs per cycle over MACs per byte that crosses the bus."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from amaranth_vta.measurements.measurement import Measurement

from .svg import Drawing, Theme

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 330, 54, 46, 40
_X, _Y = (2.0, 8.0), (4.0, 8.3)  # axes, as powers of two
TITLE = "Roofline: the convolutions of ResNet-18 lie on the roofs of bus and array"


def draw(theme: Theme, layers: Sequence[Measurement], peak: int, bytes_per_cycle: float) -> Drawing:
    """A dot per layer, below the two roofs: ``peak`` MACs per cycle, and the bus."""
    d = Drawing(_WIDTH, _HEIGHT, TITLE, theme)

    def at(intensity: float, rate: float) -> tuple[float, float]:
        x = (log2(intensity) - _X[0]) / (_X[1] - _X[0])
        y = (log2(rate) - _Y[0]) / (_Y[1] - _Y[0])
        return _LEFT + x * (_WIDTH - _LEFT - 20), _HEIGHT - _BOTTOM - y * (_HEIGHT - _BOTTOM - _TOP)

    for power in range(2, 9):
        x, y = at(2**power, 2 ** _Y[0])
        d.line([(x, y), (x, at(1, 2 ** _Y[1])[1])], theme.panel)
        d.text(x, y + 16, str(2**power), 10.5, theme.muted, "middle")
    for power in range(4, 9):
        x, y = at(2 ** _X[0], 2**power)
        d.line([(x, y), (_WIDTH - 20, y)], theme.panel)
        d.text(x - 6, y + 4, str(2**power), 10.5, theme.muted, "end")
    ridge = peak / bytes_per_cycle
    start = 2 ** _X[0]
    d.line(
        [at(start, start * bytes_per_cycle), at(ridge, peak), at(2 ** _X[1], peak)], theme.ink, 1.6
    )
    d.text(*_above(at(ridge * 2.6, peak)), f"{peak} MACs per cycle", 11, theme.ink)
    x, y = at(10.0, 10.0 * bytes_per_cycle)
    d.text(x + 12, y + 8, f"bus: {bytes_per_cycle:.1f} bytes per cycle", 11, theme.ink)
    for layer in layers:
        assert layer.cycles is not None
        moved = layer.bytes_loaded + layer.bytes_stored
        rate = layer.macs / layer.cycles
        x, y = at(layer.macs / moved, rate)
        hue = theme.hues[1] if "1x1" in layer.name else theme.hues[0]
        tip = f"{layer.name}: {rate:.0f} MACs per cycle, {layer.macs / moved:.0f} MACs per byte"
        d.circle(x, y, 5, hue, tip)
    for number, words in enumerate(("3×3 and 7×7", "1×1, stride 2")):
        y = _HEIGHT - _BOTTOM - 40 + 18 * number
        d.circle(_WIDTH - 130, y, 5, theme.hues[number])
        d.text(_WIDTH - 118, y + 4, words, 11)
    d.text(_WIDTH / 2, _HEIGHT - 10, "MACs per byte over the bus", 11.5, theme.ink, "middle")
    d.text(4, 14, "MACs per cycle", 11.5, theme.ink)
    return d


def _above(point: tuple[float, float]) -> tuple[float, float]:
    return point[0], point[1] - 8
