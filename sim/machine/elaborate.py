"""Elaborates the design: the only module of `sim` that imports the hardware."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from amaranth.hdl import ClockSignal, Instance, Value
from amaranth.lib import wiring

from amaranth_vta.collector import collector_paused
from amaranth_vta.hw.boards.boards import BOARDS, surroundings
from amaranth_vta.hw.boards.processor.riscv_core import core_verilog
from amaranth_vta.hw.boards.simulated import SimulatedSystem
from amaranth_vta.hw.bus.attributes import DEFAULT_ATTRIBUTES, BusAttributes
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.datapath.dot_products import LoopedDotProducts
from amaranth_vta.hw.datapath.looped_lanes import LoopedLanes
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.hw.system.system import System
from amaranth_vta.hw.top import Top
from amaranth_vta.sim.amaranth_internals.netlist import rtlil_of
from amaranth_vta.sim.amaranth_internals.yosys import modules_of, readable, run_yosys

from .interfaces import with_interfaces

Pins = dict[str, Value]

WAIVERS = Path(__file__).with_name("waivers.vlt")

_PLAIN = (
    "memory_collect",
    "attrmap -remove generator -remove top -remove src -remove full_case",
    "attrmap -remove amaranth.hierarchy -remove amaranth.decoding",
    "attrmap -modattr -remove generator -remove top",
    "attrmap -modattr -remove amaranth.hierarchy -remove amaranth.decoding",
)
# The Yosys passes of Amaranth's own Verilog backend, with multiplexers instead of `always @*`
# blocks: simulators run such a block only when one of its inputs changes, and an input that keeps
# its initial value never does.
AS_IT_IS = ("proc -norom", *_PLAIN, "write_verilog -norename -noparallelcase")
# The same with `always @*` blocks, whose lines and branches Verilator counts.
WITH_DECISIONS = ("proc -nomux -norom", *_PLAIN, "write_verilog -norename")
_WRITTEN = "write_verilog -noattr -norename"
# For simulators that are rebuilt often and run briefly: converts decision trees to multiplexers and
# removes unused logic and names. Verilator does the rest in less time than Yosys.
QUICK = ("proc -norom", "memory_collect", "opt_clean -purge", _WRITTEN)
# Also propagates constants, merges duplicate logic and flattens the hierarchy; modules are
# simplified first, which shortens flattening. Repeated, for registers too, until nothing changes: a
# large machine is simulated 1.05 times as fast.
SIMPLIFIED = (
    *("proc -norom", "memory_collect", "opt_expr", "opt_merge", "opt_clean -purge"),
    *("flatten", "opt -fast", "opt_clean -purge", _WRITTEN),
)


def verilog(
    config: Config,
    watched: bool = False,
    grouped: bool = False,
    attributes: BusAttributes = DEFAULT_ATTRIBUTES,
    passes: tuple[str, ...] = AS_IT_IS,
    prefix: str = "",
) -> str:
    """Verilog of the machine, with top module ``vta``; the text is the same on every computer.

    Scratchpads have no initial contents: they are undefined after power-up. For simulation,
    ``watched`` adds outputs with the activity of each module, and ``grouped`` adds clocks for parts
    of the machine. ``passes`` are Yosys passes that preserve registers and memories. ``prefix`` is
    put before the names of all modules and of the top module's ports.
    """
    text = _head(config) + component_verilog(
        machine(config, watched, grouped, attributes), f"{prefix}vta", passes, prefix
    )
    if grouped:
        loops = (LoopedDotProducts.LOOPS, LoopedLanes.LOOPS)
        return text + "".join(path.read_text(encoding="utf-8") for path in loops)
    return text if watched else with_interfaces(text, prefix)


def system_verilog(
    system: SystemConfig,
    attributes: BusAttributes = DEFAULT_ATTRIBUTES,
    passes: tuple[str, ...] = AS_IT_IS,
    prefix: str = "",
) -> str:
    """Verilog of the machines of ``system``, instances of one module, and their arbiter; the
    arguments are as in `verilog`. A system of one machine is that machine, without an arbiter.
    """
    if system.is_single:
        return verilog(system.config, attributes=attributes, passes=passes, prefix=prefix)
    machines = f"// {system.machines} machines on a bus of {system.bus_bits} bits\n"
    one, name = machine(system.config), f"{prefix}vta_machine"
    whole = System(system, attributes, lambda _: _Instance(name, one))
    text = component_verilog(whole, f"{prefix}vta", passes, prefix)
    text = with_interfaces(_head(system.config, machines) + text, prefix, system.machines)
    return text + component_verilog(one, name, passes)


class _Instance(wiring.Component):
    """An instance of the module ``name`` with the ports of ``component``, which has a port rst."""

    def __init__(self, name: str, component: wiring.Component) -> None:
        self._name = name
        super().__init__(component.signature)

    def elaborate(self, platform: Any) -> Instance:
        inputs, outputs = pins(self)
        ports = {f"i_{port}": value for port, value in inputs.items()}
        ports |= {f"o_{port}": value for port, value in outputs.items()}
        return Instance(self._name, i_clk=ClockSignal(), **ports)


def _head(config: Config, machines: str = "") -> str:
    """Comments at the beginning of a file; ``machines`` is a line on several of them."""
    version, parameters = metadata.version("amaranth-vta"), json.dumps(config.to_dict())
    return f"// amaranth-vta {version}\n{machines}// Configuration: {parameters}\n"


def waivers(files: str) -> str:
    """Verilator configuration that waives the warnings of `verilator --lint-only -Wall` about the
    machine; ``files`` is a pattern of the Verilog's file names.
    """
    return WAIVERS.read_text(encoding="utf-8").replace("FILES", files)


def split_verilog(text: str) -> dict[str, str]:
    """Split a Verilog text into one file per module, by file name; each file begins with the
    comments at the head of the text.

    An additional ``vta.f`` lists the files, for tools with an option ``-f``, and ``vta.vlt`` has
    their `waivers`.
    """
    head, modules = modules_of(text)
    files = {f"{name}.v": head + module + _TAIL for name, module in modules.items()}
    top = next(iter(modules))
    listed = "".join(f"{name}\n" for name in files)
    return files | {"vta.f": listed, "vta.vlt": waivers(f"*{top}*.v")}


def board_verilog(
    config: Config, board: str, divisor: int, gap_bits: int, processor: bool = False
) -> str:
    """Verilog of the design on ``board`` without clock and pins, as module ``vta`` with pins rx and
    tx.

    ``divisor`` and ``gap_bits`` are those of `Surroundings`. An SDRAM chip is included as a
    simulation model. With a ``processor``, memories are loaded when simulation starts: its firmware
    as hexadecimal words from the file of the argument ``+firmware=FILE``, and the data in its flash
    memory, if the board has one, as hexadecimal bytes from the file of ``+flash=FILE``.
    """
    chosen = BOARDS[board]
    around = surroundings(chosen, chosen.clock_hz, b"" if processor else None)
    around = replace(around, divisor=divisor, gap_bits=gap_bits)
    text = component_verilog(SimulatedSystem(config, around), "vta")
    if not processor:
        return text
    offsets = {"firmware": 0}
    if around.has_flash:
        offsets["flash"] = chosen.flash_offset
    for memory, offset in offsets.items():
        loaded = _LOADED.format(memory=memory, offset=offset)
        text, count = re.subn(_MEMORY.format(memory), rf"\g<0>{loaded}", text, flags=re.MULTILINE)
        assert count == 1
    return text + core_verilog()


def simulated_boards() -> list[str]:
    """Names of the boards that `board_verilog` accepts."""
    return list(BOARDS)


def component_verilog(
    component: wiring.Component,
    name: str,
    passes: tuple[str, ...] = AS_IT_IS,
    prefix: str = "",
) -> str:
    """Verilog of any component, as module ``name`` with ports clk, rst and the component's own.

    Nested port names are joined, as in ``m_axi_awaddr``. A component with a port rst handles reset
    itself. ``passes`` are Yosys passes; ``prefix`` is put before the names of ports. Raises
    `MissingExtra` without Yosys.
    """
    return _HEAD + readable(run_yosys(_netlist(component, name, prefix), passes)) + _TAIL


def cxxrtl(config: Config, watched: bool = False) -> str:
    """C++ of the machine for CXXRTL's runtime: class ``p_vta``.

    Modules are not flattened: CXXRTL would generate a single function, which takes a compiler
    minutes.
    """
    return run_yosys(_netlist(machine(config, watched), "vta"), ("write_cxxrtl -noflatten -g0",))


def machine(
    config: Config,
    watched: bool = False,
    grouped: bool = False,
    attributes: BusAttributes = DEFAULT_ATTRIBUTES,
) -> Any:
    """The whole machine as a component; ``watched`` and ``grouped`` as in `Top`."""
    return Top(config, watched, grouped, attributes)


def pins(component: wiring.Component) -> tuple[Pins, Pins]:
    """Inputs and outputs of a component, by their names in Verilog."""
    inputs: Pins = {}
    outputs: Pins = {}
    for path, member, value in component.signature.flatten(component):
        side = inputs if member.flow is wiring.In else outputs
        side["_".join(map(str, path))] = Value.cast(value)
    return inputs, outputs


def _netlist(component: wiring.Component, name: str, prefix: str = "") -> str:
    """RTLIL of a component, as module ``name``, with ``prefix`` before the names of its ports."""
    inputs, outputs = pins(component)
    ports = {f"{prefix}{port}": value for port, value in {**inputs, **outputs}.items()}
    with collector_paused():
        return rtlil_of(component, name, ports, reset_less="rst" in inputs, prefix=prefix)


# Declaration of a memory that is loaded, and the block that loads it.
_MEMORY = r"^  reg \[\d+:0\] {} \[\d+:0\];\n"
_LOADED = """\
  initial begin: load_{memory}
    string path;
    if ($value$plusargs("{memory}=%s", path)) $readmemh(path, {memory}, {offset});
  end
"""
_HEAD = """\
// Written by Amaranth, with the same meaning in Verilog-2005 and in SystemVerilog. Widths follow
// Amaranth's rules; Verilator's warnings about them are off up to the end of this file.
/* verilator lint_save */
/* verilator lint_off WIDTHEXPAND */
/* verilator lint_off WIDTHTRUNC */
/* verilator lint_off CMPCONST */
"""
_TAIL = """\
/* verilator lint_restore */
"""
