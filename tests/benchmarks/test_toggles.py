from __future__ import annotations

import re
import runpy
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.amaranth_internals.yosys import modules_of
from amaranth_vta.sim.fuzz.cases import case
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.machine.elaborate import verilog
from amaranth_vta.sim.machine.host import SimulatedDevice
from amaranth_vta.sim.machine.rtl.engine import CompiledMachine

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = PRESETS["tiny-extended"]
Names = dict[str, Any]
# A value and the number of a signal: of several bits, or of one.
_VALUE = re.compile(r"b([01]+) (\S+)|([01])(\S+)")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return runpy.run_path(str(BENCHMARKS / "toggles.py"))


def test_registers_are_flip_flops_but_not_memories(names: Names) -> None:
    module = """
module vta(clk);
  reg [36:0] \\$signal$4  = 37'h0000000000;
  reg irq = 1'h0;
  wire [3:0] sum;
  reg [47:0] sums [31:0];
  reg [127:0] _0_;
  initial begin
    sums[0] = 48'h000000000000;
  end
endmodule
"""
    assert names["registers"](module) == {"\\$signal$4 ": 37, "irq": 1}


def test_modules_belong_to_the_part_with_the_longest_path(names: Names) -> None:
    lines = [
        f"TOP.pins.vta{path} {bits} {count}"
        for count in (0, 100, 7)
        for path, bits in (
            ("", 3),
            (".registers", 5),
            (".core.machine.load.loader", 10),
            (".core.machine.load_to_compute", 2),
        )
    ]
    found = names["by_part"]("\n".join(lines) + "\n")
    assert {part: (item.bits, item.counts.tolist()) for part, item in found.items()} == {
        "registers of the host, launch": (8, [200, 14]),
        "tokens, INP, WGT": (2, [100, 7]),
        "load": (10, [100, 7]),
    }


@pytest.mark.nightly  # compiles a machine with counters and waves for half a minute
def test_toggles_are_those_of_the_waves(names: Names, tmp_path: Path) -> None:
    waves = tmp_path / "waves.vcd"
    library = names["counting_library"](TINY, 128, ("--trace-vcd",))
    chosen = case(1, 11, {"tiny-extended": TINY})
    image = chosen.image()
    device = SimulatedDevice(TINY, image.dram.size)
    device.write(0, image.dram)
    with chdir(tmp_path):
        machine = CompiledMachine(library, device.memory, memory_timing("ddr"), waves)
        device.attach(machine)
        device.run(image.insn_addr, image.insn_count, time_limit=60)
        machine.close()
        found = names["by_part"]((tmp_path / "written.txt").read_text())
    assert all(len(item.counts) > 2 for item in found.values())
    registers = {
        name.removeprefix("vta").replace("_", "."): names["registers"](text)
        for name, text in modules_of(verilog(TINY))[1].items()
    }
    expected, bits = Counter[str](), Counter[str]()
    for path, count in toggles_in(waves, registers).items():
        part = names["part_of"](path)
        bits[part] += sum(registers[path.replace("_", ".")].values())
        expected[part] += count
    assert {part: item.bits for part, item in found.items()} == bits
    assert {part: item.counts.sum() for part, item in found.items()} == expected
    assert expected["GEMM"] > 0


def toggles_in(waves: Path, registers: dict[str, dict[str, int]]) -> Counter[str]:
    """How many register bits toggle in each module during the run, by the path of the module.
    ``registers`` has them by the path of their module, with dots instead of underscores.
    """
    names = {
        path: {name.strip().lstrip("\\") for name in found} for path, found in registers.items()
    }
    owners: dict[str, list[str]] = {}
    numbers: dict[str, str] = {}
    with waves.open() as file:
        for path, name, number in _variables(file):
            numbers[f"{path}.{name}"] = number
            if name in names.get(path.replace("_", "."), ()):
                owners.setdefault(number, []).append(path)
        found = Counter(dict.fromkeys((path for paths in owners.values() for path in paths), 0))
        values: dict[str, int] = {}
        changed: Counter[str] = Counter()
        clock, running = numbers[".clk"], numbers[".core.running"]
        for line in file:
            if line[0] == "#":
                # Registers change with the rising edge only, and count in the following cycle.
                if values.get(clock) and values.get(running):
                    found.update(changed)
                changed = Counter()
                continue
            match = _VALUE.match(line)
            if match is None:
                continue
            text, number = match[1] or match[3], match[2] or match[4]
            value = int(text, 2)
            for path in owners.get(number, ()):
                changed[path] += (value ^ values.get(number, 0)).bit_count()
            values[number] = value
    return found


def _variables(file: Any) -> Iterator[tuple[str, str, str]]:
    """Path of the module after ``vta``, name and number of each signal in the head of a VCD."""
    scopes: list[str] = []
    for line in file:
        match line.split():
            case ["$scope", _, name, _]:
                scopes.append(name)
            case ["$upscope", _]:
                scopes.pop()
            case ["$var", _, _, number, name, *_] if "vta" in scopes:
                below = scopes[scopes.index("vta") + 1 :]
                yield "".join(f".{scope}" for scope in below), name, number
            case ["$enddefinitions", _]:
                return
