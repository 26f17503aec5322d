"""A machine with change groups does the same in every cycle as one without."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.registers import REGISTERS, Access
from amaranth_vta.sim.amaranth_internals.flat_module import FlatModule
from amaranth_vta.sim.fuzz import comparison
from amaranth_vta.sim.fuzz.cases import case
from amaranth_vta.sim.fuzz.reference import reference_of
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.machine.rtl.build import (
    HARNESS,
    PINS,
    VERILATOR_FLAGS,
    Harness,
    change_grouped_verilog,
    flags_of,
    kept_design,
    knows_clocks,
    library,
    machine_library,
    translate,
)
from amaranth_vta.sim.machine.rtl.change_groups import with_change_groups
from amaranth_vta.sim.programs.image import ProgramImage
from tests.support.differences import differences
from tests.support.register_bench import RegisterBench
from tests.support.seeds import each_seed

RULES = Path(__file__).with_name("change_groups.v").read_text()
BOTH = """
module vta(input clk, clock_a, rst, en, input [1:0] write, at, input [7:0] x, y, z, u, v,
    output clock_a_active, output [8:0] differs);
  wire [71:0] one, other;
  grouped grouped (.*, .out(one));
  plain plain (.*, .out(other));
  genvar n;
  for (n = 0; n < 9; n = n + 1) assign differs[n] = one[8 * n +: 8] != other[8 * n +: 8];
endmodule
"""
RESTED = 1 << 31
NAME = "tiny-extended"
CONFIG = PRESETS[NAME]
WORDS = [
    register.offset + part
    for register in REGISTERS.values()
    for part in range(0, register.width // 8, 4)
]
NEXT_RUN = [
    register.offset
    for name, register in REGISTERS.items()
    if register.access is Access.READ_WRITE and name not in ("INTERRUPT_ENABLE", "TIMEOUT")
]


@pytest.fixture(scope="module")
def verilog() -> str:
    return kept_design(f"{CONFIG.to_json()} changes", lambda: change_grouped_verilog(CONFIG))


@pytest.fixture(scope="module")
def libraries(verilog: str) -> list[Path]:
    """The machine with change groups, and without."""
    return [library(verilog, grouped=True, change_grouped=True), machine_library(CONFIG)]


def observed(machine: Path, image: ProgramImage, dram: str, seed: int) -> list[object]:
    """Observations of a host that reads registers, prepares the next run, and stops or launches
    runs at random times; and the final memory.
    """
    chance = random.Random(seed)
    timing, size = memory_timing(dram), image.dram.size
    bench = RegisterBench(CONFIG, size, timing, image.origin, machine)
    seen: list[object] = []
    for _ in range(3):
        bench.write(image.origin, image.dram)
        bench.set_limits(image.limits)
        bench.launch(image.insn_addr, image.insn_count)
        before = {word: bench.read_words(word, 1) for word in NEXT_RUN}
        for _ in range(chance.randrange(25)):
            seen.append(bench.machine.advance(chance.choice((1, 5, 40, 400))))
            match chance.randrange(8):
                case 0:
                    bench.poke("TIMEOUT", chance.choice((0, 50, 1 << 24)))
                case 1:
                    bench.write_words(chance.choice(NEXT_RUN), [chance.randrange(1 << 12)])
                case 2:
                    bench.poke("INTERRUPT_PENDING", chance.randrange(4))
                case 3 if chance.random() < 0.2:
                    bench.poke("CONTROL", chance.randrange(4))
                case _:
                    seen += bench.read_words(chance.choice(WORDS), 1)
            seen.append(bench.machine.cycle)
        bench.command("reset")
        bench.settle()
        seen += [bench.read_words(word, 1) for word in WORDS]
        if "draining" in bench.status or chance.random() < 0.3:
            bench.reset_line()
        else:
            for word, value in before.items():
                bench.write_words(word, value)
            bench.poke("TIMEOUT", 1 << 24)
        seen.append(bench.read(image.origin, size).tobytes())
    return seen


@pytest.mark.nightly  # builds a simulator for these tests alone
@each_seed(range(200))
def test_a_host_observes_the_same_in_every_cycle(libraries: list[Path], seed: int) -> None:
    chosen = case(3, seed, {NAME: CONFIG})
    one, other = (observed(each, chosen.image(), chosen.dram, seed) for each in libraries)
    assert one == other


@pytest.mark.nightly
@each_seed(range(200))
def test_programs_do_as_in_the_model(libraries: list[Path], seed: int) -> None:
    chosen = case(4, seed, {NAME: CONFIG})
    image = chosen.image()
    found = []
    for machine in libraries:
        timing = memory_timing(chosen.dram)
        bench = RegisterBench(CONFIG, image.dram.size, timing, image.origin, machine)
        found.append(comparison.differences(bench, image, reference_of(image)))
    assert found[0] == found[1]
    assert found[0][0] == []


@pytest.mark.nightly
def test_falling_edges_of_the_groups_need_not_be_evaluated(verilog: str, tmp_path: Path) -> None:
    flags = (*VERILATOR_FLAGS, *flags_of(grouped=True, change_grouped=True))
    translate(verilog, Harness(HARNESS, PINS), flags, tmp_path)
    assert knows_clocks(tmp_path, flags)


def test_each_kind_of_register_ticks_when_it_has_to() -> None:
    grouped = with_change_groups(RULES, {"a": [r"a\."]}).replace("module vta(", "module grouped(")
    plain = RULES.replace("module vta(", "module plain(")
    found = differences(
        grouped + plain + BOTH, Path(__file__).with_name("change_groups.cpp"), 50_000
    )
    assert found == RESTED


def test_logic_of_a_group_moves_and_what_decides_is_compared() -> None:
    text = with_change_groups(RULES, {"a": [r"a\."]})
    module = FlatModule(text, "vta")
    moved = {
        name
        for name in ("sum$1", "next$2", "a.counts", "a.both", "a.word")
        if module.kinds[name] == "reg"
    }
    assert moved == {"sum$1", "next$2", "a.counts", "a.both"}
    assert not moved.intersection(name for assign in module.assigns for name in assign.targets)
    (compared,) = re.findall(r"clock_a_inputs != \{ (.*) \}", text)
    # ``at`` and ``x`` only matter under conditions.
    assert compared == "en, rst, u, v, write[0], write[1], y, z[0]"
    assert [block.clock for block in module.blocks] == ["clk", "clock_a"]


def test_groups_without_registers_are_refused() -> None:
    with pytest.raises(ValueError, match="no register of clk matches b"):
        with_change_groups(RULES, {"a": [r"a\."], "b": [r"b\."]})


def test_registers_in_blocks_of_another_form_keep_their_clock() -> None:
    unknown = RULES.replace("if (z[0]) \\a.bits", "case (z[0]) 1: \\a.bits")
    module = FlatModule(with_change_groups(unknown, {"a": [r"a\."]}), "vta")
    (text,) = (block.text for block in module.blocks if "case (z[0])" in block.text)
    assert text.startswith("  always @(posedge clk)")
