"""Program images are read back as written, and malformed images are rejected."""

from __future__ import annotations

import io
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.programs.image import ImageError, ProgramImage
from amaranth_vta.sw.runtime.array_file import FileLimitError


def good_arrays() -> dict[str, Any]:
    return {
        "config": np.array(PRESETS["tiny"].to_json()),
        "dram": np.arange(256, dtype=np.uint8),
        "insn_addr": np.int64(64),
        "insn_count": np.int64(2),
        "expected": np.zeros(256, np.uint8),
    }


def written(folder: Path, arrays: dict[str, Any]) -> Path:
    path = folder / "image.npz"
    np.savez(path, **arrays)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ImageError) as caught:
        ProgramImage.load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_an_image_is_read_back_as_saved(tmp_path: Path) -> None:
    dram = np.arange(512, dtype=np.uint16).astype(np.uint8)
    image = ProgramImage(PRESETS["batch2"], dram, 32, 30, expected=dram[::-1])
    path = tmp_path / "without_a_suffix"
    image.save(path)
    again = ProgramImage.load(path)
    assert (again.config, again.insn_addr, again.insn_count) == (PRESETS["batch2"], 32, 30)
    assert np.array_equal(again.dram, dram)
    assert again.expected is not None
    assert np.array_equal(again.expected, dram[::-1])
    assert again.instruction_bits()[1] == int.from_bytes(dram[48:64].tobytes(), "little")


def test_expected_is_optional(tmp_path: Path) -> None:
    arrays = good_arrays()
    del arrays["expected"]
    assert ProgramImage.load(written(tmp_path, arrays)).expected is None


@pytest.mark.parametrize("key", ["config", "dram", "insn_addr", "insn_count"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    arrays = good_arrays()
    del arrays[key]
    assert key in refusal(written(tmp_path, arrays))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("dram", np.zeros(256, np.int8), "dram is a 1-dimensional array of int8"),
        ("dram", np.zeros((16, 16), np.uint8), "dram is a 2-dimensional array of uint8"),
        ("dram", np.array([None, {}]), "dram cannot be read"),
        ("expected", np.zeros(255, np.uint8), "expected has 255 bytes, dram has 256"),
        ("expected", np.zeros(256), "expected is a 1-dimensional array of float64"),
        ("insn_addr", np.float64(64), "insn_addr is a 0-dimensional array of float64"),
        ("insn_addr", np.int64(8), "insn_addr = 0x8 is not aligned"),
        ("insn_addr", np.int64(-16), "insn_addr = -0x10 is not aligned"),
        ("insn_addr", np.int64(1 << 40), "outside the memory"),
        ("insn_addr", np.int64(240), "end at 0x110, dram has 0x100"),
        ("insn_count", np.array([2]), "insn_count is a 1-dimensional array"),
        ("insn_count", np.int64(-1), "insn_count = -1 is negative"),
        ("insn_count", np.int64(13), "outside the memory"),
        ("origin", np.int64(32), "origin = 0x20 is not a multiple of 64"),
        ("limits", np.array([1, 2]), "limits is not one number of 32 bits for each of UOP, INP"),
        ("bases", np.array([0, 0, 0, 0, -64]), "bases is not one number of 63 bits for each of"),
        ("bases", np.array([0.0, 0, 0, 0, 64]), "bases is not one number of 63 bits for each of"),
        ("bases", np.array([0, 0, 4, 0, 0]), "the base of WGT, 0x4, is not a multiple of 16 bytes"),
        ("config", np.int64(3), "config is an array of int64"),
        ("config", np.array("{"), "config: the configuration is not JSON"),
        ("config", np.array("[1]"), "config: the configuration is not a JSON object"),
        ("config", np.array(json.dumps({"LOG_BLOK": 4})), "LOG_BLOK"),
    ],
)
def test_a_wrong_value_is_refused_with_its_reason(
    tmp_path: Path, key: str, value: Any, says: str
) -> None:
    assert says in refusal(written(tmp_path, {**good_arrays(), key: value}))


def test_what_is_not_an_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "image.npz"
    path.write_text("not a program image\n")
    assert "not an .npz file" in refusal(path)
    path.write_bytes(b"")
    assert "not an .npz file" in refusal(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert "not an .npz file" in refusal(path)
    assert "No such file" in refusal(tmp_path / "absent.npz")
    assert "directory" in refusal(tmp_path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.txt", "hello")
    assert "it has no config" in refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        for key in good_arrays():
            archive.writestr(key, "hello")
    refusal(path)


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    whole = written(tmp_path, good_arrays()).read_bytes()
    path = tmp_path / "cut.npz"
    for size in range(0, len(whole), 37):
        path.write_bytes(whole[:size])
        refusal(path)


def test_no_damage_escapes_as_another_exception(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, **good_arrays())
    whole, chance = file.getvalue(), random.Random(1)
    path = tmp_path / "damaged.npz"
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 1, 8))):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            ProgramImage.load(path)
        except (ImageError, FileLimitError):
            refused += 1
    assert refused > 200


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    image = ProgramImage(PRESETS["tiny"], np.zeros(64, np.uint8), 0, 1)
    with pytest.raises(ImageError, match=r"x\.npz cannot be written: No such file"):
        image.save(tmp_path / "no" / "x.npz")
