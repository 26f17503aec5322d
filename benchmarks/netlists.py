"""Check that a machine behaves the same after synthesis: simulate its cells against the model.

    python benchmarks/netlists.py [--config NAME ...] [--family ecp5|xc7|gowin ...]
                                  [--board NAME ...] [--programs N] [--seed N] [--multipliers N]

Yosys maps a machine to the cells of an FPGA, flattened and optimized as for a bitstream, including
the changes of `refine`. Verilator compiles the netlist with the models of `cell_models`, in which a
read of a byte of a block RAM that is written in the same cycle returns inverted data.
The netlist runs programs of ``vta fuzz``, faulty ones included: faults, tokens, counters and all of
memory are compared with the functional model, and, where nothing is undefined, cycles with the
design before synthesis. Exits with 1 on any difference.

With ``--board``, a board's whole design is mapped to the cells of its chip instead: the machine,
the SDRAM controller or memory on the chip, the host link and the UART, without clock and pins. The
SDRAM chip stays a model. The host writes small programs over the serial line and runs them on the
netlist and on the design before synthesis; both are compared with the functional model. Cycles are
not compared, since they depend on when the SDRAM is refreshed. A netlist of a board runs only some
5,000 cycles per second.

``--multipliers`` limits the number of multipliers on the chip; on an ECP5 the remaining
products are built from LUTs. Needs the extra ``fpga``; takes minutes per machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from cell_models import YOSYS_MODELS, models

from amaranth_vta.fpga.area import UNLIMITED, products_in_luts
from amaranth_vta.fpga.flows import FLOWS, flow_of
from amaranth_vta.fpga.refinement.refine import refine, refine_sources
from amaranth_vta.fpga.synthesis import commands, in_luts, merged_modules
from amaranth_vta.fpga.tools import Call, run, tool
from amaranth_vta.hw import isa
from amaranth_vta.hw.boards.boards import BOARDS, Board
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sim.amaranth_internals.yosys import modules_of
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

_BOARDS = [
    name
    for name, board in BOARDS.items()
    if not board.vendor and flow_of(board.chip).family in YOSYS_MODELS
]
# The module of the SDRAM chip in a board's design.
_CHIP = "vta_sdram"
# Elements per scratchpad in a board's program.
_ELEMENTS = 8
# Seconds without a reply after which a board counts as broken.
_PATIENCE = 300.0
# Verilator's dataflow optimization fails with an internal error on a netlist of LUTs.
UNOPTIMIZED = ("-fno-dfg",)


def netlist(config: Config, family: str, most: int) -> str:
    """The netlist of ``config`` as Verilog, after synthesis for a chip of ``family`` with ``most``
    multipliers, together with the models of its cells.
    """
    text = verilog(config)
    return _netlist(text, family, in_luts(config, family, most))


def board_netlist(config: Config, board: Board) -> str:
    """The netlist of ``board`` with the machine of ``config``, as Verilog, together with the models
    of its cells and of its SDRAM chip.
    """
    text = board_verilog(config, board.name, simulated.DIVISOR, simulated.GAP_BITS)
    family = flow_of(board.chip).family
    first = in_luts(config, family, board.capacity["dsps"])
    if board.sdram is None:
        return _netlist(text, family, first)
    netlist = _netlist(text, family, [f"blackbox {_CHIP}", *first])
    return netlist + modules_of(text)[1][_CHIP]


def _netlist(text: str, family: str, first: Sequence[str]) -> str:
    text = merged_modules(text)

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
                commands(family),
                "blackbox =A:whitebox",
                "write_json cells.json",
            )
        ),
        "read_json cells.json; write_verilog -noattr cells.v",
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
    # Otherwise cycles may depend on contents of scratchpads at power-up: random in the design, zero
    # in block RAMs.
    if reference.ordered and cycles != expected:
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
    parser.add_argument("--family", action="append", choices=list(YOSYS_MODELS))
    parser.add_argument("--board", action="append", choices=_BOARDS)
    parser.add_argument("--programs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--multipliers", type=int, default=UNLIMITED, metavar="N")
    arguments = parser.parse_args()
    names = arguments.config or ["tiny"]
    if arguments.board:
        differing = [
            compared_board(name, board, arguments) for name in names for board in arguments.board
        ]
    else:
        families = arguments.family or list(YOSYS_MODELS)
        differing = [
            compared_machine(name, family, arguments) for name in names for family in families
        ]
    sys.exit(any(differing))


def compared_machine(name: str, family: str, arguments: argparse.Namespace) -> bool:
    """Print how the netlist of the machine ``name`` compares, and return whether it differs."""
    start = time.monotonic()
    most = arguments.multipliers
    products = products_in_luts(PRESETS[name], family, most)
    text = netlist(PRESETS[name], family, most)
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
    text = board_netlist(config, BOARDS[board])
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
