from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from amaranth_vta.hw.config import PRESETS, BusAttributes, ConfigError
from amaranth_vta.sim.machine.elaborate import split_verilog, verilog
from amaranth_vta.sim.machine.rtl.build import verilator_root

TINY = PRESETS["tiny"]


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verilog") / "vta.v"
    path.write_text(verilog(TINY))
    return path


def _lint(*arguments: str | Path, folder: Path | None = None) -> str:
    root = verilator_root()
    command: list[str | Path] = [root / "bin" / "verilator_bin", "--lint-only", *arguments]
    environment = {**os.environ, "VERILATOR_ROOT": str(root)}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, cwd=folder
    ).stderr


def test_verilator_finds_nothing_to_say(tiny_file: Path) -> None:
    assert _lint(tiny_file) == ""


def test_verilator_says_what_is_wrong(tiny_file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "vta.v"
    text = tiny_file.read_text()
    driver = re.search(r"  assign irq = .*\n", text)
    assert driver is not None
    broken.write_text(text.replace(driver[0], "  assign irq = nothing;\n"))
    assert "'nothing'" in _lint(broken)


@pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus is not installed")
def test_icarus_elaborates_it(tiny_file: Path) -> None:
    subprocess.run(["iverilog", "-g2005-sv", "-t", "null", "-s", "vta", tiny_file], check=True)


def test_each_block_runs_at_the_start(tiny_file: Path) -> None:
    """As SystemVerilog alone does not have it, where nothing that it reads ever changes."""
    for module in re.findall(r"^module .*?^endmodule", tiny_file.read_text(), re.S | re.M):
        blocks = re.findall(r"always @\*(.*\n.*)", module)
        assert set(blocks) <= {" begin\n    if (\\$started ) begin end"}
        assert not blocks or "initial \\$started <= 1'h1;" in module


def test_the_text_does_not_depend_on_the_process(tiny_file: Path) -> None:
    program = (
        "from amaranth_vta.hw.config import PRESETS;"
        "from amaranth_vta.sim.machine.elaborate import verilog;"
        "print(verilog(PRESETS['tiny']), end='')"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout == tiny_file.read_text()


def test_the_text_names_no_file_and_holds_no_memory_contents(tiny_file: Path) -> None:
    text = tiny_file.read_text()
    assert ".py" not in text
    assert "initial begin" not in text


def test_bursts_are_non_secure_unless_asked(tiny_file: Path) -> None:
    other = verilog(TINY, attributes=BusAttributes(prot=0, cache=0b1111))
    for channel in ("aw", "ar"):
        assert f"assign m_axi_{channel}prot = 3'h2;" in tiny_file.read_text()
        assert f"assign m_axi_{channel}prot = 3'h0;" in other
        assert f"assign m_axi_{channel}cache = 4'hf;" in other
    with pytest.raises(ConfigError, match="AxPROT = 8 is not a number of 3 bits"):
        BusAttributes(prot=8)


def test_the_ports_have_the_names_that_tools_know(tiny_file: Path) -> None:
    head = re.search(r"module vta\((.*?)\);", tiny_file.read_text(), re.DOTALL)
    assert head is not None
    ports = {port.strip() for port in head[1].split(",")}
    assert {"clk", "rst", "irq"} < ports
    assert {"m_axi_awaddr", "m_axi_wstrb", "m_axi_bresp", "m_axi_arlen", "m_axi_rdata"} < ports
    assert {"s_axil_awaddr", "s_axil_wdata", "s_axil_bvalid", "s_axil_rready"} < ports
    assert all(port.startswith(("m_axi_", "s_axil_")) for port in ports - {"clk", "rst", "irq"})


def test_the_ports_of_inner_modules_are_named_by_what_they_carry(tiny_file: Path) -> None:
    text = tiny_file.read_text()
    assert "port$" not in text
    load = re.search(r"module \\vta\.core\.machine\.load \((.*?)\);", text, re.DOTALL)
    assert load is not None
    ports = {port.strip() for port in load[1].split(",")}
    assert {"activity__begins_0", "activity__starts_1", "insn__payload"} < ports


def test_no_wire_is_named_as_a_bit_of_another(tiny_file: Path) -> None:
    names = re.findall(r"\\(\S+)", tiny_file.read_text())
    assert [name for name in names if "[" in name] == []
    assert "wgt.3.0" in names


def test_a_file_for_each_module_is_the_same_machine(tiny_file: Path, tmp_path: Path) -> None:
    text = tiny_file.read_text()
    files = split_verilog(text)
    for name, part in files.items():
        (tmp_path / name).write_text(part)
    assert _lint("--top-module", "vta", "-f", "vta.f", folder=tmp_path) == ""
    names = files["vta.f"].split()
    head = text[: text.index("\nmodule ") + 1]
    assert head + "\n".join(files[name].removeprefix(head) for name in names) == text
    assert all(files[name].count("\nendmodule") == 1 for name in names)
    (tmp_path / "vta.core.counters.v").unlink()
    assert "vta.core.counters" in _lint("--top-module", "vta", "-f", "vta.f", folder=tmp_path)
