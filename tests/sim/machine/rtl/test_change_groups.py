"""A machine with change groups does the same in every cycle as one without."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.registers import REGISTERS, Access
from amaranth_vta.sim.amaranth_internals.flat_module import FlatModule
from amaranth_vta.sim.fuzz.cases import case
from amaranth_vta.sim.fuzz.comparison import differences
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
from tests.support.register_bench import RegisterBench
from tests.support.seeds import each_seed

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
    """What a host observes that reads registers, prepares the next run, and stops or launches runs
    at random times; and the final memory.
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


@each_seed(range(200), daily=20)
def test_a_host_observes_the_same_in_every_cycle(libraries: list[Path], seed: int) -> None:
    chosen = case(3, seed, {NAME: CONFIG})
    one, other = (observed(each, chosen.image(), chosen.dram, seed) for each in libraries)
    assert one == other


@each_seed(range(200), daily=20)
def test_programs_do_as_in_the_model(libraries: list[Path], seed: int) -> None:
    chosen = case(4, seed, {NAME: CONFIG})
    image = chosen.image()
    found = []
    for machine in libraries:
        timing = memory_timing(chosen.dram)
        bench = RegisterBench(CONFIG, image.dram.size, timing, image.origin, machine)
        found.append(differences(bench, image, reference_of(image)))
    assert found[0] == found[1]
    assert found[0][0] == []


@pytest.mark.nightly
def test_falling_edges_of_the_groups_need_not_be_evaluated(verilog: str, tmp_path: Path) -> None:
    flags = (*VERILATOR_FLAGS, *flags_of(grouped=True, change_grouped=True))
    translate(verilog, Harness(HARNESS, PINS), flags, tmp_path)
    assert knows_clocks(tmp_path, flags)


REGISTER = """\
module vta(clk, en, x, y);
  input clk;
  wire clk;
  input en;
  wire en;
  input [7:0] x;
  wire [7:0] x;
  output [7:0] y;
  reg [7:0] y = 8'h00;
  wire [7:0] \\sum$1 ;
  wire \\a.taken ;
  assign \\sum$1  = \\a.total  + x;
  assign \\a.taken  = en & x[7];
  reg [7:0] \\a.total  = 8'h00;
  always @(posedge clk)
    if (\\a.taken ) \\a.total  <= \\sum$1 ;
  always @(posedge clk)
    y <= \\a.total ;
endmodule
"""


def test_logic_of_a_group_moves_and_what_decides_is_compared() -> None:
    text = with_change_groups(REGISTER, {"a": [r"a\."]})
    module = FlatModule(text, "vta")
    assert module.kinds["sum$1"] == module.kinds["a.taken"] == "reg"
    assert not any("sum$1" in assign.targets for assign in module.assigns)
    # ``x`` is added only under the condition, of which its other bits are no part.
    (compared,) = re.findall(r"clock_a_inputs != \{ (.*) \}", text)
    assert compared == "en, x[7]"
    (block,) = (block for block in module.blocks if block.clock == "clock_a")
    assert "if (\\a.taken  ) begin\n      \\sum$1  = " in block.text
    assert "clock_a_changed = 1;\n      \\a.total <= \\sum$1  ;" in block.text
    assert text.count("always @(posedge clk)") == 1


def test_groups_without_registers_are_refused() -> None:
    with pytest.raises(ValueError, match="no register of clk matches b"):
        with_change_groups(REGISTER, {"a": [r"a\."], "b": [r"b\."]})


def test_blocks_of_another_form_are_refused() -> None:
    unknown = REGISTER.replace("if (\\a.taken ) \\", "case (x) 0: \\", 1)
    with pytest.raises(ValueError, match="no register of clk matches|unknown form"):
        with_change_groups(unknown, {"a": [r"a\."]})
