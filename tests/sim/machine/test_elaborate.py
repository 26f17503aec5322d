from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from amaranth.hdl import Fragment

from amaranth_vta.hw.bus.attributes import BusAttributes
from amaranth_vta.hw.config import PRESETS, Config, ConfigError
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.hw.top import Top
from amaranth_vta.sim.machine.elaborate import split_verilog, system_verilog, verilog, waivers
from amaranth_vta.sim.machine.rtl.build import machine_verilog, verilator_root
from tests.support.seeds import each_seed

TINY = PRESETS["tiny"]


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verilog") / "vta.v"
    path.write_text(machine_verilog(TINY))
    return path


@pytest.fixture(scope="module")
def other() -> str:
    """A machine with another bus, other attributes of its bursts, and a prefix."""
    config, attributes = replace(TINY, log_bus_width=7), BusAttributes(prot=0, cache=0b1111)
    return verilog(config, attributes=attributes, prefix="b_")


def _lint(*arguments: str | Path, folder: Path | None = None) -> str:
    root = verilator_root()
    command: list[str | Path] = [root / "bin" / "verilator_bin", "--lint-only", *arguments]
    environment = {**os.environ, "VERILATOR_ROOT": str(root)}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, cwd=folder
    ).stderr


def test_verilator_finds_nothing_to_say(tiny_file: Path) -> None:
    assert _lint(tiny_file) == ""


def test_a_system_of_one_machine_is_the_machine(tiny_file: Path) -> None:
    assert system_verilog(SystemConfig(TINY, 1)) == tiny_file.read_text()


@pytest.mark.nightly
def test_verilator_finds_nothing_to_say_about_three_machines(tmp_path: Path) -> None:
    path, waived = tmp_path / "vta.v", tmp_path / "vta.vlt"
    path.write_text(system_verilog(SystemConfig(TINY, 3)))
    waived.write_text(waivers("*vta.v"))
    assert _lint("-Wall", waived, path) == ""
    head, machine = path.read_text().split("\nmodule vta_machine(")
    assert "// 3 machines on a bus of 256 bits\n" in head
    assert "NUM_READ_OUTSTANDING 24, NUM_WRITE_OUTSTANDING 24" in head
    for port in ("output [1:0] m_axi_arid", "input [255:0] m_axi_rdata", "[13:0] s_axil_araddr"):
        assert f"{port};\n" in head
    assert len(re.findall(r"^  vta_machine machine_\d \($", head, re.MULTILINE)) == 3
    assert "vta_machine machine" not in machine


def test_the_waivers_are_those_that_a_strict_lint_needs(tiny_file: Path, tmp_path: Path) -> None:
    waived, user, both = (tmp_path / name for name in ("vta.vlt", "user.v", "both.v"))
    waived.write_text(waivers("*vta.v"))
    user.write_text(
        "module user(output o);\n  wire [1:0] extra = 3'd1;\n  vta vta(.irq(o));\nendmodule\n"
    )
    strict = ("-Wall", "-Wno-fatal", "-Wno-PINMISSING", "--top-module", "user")
    own = {"UNUSEDSIGNAL", "WIDTHTRUNC"}
    lines = re.findall(r"%Warning-(\w+): (\S+?):", _lint(*strict, waived, tiny_file, user))
    assert set(lines) == {(name, str(user)) for name in own}
    # Warnings that are off within the text are on after its end.
    both.write_text(tiny_file.read_text() + user.read_text())
    found = set(re.findall(r"%Warning-(\w+)", _lint(*strict, waived, both)))
    # Functions hide names in larger machines.
    rules = set(re.findall(r"-rule (\w+)", waived.read_text()))
    assert found | {"VARHIDDEN"} == rules | own


def test_two_machines_fit_in_one_design(other: str, tiny_file: Path, tmp_path: Path) -> None:
    """With a prefix, no module has the name of a module of another machine."""
    path = tmp_path / "b.v"
    path.write_text(other)
    assert _lint(path) == ""
    prefixed, plain = (
        set(re.findall(r"^module (\w+)", found, re.MULTILINE))
        for found in (other, tiny_file.read_text())
    )
    assert len(prefixed) > 10
    assert prefixed.isdisjoint(plain)
    ports = re.search(r"module b_vta\((.*?)\);", other, re.DOTALL)
    assert ports is not None
    assert all(port.strip().startswith("b_") for port in ports[1].split(","))


def test_verilator_says_what_is_wrong(tiny_file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "vta.v"
    text = tiny_file.read_text()
    driver = re.search(r"  assign m_axi_awlock = .*\n", text)
    assert driver is not None
    broken.write_text(text.replace(driver[0], "  assign m_axi_awlock = nothing;\n"))
    assert "'nothing'" in _lint(broken)


@pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus is not installed")
def test_icarus_elaborates_it(tiny_file: Path) -> None:
    subprocess.run(["iverilog", "-g2005-sv", "-t", "null", "-s", "vta", tiny_file], check=True)


def test_logic_depends_on_no_order_of_events(tiny_file: Path) -> None:
    """SystemVerilog does not run an `always @*` at time 0 if none of its inputs ever changes."""
    text = tiny_file.read_text()
    assert set(re.findall(r"always @\S+", text)) == {"always @(posedge"}
    assert "initial" not in text


def test_every_wire_has_bits_and_every_module_a_plain_name(tiny_file: Path) -> None:
    text = tiny_file.read_text()
    assert "[-1:0]" not in text
    assert all(re.match(r"vta\w*\(", name) for name in re.findall(r"^module (.*)", text, re.M))


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


def test_each_module_names_its_source(tiny_file: Path) -> None:
    text = tiny_file.read_text()
    modules = re.findall(r"^// From (\S+)\nmodule (\w+)", text, re.MULTILINE)
    assert len(modules) == text.count("\nmodule ")
    assert ("amaranth_vta/hw/datapath/alu_lane.py", "vta_core_machine_compute_alu_lane_0_0") in (
        modules
    )
    root = Path(__file__).parents[3]
    assert all((root / source).exists() for source, _ in modules)
    assert text.count(".py") == len(modules)


def test_bursts_are_non_secure_unless_asked(other: str, tiny_file: Path) -> None:
    for channel in ("aw", "ar"):
        assert f"assign m_axi_{channel}prot = 3'h2;" in tiny_file.read_text()
        assert f"assign b_m_axi_{channel}prot = 3'h0;" in other
        assert f"assign b_m_axi_{channel}cache = 4'hf;" in other
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
    load = re.search(r"module vta_core_machine_load\((.*?)\);", text, re.DOTALL)
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
    head, tail = text[: text.index("\n// From ") + 1], "/* verilator lint_restore */\n"
    modules = [files[name].removeprefix(head).removesuffix(tail) for name in names]
    assert head + "\n".join(modules) + tail == text
    assert all(files[name].count("\nendmodule") == 1 for name in names)
    (tmp_path / "vta_core_counters.v").unlink()
    assert "vta_core_counters" in _lint("--top-module", "vta", "-f", "vta.f", folder=tmp_path)


def _random_config(chance: random.Random) -> Config:
    """A small valid configuration, with random values of the other parameters."""
    while True:
        values = {
            item.name: chance.randint(item.metadata["low"], item.metadata["high"])
            for item in fields(Config)
        }
        values |= {"log_batch": chance.randint(0, 1), "log_block_in": 2}
        values |= {"log_block_out": chance.randint(2, 3)}
        # Scratchpads may be as small as two elements: few elements beside a wide bus are a corner
        # case.
        batch, block_in, block_out = (
            values[f"log_{name}"] for name in ("batch", "block_in", "block_out")
        )
        least = {
            "uop": 2,
            "inp": batch + block_in + values["log_inp_width"] - 3,
            "wgt": block_out + block_in + values["log_wgt_width"] - 3,
            "acc": batch + block_out + values["log_acc_width"] - 3,
        }
        for name, least_log in least.items():
            values[f"log_{name}_buff_size"] = least_log + chance.randint(1, 6)
        if chance.random() < 0.6:
            values |= {"log_acc_width": 5, "log_inp_width": 3, "log_out_width": 3}
        try:
            return Config(**values)
        except ConfigError:
            continue


@each_seed(range(3))
def test_what_the_configuration_accepts_can_be_elaborated(seed: int) -> None:
    Fragment.get(Top(_random_config(random.Random(seed))), None)


@pytest.mark.parametrize(
    ("bus", "depths"), [(9, (1, 3, 3)), (9, (3, 1, 1)), (8, (4, 4, 2))], ids=str
)
def test_scratchpads_may_hold_less_than_a_beat_of_a_wide_bus(
    bus: int, depths: tuple[int, int, int]
) -> None:
    """``depths`` are log2 of the elements of UOP, INP and ACC."""
    uop, inp, acc = depths
    config = replace(
        PRESETS["tiny-extended"],
        **{"log_bus_width": bus, "log_uop_buff_size": 2 + uop, "log_inp_buff_size": 2 + inp},
        **{"log_acc_buff_size": 4 + acc, "log_wgt_buff_size": 5, "depthwise": 0, "lookup": 0},
    )
    Fragment.get(Top(config), None)
