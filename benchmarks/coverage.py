"""Measure how much of the machine random programs cover: lines and toggles of its Verilog per
module, and hazards that coincide with stalls (for a machine with OVERLAP).

    python benchmarks/coverage.py [--programs 300] [--seed 1] [--config tiny-extended]
                                  [--unreached FILE] [--json FILE]

Runs the programs of ``vta fuzz``, faulty ones included, without checking their results. Verilator
counts how often each line runs and each bit rises and falls. A cover point for each pair of a
hazard (of a micro-op or an instruction) and a stall (of a module on memory, or of the bus) counts
the cycles in which both occur. ``--unreached`` writes the points that no program has reached to
FILE, one per line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import ClockSignal, Instance

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.top import Top
from amaranth_vta.sim.fuzz.cases import case
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.machine.elaborate import WITH_DECISIONS, component_verilog
from amaranth_vta.sim.machine.host import SimulatedDevice
from amaranth_vta.sim.machine.rtl.build import COVERAGE, HARNESS, PINS, Harness, design_library
from amaranth_vta.sim.machine.rtl.engine import CompiledMachine

_VARIABLE = "VTA_COVERAGE"
# Seconds for a program of a few hundred instructions.
_TIME_LIMIT = 120.0
_WRITER = f"""
module write_coverage();
  final $c("vlSymsp->_vm_contextp__->coveragep()->write(std::getenv(\\"{_VARIABLE}\\"));");
endmodule
"""
_DESCRIPTION, _COUNT = (re.compile(text, re.MULTILINE) for text in (r"^C '(.*)' \d+$", r"' (\d+)$"))
# Names that Yosys generates: a wire `$1`, and the condition that makes an `always @*` without
# inputs run once.
_UNNAMED, _STARTER = "__024", "dump_module$"
# For a `case` whose default is assigned before it.
_HEAD = "/* verilator lint_off CASEINCOMPLETE */\n"
Point = tuple[str, str, str]
"""Its kind, its module, and what it is."""
_KINDS = {"v_line": "lines", "v_branch": "lines", "v_toggle": "toggles"}
_PAIR = re.compile(r"// (.+) x (.+)$")


_COMPUTE = "vta.core.machine.compute"
_ACC, _LOOPS, _COUNTERS = f"{_COMPUTE}.accumulators", f"{_COMPUTE}.loops", "vta.core.counters"
# Signals delayed by one cycle, because the accumulators answer a read in the next cycle.
_REGISTERS = {
    "gemm_has_read": f"{_ACC}.gemm_read__enable",
    "alu_has_read_dst": f"{_ACC}.alu_dst__enable",
    "alu_has_read_src": f"{_ACC}.alu_src__enable",
}
HAZARDS = {
    "GEMM forwards": f"gemm_has_read && {_ACC}.gemm_read_hit",
    "ALU forwards dst": f"alu_has_read_dst && {_ACC}.alu_dst_hit",
    "ALU forwards src": f"alu_has_read_src && {_ACC}.alu_src_hit",
    "ALU waits for its result": f"{_COMPUTE}.alu.works && {_COMPUTE}.alu.depends",
    "ALU waits for parameters": f"{_COMPUTE}.alu.works && !{_COMPUTE}.alu.ready",
    "GEMM waits for a bank": f"{_COMPUTE}.gemm.i__valid && {_COMPUTE}.gemm.denied",
    "ALU waits for a bank": f"{_COMPUTE}.alu.works && {_COMPUTE}.alu.denied",
    "GEMM waits for ALU": f"|{_LOOPS}.gemm_level && !{_LOOPS}.gemm_commands.o__valid",
    "ALU waits for GEMM": f"|{_LOOPS}.alu_level && !{_LOOPS}.alu_commands.o__valid",
    "load lacks a token": f"{_COUNTERS}.load_waits_for_compute",
    "compute lacks load's": f"{_COUNTERS}.compute_waits_for_load",
    "compute lacks store's": f"{_COUNTERS}.compute_waits_for_store",
    "store lacks a token": f"{_COUNTERS}.store_waits_for_compute",
    "a queue is full": f"{_COUNTERS}.fetch_waits_for_modules",
}
STALLS = {
    "AR": "vta.m_axi_arvalid && !vta.m_axi_arready",
    "AW": "vta.m_axi_awvalid && !vta.m_axi_awready",
    "W": "vta.m_axi_wvalid && !vta.m_axi_wready",
    "R held": "vta.m_axi_rvalid && !vta.m_axi_rready",
    "fetch": f"{_COUNTERS}.fetch_waits_for_memory",
    "load": f"{_COUNTERS}.load_waits_for_memory",
    "compute": f"{_COUNTERS}.compute_waits_for_memory",
    "store": f"{_COUNTERS}.store_waits_for_memory",
}


class _Covered(Top):
    def elaborate(self, platform: Any) -> Any:
        m = super().elaborate(platform)
        m.submodules.write_coverage = Instance("write_coverage", a_keep=True)
        if _has_pairs(self._config):
            m.submodules.pairs = Instance("pairs", i_clk=ClockSignal(), a_keep=True)
        return m


def _has_pairs(config: Config) -> bool:
    """Whether the machine has the signals that `HAZARDS` and `STALLS` name."""
    return bool(config.overlap and config.counters)


def _pairs() -> str:
    """A Verilog module with a cover point for each pair of hazard and stall."""
    registers = [
        f"  reg {name} = 0; always @(posedge clk) {name} <= {source};\n"
        for name, source in _REGISTERS.items()
    ]
    pairs = list(product(HAZARDS, STALLS))
    lines = [
        f"    if (({HAZARDS[hazard]}) && ({STALLS[stall]})) met[{at}] <= 1; // {hazard} x {stall}\n"
        for at, (hazard, stall) in enumerate(pairs)
    ]
    return (
        f"module pairs(input clk, output reg [{len(pairs) - 1}:0] met);\n{''.join(registers)}"
        f"  always @(posedge clk) begin\n{''.join(lines)}  end\nendmodule\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", default="tiny-extended", choices=list(PRESETS))
    parser.add_argument("--unreached", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    reached = covered(PRESETS[options.config], options.config, options.programs, options.seed)
    pairs = {point[1:]: count for point, count in reached.items() if point[0] == "pairs"}
    table = summary(reached)
    print(f"{'module':40} {'lines':>15} {'toggles':>17}")
    for module, counts in table.items():
        cells = [_share(*counts[kind]) for kind in ("lines", "toggles")]
        print(f"{module:40} {cells[0]:>15} {cells[1]:>17}")
    if pairs:
        print(f"\n{'cycles':26}" + "".join(f"{stall:>10}" for stall in STALLS))
    for hazard in HAZARDS if pairs else ():
        print(f"{hazard:26}" + "".join(f"{pairs[hazard, stall]:>10,}" for stall in STALLS))
    for path in (options.unreached, options.json):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    if options.unreached is not None:
        lines = sorted(" ".join(point) for point, count in reached.items() if not count)
        options.unreached.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if options.json is not None:
        found = table | {"pairs": {" x ".join(pair): count for pair, count in pairs.items()}}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def covered(config: Config, name: str, programs: int, seed: int) -> Counter[Point]:
    """How often each point was reached by the first programs of ``seed``."""
    verilog = _HEAD + component_verilog(_Covered(config), "vta", WITH_DECISIONS) + _WRITER
    verilog += _pairs() if _has_pairs(config) else ""
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
        if kind not in _KINDS.values():
            continue
        for row in (module, "all"):
            counts = table.setdefault(row, {"lines": (0, 0), "toggles": (0, 0)})
            done, total = counts[kind]
            counts[kind] = done + (count > 0), total + 1
    table["all"] = table.pop("all")
    return table


def _points(text: str, verilog: str) -> list[Point | None]:
    """Parse the points of a file that Verilator writes. Points that are not counted are None:
    unnamed wires, and lines that only start a process.
    """
    lines = verilog.splitlines()
    points: list[Point | None] = []
    for description in _DESCRIPTION.findall(text):
        fields = dict(item.split("\2", 1) for item in description.split("\1") if "\2" in item)
        kind, _, module = fields["page"].partition("/")
        what = fields.get("o", "")
        line = lines[int(fields["l"]) - 1]
        if module == "pairs" and what == "if" and (pair := _PAIR.search(line)):
            points.append(("pairs", pair[1], pair[2]))
        elif (
            kind not in _KINDS
            or not module.startswith("vta")
            or what.startswith(_UNNAMED)
            or _STARTER in line
        ):
            points.append(None)
        else:
            points.append((_KINDS[kind], module.replace("\\", ""), f"{fields['l']} {what}"))
    return points


def _share(done: int, total: int) -> str:
    return f"{done} of {total} {100 * done / total:3.0f} %" if total else "–"


if __name__ == "__main__":
    raise SystemExit(main())
