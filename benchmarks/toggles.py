"""Measure how many register bits of the machine toggle per cycle while it runs a network, by part.

    python benchmarks/toggles.py [--networks NAME ...] [--config pynq-extended] [--dram ddr]

Adds counters to each module of the machine's Verilog and simulates it: in every cycle of a run they
compare all registers with their values in the previous cycle. Memories, their output registers and
the clock are not counted. Prints, as Markdown, per part of the machine its register bits, and per
network the bits that toggle per cycle on average, also as a share of all; the last row is the range
of this share over windows of 1,024 cycles. ``digits`` is the trained network of the examples with
its first image, the others have random weights.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from instrumented import WRITTEN, options, simulated, simulator
from tables import head, row

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.amaranth_internals.yosys import modules_of
from amaranth_vta.sim.machine.elaborate import verilog as verilog_of

WINDOW = 1024
# A flip-flop: memories and their output registers have no initial value here.
_REGISTER = re.compile(r"^  reg (?:\[(\d+):0\] )?(\\\S+ |\w+) *= ", re.MULTILINE)
_LINE = re.compile(r"^\S*?\bvta(\S*) (\d+) (\d+)$", re.MULTILINE)
# Parts of the machine by the paths of their modules; a module belongs to the longest path.
PARTS = {
    "": "registers of the host, launch",
    ".core.counters": "counters",
    ".core.machine": "tokens, INP, WGT",
    ".core.machine.arbiter": "arbiter",
    ".core.machine.fetch": "fetch",
    ".core.machine.queues": "instruction queues",
    ".core.machine.load": "load",
    ".core.machine.store": "store",
    ".core.machine.compute": "compute: control",
    ".core.machine.compute.loader": "compute: loads",
    ".core.machine.compute.loops": "compute: sequencers",
    ".core.machine.compute.accumulators": "accumulators",
    ".core.machine.compute.gemm": "GEMM",
    ".core.machine.compute.alu": "ALU",
}


@dataclass(frozen=True)
class Toggles:
    """Register ``bits`` of a part of the machine, and int64 (windows,): how many toggle in each
    window of a run.
    """

    bits: int
    counts: npt.NDArray[np.int64]


def main() -> None:
    networks, config, dram = options()
    library = counting_library(config)
    print_table({name: by_part(simulated(name, config, library, dram)[0]) for name in networks})


def counting_library(config: Config, window: int = WINDOW, flags: tuple[str, ...] = ()) -> Path:
    """The simulator of a machine that counts its toggles in windows of ``window`` cycles, a power
    of two; ``flags`` are Verilator's.
    """
    return simulator(counting(verilog_of(config), window), config, flags)


def counting(verilog: str, window: int) -> str:
    """``verilog`` of a machine, whose modules write to a file how many bits of their registers
    toggle in each window of a run.
    """
    comments, modules = modules_of(verilog)
    return comments + "".join(_counting(name, text, window) for name, text in modules.items())


def registers(module: str) -> dict[str, int]:
    """The registers in the Verilog of a module, memories excluded, and their bits."""
    return {name: int(high or 0) + 1 for high, name in _REGISTER.findall(module)}


def _counting(name: str, module: str, window: int) -> str:
    found = registers(module)
    opened = "  integer toggles_file;\n" if name == "vta" else ""
    opened += f'  initial toggles_file = $fopen("{WRITTEN}", "w");\n' if opened else ""
    if not found:
        return module.replace("endmodule", f"{opened}endmodule")
    bits = sum(found.values())
    write = f'$fdisplay(vta.toggles_file, "%m {bits} %0d", toggled)'
    return module.replace(
        "endmodule",
        f"""{opened}
  wire [{bits - 1}:0] toggles_now = {{{", ".join(found)}}};
  reg [{bits - 1}:0] toggles_before;
  reg [{window.bit_length() - 2}:0] toggles_cycle = 0;
  reg [63:0] toggled = 0;
  always @(posedge clk) begin
    toggles_before <= toggles_now;
    if (vta.core.running) begin
      toggles_cycle <= toggles_cycle + 1;
      toggled <= (toggles_cycle == 0 ? 0 : toggled) + $countones(toggles_now ^ toggles_before);
      if (toggles_cycle == 0) {write};
    end
  end
  final begin
    {write};
    $fflush(vta.toggles_file);
  end
endmodule""",
    )


def by_part(text: str) -> dict[str, Toggles]:
    """The toggles of each of `PARTS` from the file of the simulator."""
    windows: dict[str, list[int]] = {}
    bits: dict[str, int] = {}
    for path, size, count in _LINE.findall(text):
        windows.setdefault(path, []).append(int(count))
        bits[path] = int(size)
    found: dict[str, Toggles] = {}
    for path, counts in windows.items():
        part = part_of(path)
        before = found.get(part, Toggles(0, np.zeros(len(counts), np.int64)))
        found[part] = Toggles(before.bits + bits[path], before.counts + np.array(counts))
    # The first line is from before the first window.
    return {
        part: Toggles(found[part].bits, found[part].counts[1:])
        for part in PARTS.values()
        if part in found
    }


def part_of(path: str) -> str:
    """The part to which the module at ``path`` belongs."""
    return PARTS[max((known for known in PARTS if f"{path}.".startswith(f"{known}.")), key=len)]


def print_table(found: dict[str, dict[str, Toggles]]) -> None:
    """Print a row per part of the machine and a column per network."""
    whole = {name: _sum(parts.values()) for name, parts in found.items()}
    bits = {part: item.bits for parts in found.values() for part, item in parts.items()}
    print(*head("part", "register bits", *found), sep="\n")
    for part in bits:
        print(row(part, f"{bits[part]:,}", *(_cell(parts[part]) for parts in found.values())))
    total = next(iter(whole.values())).bits
    print(row("all", f"{total:,}", *(_cell(item) for item in whole.values())))
    ranges = ((_shares(item).min(), _shares(item).max()) for item in whole.values())
    print(row("all, by window", "", *(f"{low:.1%} to {high:.1%}" for low, high in ranges)))


def _cell(item: Toggles) -> str:
    share = _shares(item).mean()
    return f"{share * item.bits:,.1f} ({share:.1%})"


def _shares(item: Toggles) -> npt.NDArray[np.float64]:
    """The share of bits that toggle per cycle in each window; the last one is not complete."""
    return item.counts[:-1] / WINDOW / item.bits


def _sum(items: Collection[Toggles]) -> Toggles:
    counts = np.sum(np.array([item.counts for item in items]), axis=0)
    return Toggles(sum(item.bits for item in items), counts)


if __name__ == "__main__":
    main()
