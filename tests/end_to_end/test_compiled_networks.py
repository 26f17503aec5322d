"""Compiled network files run without the compiler and give the same results, or are rejected."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta import cli
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.archive import ProgramError
from amaranth_vta.sw.runtime.network.network_file import load_network, save_network

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
IMAGES = ROOT / "examples" / "digits" / "images.npz"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compiled") / "digits.vta"
    assert cli.invoke(["compile", str(DIGITS), "-o", str(path), "--config", "tiny"]) == 0
    return path


@pytest.fixture
def images() -> npt.NDArray[np.float32]:
    with np.load(IMAGES) as file:
        return file["image"][:3]


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert cli.invoke([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("config", ["tiny", "batch2", "pynq", "pynq-extended"])
def test_a_saved_network_computes_what_its_session_does(
    config: str, tmp_path: Path, images: npt.NDArray[np.float32]
) -> None:
    with Session(DIGITS, config) as session:
        expected = session.run({"image": images})["logits"]
        session.save(tmp_path / "digits.vta")
        memory = session.device.read(0, session.device.memory_bytes)
        report = session.report()
    with Session.load(tmp_path / "digits.vta") as loaded:
        np.testing.assert_array_equal(loaded.run({"image": images})["logits"], expected)
        np.testing.assert_array_equal(loaded.device.read(0, loaded.device.memory_bytes), memory)
        assert loaded.report()["layers"] == report["layers"]
        assert loaded.inputs == session.inputs
        assert loaded.outputs == session.outputs


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    with Session(DIGITS, "pynq-extended") as session:
        session.save(tmp_path / "digits.vta")
        assert load_network(tmp_path / "digits.vta").steps == session.program.steps
    save_network(load_network(tmp_path / "digits.vta"), tmp_path / "again.vta")
    first, again = (np.load(tmp_path / f"{name}.vta") for name in ("digits", "again"))
    assert {name: first[name].tobytes() for name in first.files} == {
        name: again[name].tobytes() for name in again.files
    }


def test_a_saved_network_runs_in_a_process_that_never_loads_the_compiler(
    compiled: Path, tmp_path: Path, images: npt.NDArray[np.float32]
) -> None:
    inputs, outputs = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(inputs, image=images)
    arguments = ["run", compiled, "--inputs", inputs, "--outputs", outputs]
    code = (
        "import sys; from amaranth_vta import cli\n"
        f"assert cli.invoke({[str(item) for item in arguments]!r}) == 0\n"
        "loaded = [n for n in sys.modules if n == 'onnx' or n.startswith('amaranth_vta.sw.comp')]\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^conv2 +QLinearConv\+MaxPool +[\d,]+ *$", done.stdout, re.MULTILINE)
    with Session(DIGITS, "tiny") as session:
        expected = session.run({"image": images})["logits"]
    with np.load(outputs) as file:
        np.testing.assert_array_equal(file["logits"], expected)


def test_a_saved_network_takes_the_cycles_that_its_session_does(
    compiled: Path, tmp_path: Path, images: npt.NDArray[np.float32]
) -> None:
    np.savez(tmp_path / "x.npz", image=images)
    reports = []
    for source in ([compiled], [DIGITS, "--config", "tiny"]):
        arguments = ["run", *source, "--inputs", tmp_path / "x.npz", "--device", "rtl"]
        arguments += ["--json", tmp_path / "report.json"]
        assert cli.invoke([str(item) for item in arguments]) == 0
        reports.append(json.loads((tmp_path / "report.json").read_text()))
    saved, direct = reports
    assert saved["cycles"] == direct["cycles"] > 0
    assert saved["layers"] == direct["layers"]


def test_a_machine_of_another_configuration_is_refused_by_the_names_that_differ(
    compiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    err = refused(capsys, "run", compiled, "--config", "batch2")
    assert "was made for a machine with LOG_BATCH = 0 (here 1)" in err
    assert cli.invoke(["run", str(compiled), "--config", "tiny"]) == 0
    with pytest.raises(ProgramError, match="LOG_BATCH = 0 \\(here 1\\)"):
        load_network(compiled, PRESETS["batch2"])


@pytest.mark.parametrize("option", ["--check", "--explain"])
def test_what_needs_the_onnx_file_says_so(
    option: str, compiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{option} needs the network's ONNX file" in refused(capsys, "run", compiled, option)


def test_every_truncation_and_flipped_byte_is_refused_in_a_sentence(
    compiled: Path, tmp_path: Path
) -> None:
    data = compiled.read_bytes()
    damaged = tmp_path / "damaged.vta"
    rng = np.random.default_rng(3)
    reference, accepted = load_network(compiled), []
    for position in rng.integers(4, len(data), 150):
        changed = bytearray(data)
        changed[position] ^= 1 << int(rng.integers(8))
        damaged.write_bytes(changed)
        # Flips of unused bytes of the zip archive leave the network unchanged.
        try:
            network = load_network(damaged)
        except ProgramError:
            continue
        accepted.append(network.steps == reference.steps)
    assert all(accepted)
    assert len(accepted) < 75
    for size in [4, 100, len(data) // 2, len(data) - 1]:
        damaged.write_bytes(data[:size])
        with pytest.raises(ProgramError, match="is truncated or damaged"):
            load_network(damaged)


def rewritten(source: Path, target: Path, **changes: Any) -> Path:
    """A copy with a changed header and the old checksum."""
    with np.load(source) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays["header"] = np.array(json.dumps({**json.loads(str(arrays["header"])), **changes}))
    with target.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return target


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"version": 7}, "has format version 7; this release reads 1"),
        ({"format": "amaranth-vta program"}, "is not a compiled network"),
        ({"open_batch": False}, "its checksum does not match its contents"),
    ],
)
def test_another_version_or_kind_of_file_is_refused(
    changes: dict[str, Any],
    problem: str,
    compiled: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = rewritten(compiled, tmp_path / "other.vta", **changes)
    assert problem in refused(capsys, "run", path)


def test_no_part_of_a_file_is_a_pickle(compiled: Path) -> None:
    with np.load(compiled, allow_pickle=False) as archive:
        assert all(archive[name].dtype.kind in "uiUf" for name in archive.files)


def test_a_full_disk_leaves_what_was_there_and_nothing_else(compiled: Path, tmp_path: Path) -> None:
    target = tmp_path / "digits.vta"
    target.write_bytes(b"before")
    for call in (
        f"cli.invoke(['compile', {str(DIGITS)!r}, '-o', {str(target)!r}])",
        f"save_network(load_network({str(compiled)!r}), {str(target)!r})",
    ):
        # Limit the size of files to 16 KiB.
        code = (
            "import resource, sys; from amaranth_vta import cli\n"
            "from amaranth_vta.sw.runtime.network.network_file import load_network, save_network\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))\n"
            f"sys.exit({call})\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode != 0
        assert "cannot be written: File too large" in done.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["digits.vta"]
        assert target.read_bytes() == b"before"


def test_compile_needs_a_place_that_can_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "digits.vta"
    err = refused(capsys, "compile", DIGITS, "-o", target)
    assert f"{target} cannot be written: Not a directory" in err
