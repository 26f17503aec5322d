"""Floor plan of a placed design, with its critical path: `FloorPlan`, `drawn`."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

# Parts of a design, in the order of the legend, each with a regular expression for its cell names
# and a colour; the first match wins.
_PARTS = {
    "fetch and queues": (r"\.(fetch|queues|instructions|insn__payload)\b", "#8a6d00"),
    "load and its scratchpads": (r"\.machine\.(load|inp|wgt)\b", "#0b6bb0"),
    "GEMM": (r"\.compute\.gemm\b", "#c85a00"),
    "ALU": (r"\.compute\.alu\b", "#0a7d5c"),
    "accumulators": (r"\.compute\.accumulators\b", "#8e4a9e"),
    "compute: micro-ops, loads": (r"\.compute\b", "#d6b84a"),
    "store": (r"\.machine\.store\b", "#b3304f"),
    "memory of the board": (r"^system\.(memory|sdram)\b", "#5cb3f0"),
    "link to the host": (r"^system\.(link|receiver|transmitter)\b", "#45c79c"),
    "registers, bus and the rest": (r"", "#8b949e"),
}
_SITE = re.compile(r"X(\d+)/?Y(\d+)")
# Suffixes that synthesis and packing append to the name of a signal or an instance.
_MADE = re.compile(r"(_(TRELLIS|LUT4|CCU2C?|MULT|PFUMX|DFF|SB_|ALU_)|\$).*")
_WIDTH, _LEGEND_WIDTH, _ROW, _MARGIN = 720, 220, 22, 12

Place = tuple[int, int]


@dataclass(frozen=True)
class CriticalPath:
    """The path that limits the clock, from register to register: names of its first and last cell,
    nanoseconds in logic and in routing, and the tiles along it.
    """

    begin: str
    end: str
    logic_ns: float
    routing_ns: float
    places: tuple[Place, ...]

    @property
    def ns(self) -> float:
        return self.logic_ns + self.routing_ns

    def __str__(self) -> str:
        where = self.begin if self.begin == self.end else f"{self.begin} -> {self.end}"
        return f"{self.logic_ns:.1f} + {self.routing_ns:.1f} ns, {where}"

    def to_dict(self) -> dict[str, Any]:
        """For a manifest: without tiles, times rounded."""
        return {
            "from": self.begin,
            "to": self.end,
            "logic_ns": round(self.logic_ns, 2),
            "routing_ns": round(self.routing_ns, 2),
        }


@dataclass(frozen=True)
class FloorPlan:
    """For each tile the part of the design with the most cells in it, and the critical path, or
    None without paths between registers.
    """

    parts: dict[Place, str]
    path: CriticalPath | None

    @classmethod
    def load(cls, design: Path, report: Path) -> FloorPlan:
        """Loads the files that nextpnr writes for ``--write`` and ``--report``."""
        modules = json.loads(design.read_text(encoding="utf-8"))["modules"]
        counts: dict[Place, Counter[str]] = defaultdict(Counter)
        for module in modules.values():
            for name, cell in module["cells"].items():
                if site := _SITE.match(cell["attributes"].get("NEXTPNR_BEL", "")):
                    counts[int(site[1]), int(site[2])][_part_of(name)] += 1
        parts = {place: count.most_common(1)[0][0] for place, count in counts.items()}
        paths = json.loads(report.read_text(encoding="utf-8")).get("critical_paths", [])
        within = [path["path"] for path in paths if path["from"] == path["to"]]
        return cls(parts, max(map(_path, within), key=lambda path: path.ns, default=None))


def drawn(plan: FloorPlan, title: str) -> str:
    """Draws the floor plan as SVG that follows the reader's light or dark colour scheme; tile X0Y0
    is at the top left.
    """
    columns = 1 + max((x for x, _ in plan.parts), default=0)
    rows = 1 + max((y for _, y in plan.parts), default=0)
    scale = (_WIDTH - _LEGEND_WIDTH - 2 * _MARGIN) / columns
    names = [name for name in _PARTS if name in plan.parts.values()]
    height = 2 * _MARGIN + max(rows * scale, _ROW * (len(names) + 4))
    shapes = [
        f'<rect class="chip" x="{_MARGIN}" y="{_MARGIN}" width="{columns * scale:.1f}" '
        f'height="{rows * scale:.1f}"/>'
    ]
    for name in names:
        squares = "".join(
            f"M{_MARGIN + x * scale:.1f} {_MARGIN + y * scale:.1f}h{0.9 * scale:.1f}"
            f"v{0.9 * scale:.1f}h-{0.9 * scale:.1f}z"
            for x, y in sorted(place for place, part in plan.parts.items() if part == name)
        )
        shapes.append(f'<path fill="{_PARTS[name][1]}" d="{squares}"/>')
    left = _WIDTH - _LEGEND_WIDTH
    for number, name in enumerate(names):
        top = _MARGIN + number * _ROW
        shapes.append(
            f'<rect fill="{_PARTS[name][1]}" x="{left}" y="{top}" width="12" height="12"/>'
            f'<text x="{left + 20}" y="{top + 11}">{escape(name)}</text>'
        )
    if plan.path:
        points = [
            (_MARGIN + (x + 0.5) * scale, _MARGIN + (y + 0.5) * scale) for x, y in plan.path.places
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        top = _MARGIN + (len(names) + 1) * _ROW
        shapes.append(
            f'<polyline class="halo" points="{line}"/><polyline class="path" points="{line}"/>'
            f'<line class="path" x1="{left}" y1="{top + 6}" x2="{left + 14}" y2="{top + 6}"/>'
            f'<text x="{left + 20}" y="{top + 11}">longest path, {plan.path.ns:.1f} ns:</text>'
            f'<text x="{left + 20}" y="{top + _ROW + 11}">{plan.path.logic_ns:.1f} in logic, '
            f"{plan.path.routing_ns:.1f} in routing</text>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13">\n'
        f"<title>{escape(title)}</title>\n<style>\n"
        "text { fill: #1f2328 } .chip { fill: #f3f5f8; stroke: #b6bfc8 }\n"
        "polyline, .path { fill: none; stroke-width: 2; stroke: #1f2328 }\n"
        "polyline.halo { stroke-width: 5; stroke: #f3f5f8 }\n"
        "@media (prefers-color-scheme: dark) {\n"
        "text { fill: #e6edf3 } .chip { fill: #1b222c; stroke: #545d68 }\n"
        "polyline, .path { stroke: #e6edf3 } polyline.halo { stroke: #1b222c }\n}\n</style>\n"
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def _part_of(cell: str) -> str:
    return next(name for name, (pattern, _) in _PARTS.items() if re.search(pattern, cell))


def _path(steps: list[dict[str, Any]]) -> CriticalPath:
    by_kind: Counter[str] = Counter()
    for step in steps:
        by_kind["routing" if step["type"] == "routing" else "logic"] += step["delay"]
    places = [tuple(steps[0]["from"]["loc"]), *(tuple(step["to"]["loc"]) for step in steps)]
    moves = [after for before, after in pairwise(places) if before != after]
    return CriticalPath(
        _MADE.sub("", steps[0]["from"]["cell"]),
        _MADE.sub("", steps[-1]["to"]["cell"]),
        by_kind["logic"],
        by_kind["routing"],
        (places[0], *moves),
    )
