"""Fuzzing of several machines on one memory finds errors of one that affect another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from amaranth_vta.cli import invoke
from amaranth_vta.hw import isa
from amaranth_vta.sim.fuzz import campaign
from amaranth_vta.sim.fuzz.campaign import Findings, fuzz, processes
from amaranth_vta.sim.fuzz.cases import named_configs
from amaranth_vta.sim.fuzz.system_cases import Systems, are_apart, system_case
from amaranth_vta.sim.machine.rtl.system import RtlSystem
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.systems import FunctionalSystem
from amaranth_vta.sw.runtime.device import SystemResult
from tests.support.seeds import each_seed

TINY = named_configs(("tiny",))
TWO = Systems(2)


@pytest.fixture
def kept_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that differ are not shortened, which takes seconds."""
    monkeypatch.setattr(campaign, "shrink", lambda image, differs: image)


def found_in(numbers: range, devices: Sequence[str], systems: Systems = TWO) -> Findings:
    return fuzz(1, numbers, TINY, devices, systems=systems)


@each_seed(range(1, 9), daily=1)
def test_machines_give_what_each_gives_alone(seed: int) -> None:
    findings = fuzz(seed, range(20), TINY, ["functional", "rtl"], systems=TWO)
    assert findings.failures == []
    assert findings.programs == 40
    assert findings.cycles > 10_000
    # Most programs are compared as a whole.
    assert 0 < findings.programs - findings.legal < 25
    assert findings.unordered < 10


@pytest.mark.nightly
def test_the_findings_depend_on_the_seed_alone() -> None:
    def run(jobs: int) -> Findings:
        with processes(jobs) as work:
            return fuzz(1, range(6), TINY, ["functional"], work, systems=Systems(3, 128))

    one, two = run(1), run(2)
    assert one.failures == two.failures == []
    assert one.programs == 18
    assert (one.instructions, one.covered) == (two.instructions, two.covered)
    other = found_in(range(2, 3), ["functional"], Systems(3, 128))
    assert other.instructions < one.instructions


def test_cases_are_of_all_kinds() -> None:
    cases = [system_case(1, number, TINY, TWO) for number in range(60)]
    disturbed = [case.disturbance for case in cases if case.disturbance is not None]
    assert {item.machine for item in disturbed} == {None, 0, 1}
    assert min(item.cycles for item in disturbed) < 30
    assert max(item.cycles for item in disturbed) > 1000
    assert {case.dram.partition(":")[0] for case in cases} == {"ideal", "ddr", "random"}
    kinds = [[bool(part.kinds) for part in case.parts] for case in cases]
    assert [True, False] in kinds
    assert [False, True] in kinds
    for case in cases[:10]:
        first, second = case.images()
        assert first.origin == case.parts[0].origin
        assert first.origin + first.dram.size == second.origin


def test_an_access_to_the_zone_of_another_machine_is_seen() -> None:
    first, second = system_case(1, 1, TINY, TWO).images()
    assert are_apart([first, second])
    size = first.config.out.element_bytes
    last, memory = second.origin // size, (second.origin + second.dram.size) // size
    for x_size, stride, expected in ((1, 0, False), (1, memory - last, True)):
        # The second row is in the other zone, or beyond the memory.
        row = isa.Store(dram_base=last - 1, x_size=x_size, y_size=2, x_stride=stride + 1)
        assert are_apart([_with(first, row), second]) == expected


def _with(image: ProgramImage, instruction: isa.Instruction) -> ProgramImage:
    return ProgramImage.assemble(
        image.config, image.dram, image.insn_addr, [instruction], image.origin
    )


def test_a_fault_that_stops_another_machine_is_found(
    kept_long: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_all = FunctionalSystem.run_all

    def stops(self: FunctionalSystem, streams: Any, limit: Any = None) -> SystemResult:
        """A fault of machine 0 ends the runs of all."""
        result = run_all(self, streams, limit)
        if result.runs[0].fault is not None:
            result.runs[1:] = result.runs[:1] * (len(streams) - 1)
        return result

    monkeypatch.setattr(FunctionalSystem, "run_all", stops)
    failures = found_in(range(8), ["functional"]).failures
    assert failures
    for failure in failures:
        assert failure.case.parts[0].kinds
        assert str(failure.differences[0]).startswith("functional: machine 1: the fault is")


def test_a_stop_of_all_machines_instead_of_one_is_found(
    kept_long: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_all = RtlSystem.finish_all

    def stops(self: RtlSystem, *arguments: Any) -> SystemResult:
        if any(driver.is_stopped for driver in self.drivers):
            for driver in self.drivers:
                driver._ask_to_stop()
        return finish_all(self, *arguments)

    monkeypatch.setattr(RtlSystem, "finish_all", stops)
    failures = found_in(range(6), ["rtl"]).failures
    assert failures
    for failure in failures:
        assert failure.disturbance is not None
        other = 1 - (failure.disturbance.machine or 0)
        assert f"machine {other}: " in str(failure.differences[0])


def test_a_reset_that_leaves_a_machine_running_is_found(
    kept_long: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RtlSystem, "reset", lambda self: None)
    failures = found_in(range(20, 21), ["rtl"]).failures
    assert failures
    for failure in failures:
        assert str(failure.disturbance).startswith("a reset after")


def test_the_command_keeps_programs_that_can_be_replayed(
    kept_long: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write = FunctionalSystem.write

    def wrong(self: FunctionalSystem, address: int, data: Any) -> None:
        """The last byte of a zone, which no program reads, is another one."""
        write(self, address, data)
        self.memory[address - self.origin + data.size - 1] ^= 1

    monkeypatch.setattr(FunctionalSystem, "write", wrong)
    arguments = ["fuzz", "--machines", "2", "--memory-bus", "64", "--config", "tiny"]
    arguments += ["--devices", "functional", "--keep", str(tmp_path)]
    legal = next(
        number
        for number in range(99)
        if not any(part.kinds for part in system_case(1, number, TINY, TWO).parts)
    )
    assert invoke([*arguments, "--only", str(legal)]) == 1
    said = capsys.readouterr().out
    paths = [str(tmp_path / f"fuzz-1-{legal}-{machine}.npz") for machine in range(2)]
    assert f"programs {legal}, tiny, --dram" in said
    assert " ".join(paths) in said
    assert "on 1 configuration, 2 machines at once" in said
    assert invoke(["replay", *paths]) == 1
    monkeypatch.undo()
    assert invoke(["replay", *paths]) == 0
    assert invoke(["replay", *paths, "--device", "rtl", "--memory-bus", "128"]) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--memory-bus", "128"], "--memory-bus is the bus of several machines"),
        (["--machines", "2", "--devices", "pysim"], "the device pysim is a single machine"),
        (["--machines", "2", "--memory-bus", "96"], "a memory bus of 96 bits does not fit"),
    ],
)
def test_what_is_not_possible_is_said(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["fuzz", "--programs", "1", "--keep", str(tmp_path), *options]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
