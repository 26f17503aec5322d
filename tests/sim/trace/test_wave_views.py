"""Save files for GTKWave and Surfer, from headers of wave files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.interfaces import CheckedEntry, QueueEntry
from amaranth_vta.sim.trace.wave_file import WaveError
from amaranth_vta.sim.trace.wave_views import GTKWAVE, SURFER, VALUE_BITS, write_views

# A board with a part of a machine, and a scope that is not shown.
SCOPES = {
    "TOP.vta.system": {"rx": 1, "other": 1},
    "TOP.vta.system.machine": {"m_axi__araddr": 48},
    "TOP.vta.system.machine.core.machine.load.order": {
        "insn__payload": 195,
        "insn__valid": 1,
        "fault__cause": 3,
    },
    "TOP.vta.system.machine.core.machine.load": {"fault__cause": 3},
    "TOP.vta.system.machine.core.machine.compute.alu": {"operation": 3},
}


@pytest.fixture
def views(tmp_path: Path) -> Path:
    lines = []
    for number, (scope, signals) in enumerate(SCOPES.items()):
        names = scope.split(".")
        lines += [f"$scope module {name} $end" for name in names]
        lines += [
            f"$var wire {bits} a{number} {name}{f' [{bits - 1}:0]' if bits > 1 else ''} $end"
            for name, bits in signals.items()
        ]
        lines += ["$upscope $end"] * len(names)
    waves = tmp_path / "run.vcd"
    waves.write_text("\n".join([*lines, "$enddefinitions $end", ""]))
    write_views(waves, tmp_path / "views")
    return tmp_path / "views"


def test_gtkwave_shows_groups_in_the_order_of_the_pipeline(views: Path) -> None:
    lines = (views / GTKWAVE).read_text().splitlines()
    assert lines[0] == f'[dumpfile] "{views.parent / "run.vcd"}"'
    groups = [after[1:] for line, after in pairwise(lines) if line == "@800200"]
    assert groups == ["serial line", "load", "ALU", "memory bus"]
    ended = [after[1:] for line, after in pairwise(lines) if line == "@1000200"]
    assert ended == groups
    machine = "TOP.vta.system.machine"
    load = lines[lines.index("-load") : lines.index("-ALU")]
    payload = f"{machine}.core.machine.load.order.insn__payload[194:0]"
    assert load[1:-3] == [
        "@2022",
        f"^1 {views / 'opcode.txt'}",
        f"#{{{machine}.core.machine.load.order.opcode[2:0]}} "
        f"(192){payload} (193){payload} (194){payload}",
        "@28",
        f"{machine}.core.machine.load.order.insn__valid",
        "@2022",
        f"^1 {views / 'cause.txt'}",
        f"{machine}.core.machine.load.order.fault__cause[2:0]",
    ]
    assert lines[-5:-2] == ["-memory bus", "@22", f"{machine}.m_axi__araddr[47:0]"]


def test_surfer_shows_the_same_signals_and_names_of_values(views: Path) -> None:
    lines = (views / SURFER).read_text().splitlines()
    machine = "TOP.vta.system.machine"
    assert lines == [
        "divider_add serial line",
        "variable_add TOP.vta.system.rx",
        "divider_add load",
        f"variable_add {machine}.core.machine.load.order.insn__payload",
        f"variable_add {machine}.core.machine.load.order.insn__valid",
        f"variable_add {machine}.core.machine.load.order.fault__cause",
        "divider_add ALU",
        f"variable_add {machine}.core.machine.compute.alu.operation",
        "divider_add memory bus",
        f"variable_add {machine}.m_axi__araddr",
        *("item_focus f", "item_set_format cause"),
        *("item_focus h", "item_set_format operation"),
        *("item_unfocus", "zoom_fit"),
    ]


def test_values_have_the_names_of_the_instruction_set(views: Path) -> None:
    for name, values in (("opcode", isa.Opcode), ("cause", isa.Cause), ("operation", isa.AluOp)):
        named = [f"{value:d} {value.name}" for value in values]
        assert (views / f"{name}.txt").read_text().splitlines() == named
        of_surfer = (views / ".surfer" / "mnemonic" / f"{name}.txt").read_text().splitlines()
        assert of_surfer == [f"Name: {name}", "Bits: 3", *named]


def test_opcodes_are_the_lowest_bits_of_a_modules_instruction() -> None:
    following = isa.instruction_set(PRESETS["tiny"]).layouts[isa.Opcode.LOAD]["pop_prev"]
    assert following.offset == VALUE_BITS
    assert CheckedEntry.as_shape()["entry"].offset == QueueEntry.as_shape()["bits"].offset == 0


def test_views_of_an_incomplete_file_are_refused(tmp_path: Path) -> None:
    waves = tmp_path / "run.vcd"
    waves.write_text("$scope module TOP $end\n")
    with pytest.raises(WaveError, match="its header does not end"):
        write_views(waves, tmp_path / "views")
    assert not (tmp_path / "views").exists()
