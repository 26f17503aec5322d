"""How much of the machine's Verilog random programs reach, per module: lines and toggles.

    python benchmarks/coverage.py [--programs 300] [--seed 1] [--config tiny-extended]
                                  [--unreached FILE] [--json FILE]

The programs are those of ``vta fuzz``, faulty ones included; they are only run here, not checked.
Verilator counts how often each line has been run and each bit has changed, up and down. FILE gets
the points that no program has reached, one per line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import Instance

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.top import Top
from amaranth_vta.sim.fuzz.cases import case
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.machine.elaborate import component_verilog
from amaranth_vta.sim.machine.host import SimulatedDevice
from amaranth_vta.sim.machine.rtl.build import COVERAGE, HARNESS, PINS, Harness, design_library
from amaranth_vta.sim.machine.rtl.engine import CompiledMachine

_VARIABLE = "VTA_COVERAGE"
# Seconds, of a program of a few hundred instructions.
_TIME_LIMIT = 120.0
_WRITER = f"""
module write_coverage();
  final $c("vlSymsp->_vm_contextp__->coveragep()->write(std::getenv(\\"{_VARIABLE}\\"));");
endmodule
"""
_DESCRIPTION, _COUNT = (re.compile(text, re.MULTILINE) for text in (r"^C '(.*)' \d+$", r"' (\d+)$"))
# Of Yosys: a wire `$1`, and what makes an `always @*` without inputs run once.
_UNNAMED, _STARTER = "__024", "$started ) begin end"
Point = tuple[str, str, str]
"""Its kind, its module, and what it is."""
_KINDS = {"v_line": "lines", "v_branch": "lines", "v_toggle": "toggles"}


class _Covered(Top):
    def elaborate(self, platform: Any) -> Any:
        m = super().elaborate(platform)
        m.submodules.write_coverage = Instance("write_coverage", a_keep=True)
        return m


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", default="tiny-extended", choices=list(PRESETS))
    parser.add_argument("--unreached", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    reached = covered(PRESETS[options.config], options.config, options.programs, options.seed)
    table = summary(reached)
    print(f"{'module':40} {'lines':>15} {'toggles':>17}")
    for module, counts in table.items():
        cells = [_share(*counts[kind]) for kind in ("lines", "toggles")]
        print(f"{module:40} {cells[0]:>15} {cells[1]:>17}")
    for path in (options.unreached, options.json):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    if options.unreached is not None:
        lines = sorted(" ".join(point) for point, count in reached.items() if not count)
        options.unreached.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if options.json is not None:
        options.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return 0


def covered(config: Config, name: str, programs: int, seed: int) -> Counter[Point]:
    """How often each point was reached by the first programs of ``seed``."""
    verilog = component_verilog(_Covered(config), "vta") + _WRITER
    library = design_library(verilog, Harness(HARNESS, PINS), COVERAGE)
    # A file is long, and has the same points in the same order for each program.
    points: list[Point | None] = []
    counts = np.zeros(0, np.int64)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coverage.dat"
        os.environ[_VARIABLE] = str(path)
        for number in range(programs):
            chosen = case(seed, number, {name: config})
            image = chosen.image()
            image = chosen.relocation(image) or image
            device = SimulatedDevice(config, image.dram.size, origin=image.origin)
            machine = CompiledMachine(
                library, device.memory, memory_timing(chosen.dram), origin=image.origin
            )
            device.attach(machine)
            device.write(image.origin, image.dram)
            device.set_limits(image.limits)
            device.set_bases(image.bases)
            device.run(image.insn_addr, image.insn_count, time_limit=_TIME_LIMIT)
            machine.close()
            text = path.read_text(encoding="utf-8")
            found = np.array([int(count) for count in _COUNT.findall(text)])
            if not points:
                points, counts = _points(text, verilog), np.zeros_like(found)
            counts += found
    reached: Counter[Point] = Counter()
    for point, count in zip(points, counts, strict=True):
        if point is not None:
            reached[point] += int(count)
    return reached


def summary(reached: Counter[Point]) -> dict[str, dict[str, tuple[int, int]]]:
    """Points reached, and all of them, per module and kind; the last row is the sum."""
    table: dict[str, dict[str, tuple[int, int]]] = {}
    for (kind, module, _), count in sorted(reached.items()):
        for row in (module, "all"):
            counts = table.setdefault(row, {"lines": (0, 0), "toggles": (0, 0)})
            done, total = counts[kind]
            counts[kind] = done + (count > 0), total + 1
    table["all"] = table.pop("all")
    return table


def _points(text: str, verilog: str) -> list[Point | None]:
    """Those of a file that Verilator writes; None for what is not counted here: wires without a
    name, and lines that are only there to start a process."""
    lines = verilog.splitlines()
    points: list[Point | None] = []
    for description in _DESCRIPTION.findall(text):
        fields = dict(item.split("\2", 1) for item in description.split("\1") if "\2" in item)
        kind, _, module = fields["page"].partition("/")
        what = fields.get("o", "")
        if (
            kind not in _KINDS
            or not module.startswith("vta")
            or what.startswith(_UNNAMED)
            or _STARTER in lines[int(fields["l"]) - 1]
        ):
            points.append(None)
            continue
        points.append((_KINDS[kind], module.replace("\\", ""), f"{fields['l']} {what}"))
    return points


def _share(done: int, total: int) -> str:
    return f"{done} of {total} {100 * done / total:3.0f} %" if total else "–"


if __name__ == "__main__":
    raise SystemExit(main())
