"""Sessions describe themselves, load saved networks, and reject invalid ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import amaranth_vta as vta
from amaranth_vta.sw.runtime.archive import ProgramError
from amaranth_vta.sw.runtime.network.model_error import ModelError

DIGITS = Path(__file__).parents[2] / "examples/digits/digits.onnx"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "digits.vta"
    with vta.Session(DIGITS, "tiny") as session:
        session.save(path)
    return path


def test_a_session_says_what_it_is(saved: Path) -> None:
    what = "on functional: 4 layers on the machine of 1×4×4 MACs per cycle, 2 operators on the host"
    assert repr(vta.Session(DIGITS, "tiny")) == f"<Session of {DIGITS} {what}>"
    assert repr(vta.Session.load(saved)) == f"<Session of {saved} {what}>"


def test_a_loaded_network_has_no_model_to_compare_with(saved: Path) -> None:
    with vta.Session.load(saved, "tiny", device="functional") as session:
        with pytest.raises(ModelError, match=r"digits.vta is a compiled network without its model"):
            session.check({})


def test_sessions_take_options_in_place_of_keywords(saved: Path) -> None:
    options = vta.RunOptions("functional", "ddr", skip="gemm")
    for session in (vta.Session(DIGITS, "tiny", options), vta.Session.load(saved, None, options)):
        assert session.dram == "ddr"
        assert session.report()["skipped"] == "gemm"


def test_a_file_for_another_machine_is_refused(saved: Path) -> None:
    with pytest.raises(ProgramError, match=r"LOG_BATCH = 0 \(here 1\)"):
        vta.Session.load(saved, "batch2")
    with pytest.raises(ProgramError):
        vta.Session.load(DIGITS)


def test_a_misspelt_option_is_refused_by_the_type_checker_too(saved: Path) -> None:
    """Mypy reports unneeded ignores, so each of these lines must be an error for it."""
    with pytest.raises(TypeError, match="devise"):
        vta.Session(DIGITS, "tiny", devise="rtl")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="devise"):
        vta.Session.load(saved, devise="rtl")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="3 cannot be skipped"):
        vta.Session(DIGITS, "tiny", skip=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("onnx", "vta.Session('digits.onnx')"),
        ("onnx", "vta.compile('digits.onnx')"),
        ("onnxruntime", "vta.Session.load(sys.argv[1])"),
        ("onnx", "vta.register_operator"),
    ],
)
def test_a_missing_extra_is_said_as_the_command_line_does(
    package: str, call: str, saved: Path
) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import amaranth_vta as vta; {call}"
    arguments = [sys.executable, "-c", code, str(saved)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    sentence = f"this needs the package {package}: pip install 'amaranth-vta[networks]'"
    assert done.stderr.splitlines()[-1] == f"amaranth_vta.extras.MissingExtra: {sentence}"
    assert "ModuleNotFoundError" not in done.stderr
