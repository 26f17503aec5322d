"""No command, worker process, script or test leaves ONNX Runtime's telemetry behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from amaranth_vta.sim.cache import cache_folder

ROOT = Path(__file__).parents[1]
DIGITS = "examples/digits/digits.onnx"
VTA = ("-m", "amaranth_vta")


def files_written(home: Path, *arguments: str) -> list[str]:
    """Files that Python with ``arguments`` writes into a new home folder, except amaranth-vta's own
    cache.
    """
    # Not the whole environment: variables of CI systems disable the telemetry too.
    environment = {"VTA_CACHE": str(cache_folder()), "HOME": str(home), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())


def test_the_runtime_writes_files_when_it_is_imported_alone(tmp_path: Path) -> None:
    """So that the tests below can fail."""
    assert files_written(tmp_path, "-c", "import onnxruntime")


@pytest.mark.parametrize(
    "arguments",
    [
        (*VTA, "run", DIGITS, "--config", "tiny", "--check"),
        ("-c", "import amaranth_vta, onnxruntime"),
        ("-c", "from amaranth_vta.quantize.quantizer import quantize"),
        ("benchmarks/functional_speed.py", "--help"),
        ("examples/digits/demo.py", "--help"),
        ("-m", "pytest", "-q", "--collect-only", "tests/sim/model/test_requantize.py"),
    ],
    ids=" ".join,
)
def test_nothing_is_written_to_the_home_folder(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert files_written(tmp_path, *arguments) == []


def test_worker_processes_write_nothing_to_the_home_folder(tmp_path: Path) -> None:
    options = ("--config", "tiny", "--candidates", "1", "--jobs", "2")
    output = tmp_path / "output.json"
    written = files_written(tmp_path, *VTA, "tune", DIGITS, *options, "-o", str(output))
    assert written in ([], [output.name])
