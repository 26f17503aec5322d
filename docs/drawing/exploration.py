"""The machines of an exploration: LUTs over cycles per image, and the Pareto front."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path

from amaranth_vta.explore.exploration import Exploration, read_networks
from amaranth_vta.explore.folder import Folder
from amaranth_vta.explore.machines import CandidateMachine
from amaranth_vta.explore.results import Row
from amaranth_vta.explore.spec import load_spec
from amaranth_vta.explore.workers import Workers

from .svg import Drawing, Theme

SPEC = Path(__file__).parents[2] / "examples" / "exploration" / "digits.toml"
TITLE = "Twelve machines for the digits: LUTs over cycles per image, and the Pareto front"
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 340, 62, 24, 40, 46
_X, _Y = (5_000.0, 38_000.0), (8_000.0, 25_000.0)  # logarithmic axes
_ACROSS, _UP = (6_000, 8_000, 10_000, 15_000, 20_000, 30_000), (8_000, 10_000, 15_000, 20_000)


@dataclass(frozen=True)
class Point:
    """A machine with its cycles per image and LUTs; ``front`` tells whether it is on the front."""

    name: str
    cycles: int
    lut: int
    front: bool

    @property
    def tip(self) -> str:
        return f"{self.name}: {self.cycles:,} cycles, {self.lut:,} LUTs"


def points() -> list[Point]:
    """The points of `SPEC`, evaluated without simulation."""
    spec = replace(load_spec(str(SPEC)), rtl=0)
    exploration = Exploration(spec, read_networks(spec))
    with (
        tempfile.TemporaryDirectory() as folder,
        Folder(f"{folder}/points", spec, exploration.digests, False) as opened,
        Workers(1, None) as workers,
    ):
        exploration.run(opened, workers, lambda _: None)
    best = {rows[0].machine.values for rows in exploration.best}
    return [_point(row, row.machine.values in best) for row in exploration.rows]


def _point(row: Row, front: bool) -> Point:
    area, run = row.machine.area, row.run
    assert area is not None
    assert run is not None
    return Point(described(row.machine), run.cycles // run.images, round(area.lut), front)


def described(machine: CandidateMachine) -> str:
    """The parameters that machines of `SPEC` differ in."""
    config = machine.config
    assert config is not None
    name = f"{config.block_in}×{config.block_out}, {8 * config.bus_bytes}-bit bus"
    return f"{name}, OVERLAP" if config.overlap else name


def draw(theme: Theme, found: Sequence[Point]) -> Drawing:
    """A dot per machine; a stepped line joins the labelled machines of the Pareto front."""
    d = Drawing(_WIDTH, _HEIGHT, TITLE, theme)
    bottom = _HEIGHT - _BOTTOM

    def at(cycles: float, lut: float) -> tuple[float, float]:
        x = log2(cycles / _X[0]) / log2(_X[1] / _X[0])
        y = log2(lut / _Y[0]) / log2(_Y[1] / _Y[0])
        return _LEFT + x * (_WIDTH - _LEFT - _RIGHT), bottom - y * (bottom - _TOP)

    for cycles in _ACROSS:
        x, _ = at(cycles, _Y[0])
        d.line([(x, bottom), (x, _TOP)], theme.panel)
        d.text(x, bottom + 16, f"{cycles:,}", 10.5, theme.muted, "middle")
    for lut in _UP:
        _, y = at(_X[0], lut)
        d.line([(_LEFT, y), (_WIDTH - _RIGHT, y)], theme.panel)
        d.text(_LEFT - 6, y + 4, f"{lut:,}", 10.5, theme.muted, "end")
    front = sorted((point for point in found if point.front), key=lambda point: point.cycles)
    steps = [at(front[0].cycles, front[0].lut)]
    for point in front[1:]:
        x, y = at(point.cycles, point.lut)
        steps += [(x, steps[-1][1]), (x, y)]
    d.line(steps, theme.hues[1], 1.4)
    for point in found:
        x, y = at(point.cycles, point.lut)
        d.circle(x, y, 5 if point.front else 4, theme.hues[1 if point.front else 0], point.tip)
        if point.front:
            d.text(x - 7, y + 12, point.name, 10, theme.ink, "end")  # no machine is better
    d.text(_WIDTH / 2, _HEIGHT - 8, "cycles per image", 11.5, theme.ink, "middle")
    d.text(4, 14, "LUTs", 11.5, theme.ink)
    for number, words in enumerate(("within the limits", "Pareto front")):
        x = _WIDTH - _RIGHT - 250 + 130 * number
        d.circle(x, 20, 5, theme.hues[number])
        d.text(x + 12, 24, words, 11)
    return d
