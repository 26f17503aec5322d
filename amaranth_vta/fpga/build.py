"""Builds a bitstream for a board and a configuration, with a manifest and reports."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amaranth_vta.extras import explain_missing_extras
from amaranth_vta.hw.boards.boards import Board, BoardDesign
from amaranth_vta.hw.boards.zynq import ZynqBoard
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.machine.rtl.build import hardware_sources

from .floorplan import CriticalPath, FloorPlan, drawn
from .flows import Flow, flow_of
from .refinement.refine import refine
from .synthesis import in_luts
from .tools import Call, calls_of, path_of, run, version_of
from .usage import FitError, PlacedDesign, Usage, check_fit, placed, synthesized
from .zynq_project import project_files

if TYPE_CHECKING:
    from amaranth_vta.firmware.build import Firmware

# Target clock of place and route, which stops optimizing once it is met; as in
# ``benchmarks/area.py``, slightly above the required clock. A design only has to meet the clock of
# its board.
_ASKED_HZ = 85_000_000
_FREQUENCY = re.compile(r"^(\s*FREQUENCY .* )(\S+)( HZ;)$", re.MULTILINE)
# Placement seed: the same design yields the same bitstream.
_SEED = 1
_NAME = "vta"
_REPORT = "report.json"
# Data for the flash memory.
NETWORK_FILE = "network.bin"
_PLACED = f"{_NAME}.pnr.json"
# Packages of the processor's core and of the compiler of its firmware.
_OF_PROCESSORS = ("pythondata-cpu-vexriscv", "ziglang")
# Removed from the source lines named in the log, so that it does not depend on the path of the
# checkout.
_ROOT = f"{Path(__file__).parents[2]}/".encode()

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Bitstream:
    """Result of a build: ``files`` by name, and ``summary``, which ``--json`` prints."""

    files: dict[str, bytes]
    summary: dict[str, Any]


def build(
    board: Board | ZynqBoard,
    config: Config,
    config_name: str,
    progress: Progress,
    firmware: Firmware | None = None,
) -> Bitstream:
    """Builds the bitstream of ``board`` with the machine of ``config``, and with a processor that
    runs ``firmware``, if given. Data of its network outside the firmware are a file for the flash
    memory.

    ``progress`` is called at the start of each step. Raises `FitError` if the design does not fit
    the chip or misses its clock, `MissingExtra` without the tools, and `ToolchainError` if one of
    them fails. For a board that needs the vendor's tools, returns a project for them instead.
    """
    started = time.monotonic()
    if isinstance(board, ZynqBoard):
        progress("elaborating the design")
        with explain_missing_extras():
            project = project_files(board, config)
        return _project(board, config, config_name, project, started)
    with explain_missing_extras():
        platform = board.platform()
    progress("elaborating the design")
    image = None if firmware is None else firmware.image
    design = BoardDesign(board, config, board.clock_hz, image)
    if board.vendor:
        project = platform.prepare(design, _NAME).files
        return _project(board, config, config_name, project, started)
    flow = flow_of(board.chip)
    plan = platform.prepare(
        design,
        _NAME,
        **flow.overrides(_NAME, in_luts(config, flow.family, board.capacity["dsps"])),
        script_after_synth="tee -q -o cells.json stat -json",
        nextpnr_opts=f"--seed {_SEED} --report {_REPORT} --write {_PLACED} --timing-allow-fail "
        f"{flow.placer}",
    )
    ask_for_more(plan.files, board.clock_hz)
    calls = calls_of(str(plan.files[f"{plan.script}.sh"]))
    for call in calls:
        path_of(call.tool)  # reports any missing tool before the first one runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan.extract(folder)
        result = _run_all(board, flow, calls, folder, progress)
        data, log = ((folder / f"{_NAME}.{kind}").read_bytes() for kind in (flow.suffix, "tim"))
        floor = FloorPlan.load(folder / _PLACED, folder / _REPORT)
    summary = {
        "board": board.name,
        "config": config_name,
        **asdict(result.usage),
        "fmax_mhz": round(result.fmax_mhz, 2),
        "clock_mhz": board.clock_hz / 1e6,
        "seconds": round(time.monotonic() - started, 1),
        "bitstream": f"{board.name}.{flow.suffix}",
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    tools = sorted({version_of(call.tool) for call in calls})
    if firmware is not None:
        summary["firmware_sha256"] = hashlib.sha256(firmware.image).hexdigest()
        if firmware.data:
            summary |= {"network": NETWORK_FILE, "flash_offset": board.flash_offset}
            summary["network_sha256"] = hashlib.sha256(firmware.data).hexdigest()
        tools += [f"{package} {metadata.version(package)}" for package in _OF_PROCESSORS]
    title = f"Floor plan of {config_name} on the {board.chip} of {board.title}"
    files = {
        summary["bitstream"]: data,
        "manifest.json": _manifest(board, config, summary, tools, floor.path),
        "timing.log": log.replace(_ROOT, b""),
        "floorplan.svg": drawn(floor, title).encode(),
    }
    if firmware is not None and firmware.data:
        files[NETWORK_FILE] = firmware.data
    return Bitstream(files, summary)


def ask_for_more(files: dict[str, Any], clock_hz: float) -> None:
    """Scale the clock constraints of an ECP5 in ``files`` from the design's ``clock_hz`` to the
    target of place and route.
    """
    ratio = _ASKED_HZ / clock_hz
    for name, text in files.items():
        if name.endswith(".lpf"):
            files[name] = _FREQUENCY.sub(
                lambda match: f"{match[1]}{float(match[2]) * ratio}{match[3]}", str(text)
            )


def _project(
    board: Board | ZynqBoard,
    config: Config,
    config_name: str,
    project: Mapping[str, Any],
    started: float,
) -> Bitstream:
    """A project from which the vendor's tools build the bitstream."""
    unknown = dict.fromkeys(("luts", "ffs", "dsps", "brams", "fmax_mhz"))
    summary = {
        "board": board.name,
        "config": config_name,
        **unknown,
        "clock_mhz": board.clock_hz / 1e6,
        "seconds": round(time.monotonic() - started, 1),
        "bitstream": None,
        "sha256": None,
    }
    files = {
        name: text if isinstance(text, bytes) else str(text).encode()
        for name, text in project.items()
    }
    files["manifest.json"] = _manifest(
        board, config, summary, [f"{board.vendor}: written, not built here"]
    )
    return Bitstream(files, summary)


def _manifest(
    board: Board | ZynqBoard,
    config: Config,
    summary: dict[str, Any],
    tools: list[str],
    path: CriticalPath | None = None,
) -> bytes:
    """Manifest of a bitstream, as JSON: its inputs and its critical ``path``."""
    manifest = {
        **{key: value for key, value in summary.items() if key != "seconds"},
        "critical_path": path.to_dict() if path else None,
        "parameters": config.to_dict(),
        "memory_bytes": board.memory_bytes,
        "tools": tools,
        "sources_sha256": sources_hash(),
    }
    return f"{json.dumps(manifest, indent=2)}\n".encode()


def sources_hash() -> str:
    """Hash of all hardware sources; together with the tools they determine a bitstream."""
    digest = hashlib.sha256()
    for path in hardware_sources():
        digest.update(f"{path.name}\n{path.read_text(encoding='utf-8')}".encode())
    return digest.hexdigest()


def _run_all(
    board: Board, flow: Flow, calls: list[Call], folder: Path, progress: Progress
) -> PlacedDesign:
    usage: Usage | None = None
    for call in calls:
        progress(call.tool.step)
        run(call, folder)
        _check_clock(board, folder)
        if usage is None:
            modules = json.loads((folder / "cells.json").read_text(encoding="utf-8"))
            cells = modules["design"]["num_cells_by_type"]
            if flow.refined:
                lost = refine(folder / f"{_NAME}.json", flow.family)
                cells["LUT4"] = cells.get("LUT4", 0) - lost
            usage = synthesized(cells)
            check_fit(usage, board.capacity, "the design", f"the {board.chip} of {board.title}")
    assert usage is not None
    return placed(folder / _REPORT, usage.ffs)


def _check_clock(board: Board, folder: Path) -> None:
    """Raises `FitError` if the design has been placed and routed and does not reach its clock."""
    report = folder / _REPORT
    if report.exists():
        reached = placed(report, 0).fmax_mhz
        clock = board.clock_hz / 1e6
        if reached < clock:
            longest = FloorPlan.load(folder / _PLACED, report).path
            raise FitError(
                f"the design reaches {reached:.1f} MHz on the {board.chip} of {board.title}, "
                f"{clock - reached:.1f} MHz less than its clock of {clock:g} MHz; --clock selects "
                f"a lower one; longest path: {longest}"
            )
