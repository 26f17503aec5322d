"""Fuzzing finds planted bugs, is independent of the number of jobs, and writes replayable
programs."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amaranth_vta.cli import invoke
from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.fuzz import campaign
from amaranth_vta.sim.fuzz.campaign import Findings, fuzz, processes
from amaranth_vta.sim.fuzz.cases import case, named_configs, random_configs
from amaranth_vta.sim.fuzz.comparison import compare
from amaranth_vta.sim.fuzz.reference import reference_of
from amaranth_vta.sim.fuzz.shrink import shrink
from amaranth_vta.sim.model import arithmetic, execution
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.programs.faults import faulty_program
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.programs.random_programs import legal_program, most_origin
from amaranth_vta.sim.programs.relocation import random_relocation
from amaranth_vta.sw.runtime.device import RunResult

TINY = named_configs(("tiny", "tiny-extended"))


def test_what_is_found_depends_on_the_seed_alone() -> None:
    def run(seed: int, jobs: int) -> Findings:
        with processes(jobs) as work:
            return fuzz(seed, range(5), TINY, ["functional"], work)

    one, two, other = run(3, 1), run(3, 2), run(4, 1)
    assert one.failures == two.failures == []
    assert one.programs == two.programs == 5
    assert one.instructions == two.instructions != other.instructions
    assert one.covered == two.covered
    assert one.covered != other.covered
    assert 0 < one.working < one.instructions


def test_a_planted_mistake_is_found_and_can_be_replayed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _plant_min(monkeypatch)
    monkeypatch.setattr(campaign, "shrink", lambda image, differs: image)
    findings = campaign.fuzz(1, range(3), TINY, ["functional"])
    assert findings.failures
    for failure in findings.failures:
        assert failure.differences
        (image,) = failure.images
        assert _has_min(image)
        image.save(tmp_path / "found.npz")
        # The exit code for a fault has precedence over that for a difference.
        code = 3 if failure.case.parts[0].kinds else 1
        assert invoke(["replay", str(tmp_path / "found.npz")]) == code


def test_a_program_that_differs_is_kept_with_its_base_registers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a planted bug, the RTL differs on relocated programs; they are saved and replayed with
    their base registers.
    """
    monkeypatch.setattr(campaign, "shrink", lambda image, differs: image)
    cases = [case(1, number, TINY) for number in range(9)]
    moved = [item.number for item in cases if item.moved and not item.kinds]
    _plant_min(monkeypatch)
    failures = campaign.fuzz(1, range(9), TINY, ["rtl"]).failures
    kept = [failure for failure in failures if failure.case.number in moved]
    assert kept
    monkeypatch.undo()
    for failure in kept:
        path = tmp_path / "found.npz"
        (image,) = failure.images
        assert any(image.bases.values())
        image.save(path)
        assert ProgramImage.load(path).bases == image.bases
        assert invoke(["replay", str(path), "--device", "rtl"]) == 1
        right = reference_of(failure.case.images()[0]).memory[: image.dram.size].copy()
        assert image.expected is not None
        first = image.insn_addr - image.origin
        stream = slice(first, first + 16 * image.insn_count)
        right[stream] = image.dram[stream]
        replace(image, expected=right).save(path)
        assert invoke(["replay", str(path), "--device", "rtl"]) == 0
        capsys.readouterr()
        assert invoke(["replay", str(path)]) == 2
        assert (
            "sets base registers, which the functional device does not" in capsys.readouterr().err
        )


@pytest.mark.parametrize("name", PRESETS)
def test_programs_of_every_machine_can_be_moved(name: str) -> None:
    """Programs move by multiples of an element, which may be larger than a bus word."""
    for seed in range(4):
        image = random_relocation(legal_program(PRESETS[name], seed, 10), random.Random(seed))
        assert any(image.bases.values())


def test_programs_shrink_to_what_matters() -> None:
    image = next(
        image for seed in range(9) if _has_min(image := legal_program(PRESETS["tiny"], seed, 20))
    )
    short = shrink(image, _has_min)
    assert _has_min(short)
    assert short.insn_count == 1
    assert np.array_equal(short.dram[: 1 << 16], image.dram[: 1 << 16])


def _plant_min(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make MIN compute MAX in the clear model; the compiled model and the RTL stay correct."""
    alu = arithmetic.alu

    def mistaken(tiles: Any, operation: isa.AluOp, *rest: Any) -> None:
        alu(tiles, isa.AluOp.MAX if operation is isa.AluOp.MIN else operation, *rest)

    monkeypatch.setattr(execution, "alu", mistaken)


def _has_min(image: ProgramImage) -> bool:
    decode = isa.instruction_set(image.config).decode
    instructions = map(decode, image.instruction_bits())
    return any(
        isinstance(item, isa.Alu) and item.alu_opcode == isa.AluOp.MIN and item.uops > 0
        for item in instructions
    )


def test_a_machine_that_ends_otherwise_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    run = FunctionalDevice.run

    def goes_on(*arguments: Any) -> RunResult:
        return replace(run(*arguments), fault=None)

    monkeypatch.setattr(FunctionalDevice, "run", lambda *some, time_limit: goes_on(*some))
    image = faulty_program(PRESETS["tiny"], ["illegal_instruction"], seed=1)
    found = compare(image, ["functional"], "ideal").differences
    assert "the fault is None, not illegal_instruction" in str(found[0])


def test_memory_that_begins_anywhere_is_reached_up_to_its_last_byte() -> None:
    for name in ("tiny", "int4"):
        config = PRESETS[name]
        origin = most_origin(config, 1 << 20)
        image = legal_program(config, 7, origin=origin)
        low = reference_of(legal_program(config, 7)).memory
        high = reference_of(image)
        assert high.outcome.fault is None
        assert high.ordered
        stream = image.insn_addr - origin
        assert np.array_equal(high.memory[:stream], low[:stream])


def test_memory_and_scratchpads_are_compared_after_most_faults() -> None:
    """Otherwise errors of devices after a fault would go unnoticed."""
    probed = defined = 0
    for seed in range(10):
        image = faulty_program(PRESETS["tiny-extended"], ["illegal_instruction"], seed)
        reference = reference_of(image)
        assert reference.outcome.fault is not None
        assert reference.ordered
        probed += reference.probe is not None
        defined += bool(reference.defined.mean() > 0.99)
    assert probed == defined == 10


def test_what_was_executed_behind_a_token_without_room_is_not_compared() -> None:
    """The machine detects that it is stuck only after younger instructions are done."""
    store = isa.Store(x_size=0, push_prev=1)
    behind = [isa.Store(dram_base=1024 + at, x_size=1) for at in range(20)]
    program = [*[store] * (isa.TOKEN_LIMIT + 1), *behind, isa.Finish()]
    encode = isa.instruction_set(PRESETS["tiny"]).encode
    code = b"".join(encode(item).to_bytes(16, "little") for item in program)
    dram = np.full(1 << 16, 7, np.uint8)
    dram[1 << 15 :][: len(code)] = np.frombuffer(code, np.uint8)
    image = ProgramImage(PRESETS["tiny"], dram, 1 << 15, len(program), None)
    fault = reference_of(image).outcome.fault
    assert fault is not None
    assert fault.cause == "token_overflow"
    assert compare(image, ["functional", "rtl"], "ideal").differences == []
    # Of the 20 elements, those whose STORE cannot have started are compared.
    size = PRESETS["tiny"].out.element_bytes
    defined = reference_of(image).defined[1024 * size :][: 20 * size]
    assert not defined[: 15 * size].any()
    assert defined[15 * size :].all()


def test_cases_are_of_all_kinds() -> None:
    cases = [case(1, number, TINY) for number in range(200)]
    assert {item.config_name for item in cases} == set(TINY)
    assert {len(item.kinds) for item in cases} == {0, 1, 2, 3}
    assert {item.dram.partition(":")[0] for item in cases} == {"ideal", "ddr", "random"}
    assert len({item.origin for item in cases}) > 20
    assert len({kind for item in cases for kind in item.kinds}) == 11
    assert case(1, 5, TINY) == cases[5]


def test_random_machines_run_random_programs() -> None:
    drawn = random_configs(1, 12)
    assert drawn == random_configs(1, 12)
    assert drawn != random_configs(2, 12)
    assert len({config.extensions for config in drawn.values()}) > 4
    findings = fuzz(1, range(24), drawn, ["functional"])
    assert findings.failures == []


def test_the_command_reports_what_it_tried(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["fuzz", "--programs", "4", "--devices", "functional", "--config", "tiny"]
    assert invoke([*arguments, "--keep", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "4 programs of" in told
    assert "agree in all of them" in told
    assert "LOAD INP" in told
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_programs_that_differ(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    gemm = arithmetic.gemm
    monkeypatch.setattr(campaign, "shrink", lambda image, differs: image)
    monkeypatch.setattr(execution, "gemm", lambda tiles, at, a, b: gemm(tiles, at, -a, b))
    arguments = ["fuzz", "--programs", "3", "--devices", "functional", "--config", "tiny"]
    assert invoke([*arguments, "--seed", "2", "--keep", str(tmp_path / "found")]) == 1
    kept = sorted((tmp_path / "found").glob("fuzz-2-*.npz"))
    assert kept
    assert str(kept[0]) in capsys.readouterr().out
    ProgramImage.load(kept[0])


def test_the_command_refuses_devices_that_cannot_be_compared(
    capsys: pytest.CaptureFixture,
) -> None:
    assert invoke(["fuzz", "--devices", "estimate"]) == 2
    assert "not one that is compared" in capsys.readouterr().err


@pytest.mark.parametrize("log_size", [17, 18, 20, 24, 25])
def test_machines_that_address_little_memory_are_compared_too(log_size: int) -> None:
    config = replace(PRESETS["tiny-extended"], log_dram_size=log_size)
    with processes(1) as work:
        findings = fuzz(2, range(6), {"small": config}, ["functional"], work)
    assert findings.failures == []
    assert findings.programs == 6


@pytest.mark.parametrize("log_size", [12, 16])
def test_too_little_memory_for_programs_is_one_sentence(
    log_size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "small.json"
    path.write_text(replace(PRESETS["tiny"], log_dram_size=log_size).to_json())
    options = ["--programs", "3", "--devices", "functional", "--keep", str(tmp_path)]
    assert invoke(["fuzz", "--config", str(path), *options]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert f"a machine with LOG_DRAM_SIZE = {log_size} can address" in text
