"""``vta replay`` of several images, on machines that share a memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.cli import invoke
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.programs.faults import random_faulty_program
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.programs.random_programs import random_program

TINY = PRESETS["tiny"]
_APART = 1 << 18


@pytest.fixture
def images(tmp_path: Path) -> list[ProgramImage]:
    """Two programs, each saved in a file, with memories at other addresses."""
    programs = [random_program(TINY, seed, 20, origin=seed * _APART) for seed in (2, 1)]
    for number, program in enumerate(programs):
        program.save(tmp_path / f"{number}.npz")
    return programs


def replayed(folder: Path, *options: str) -> int:
    return invoke(["replay", str(folder / "0.npz"), str(folder / "1.npz"), *options])


@pytest.mark.parametrize("device", ["functional", "rtl"])
def test_programs_run_at_once(
    device: str, images: list[ProgramImage], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, after = tmp_path / "out.json", tmp_path / "after.npz"
    files = ("--json", str(out), "--outputs", str(after))
    assert replayed(tmp_path, "--device", device, "--memory-bus", "128", *files) == 0
    assert capsys.readouterr().out.count("memory is as expected in every byte") == 2
    report = json.loads(out.read_text())
    assert (report["machines"], report["memory_bus"], report["mismatches"]) == (2, 128, 0)
    assert report["macs"] == sum(item["macs"] for item in report["programs"])
    assert report["peak_macs_per_cycle"] == 2 * TINY.macs_per_cycle
    if device == "rtl":
        longest = max(item["cycles"] for item in report["programs"])
        assert longest <= report["cycles"] <= longest + 40
    with np.load(after) as file:
        for number, image in enumerate(images):
            np.testing.assert_array_equal(file[f"dram_{number}"], image.expected)


def test_a_difference_or_a_fault_of_one_is_found(
    images: list[ProgramImage], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = images[1].expected
    assert expected is not None
    expected[-1] ^= 1
    images[1].save(tmp_path / "1.npz")
    assert replayed(tmp_path) == 1
    assert "1 byte of memory differs from what is expected" in capsys.readouterr().out
    faulty, fault = random_faulty_program(TINY, "illegal_instruction", 1, origin=_APART)
    faulty.save(tmp_path / "1.npz")
    assert replayed(tmp_path) == 3
    said = capsys.readouterr()
    assert "memory is as expected in every byte" in said.out
    assert f"1.npz: the machine stopped with {fault}" in " ".join(said.err.split())


def test_images_that_do_not_fit_each_other_are_refused(
    images: list[ProgramImage], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = tmp_path / "1.npz"
    for image, said in (
        (replace(images[0], expected=None), "overlap"),
        (random_program(PRESETS["int4"], 1, 20), "are for different machines"),
        (random_program(TINY, 1, 20, origin=1 << 31), "more than 1,073,741,824 bytes apart"),
    ):
        image.save(second)
        assert replayed(tmp_path) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    images[1].save(second)
    assert replayed(tmp_path, "--device", "pysim") == 2
    assert "the device pysim is a single machine" in " ".join(capsys.readouterr().err.split())
