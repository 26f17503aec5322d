"""Valid contents of a SPEC, and the error messages for others."""

from __future__ import annotations

from pathlib import Path

import pytest

from amaranth_vta.explore.machines import ILLEGAL, OVER_LIMIT, kind_of, machine_of
from amaranth_vta.explore.spec import SpecError, load_spec

LEAST = 'networks = ["resnet18"]\n[parameters]\nLOG_BLOCK = [2, 3]\n'


def spec_file(folder: Path, text: str) -> Path:
    path = folder / "spec.toml"
    path.write_text(text)
    return path


def test_what_a_spec_leaves_out_has_defaults(tmp_path: Path) -> None:
    spec = load_spec(spec_file(tmp_path, LEAST))
    assert spec.networks == ("resnet18",)
    assert (spec.memories, spec.objectives) == (("ddr",), ("cycles", "area"))
    assert (spec.search.method, spec.search.points, spec.combinations) == ("optuna", 100, 2)
    assert spec.limits.chip.name == "xc7z020"


def test_files_are_relative_to_the_spec(tmp_path: Path) -> None:
    (tmp_path / "resnet18").touch()
    assert load_spec(spec_file(tmp_path, LEAST)).networks == (str(tmp_path / "resnet18"),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "networks is not a list of names"),
        ("networks = 3", "networks is not a list of names"),
        ("networks = [", "spec.toml: "),
        ("\xff", "spec.toml: "),
        ('networks = ["a", "a"]\n[parameters]\nLOG_BLOCK = [2]', "networks has a name twice"),
        ('networks = "a"', r"\[parameters\] is empty"),
        ('networks = "a"\nparameters = 3', "parameters is not a table"),
        (f'memory = "random:3"\n{LEAST}', "memory: 'random:3' is not one that the estimate knows"),
        (f'memory = "sram"\n{LEAST}', "memory: 'sram'"),
        (f'divice = "x"\n{LEAST}', "divice is unknown; there are base, clock_mhz, limits"),
        (LEAST + "LOG_BLOK = [1]", "parameters.LOG_BLOK is unknown"),
        (LEAST + "LOG_BATCH = 1", "parameters.LOG_BATCH is not a list of values"),
        (LEAST + "LOG_BATCH = []", "parameters.LOG_BATCH is not a list of values"),
        (
            LEAST + "LOG_BATCH = [1.5]",
            "LOG_BATCH has a value that is not a whole number",
        ),
        (
            LEAST + "LOG_BATCH = [true]",
            "LOG_BATCH has a value that is not a whole number",
        ),
        (LEAST + "LOG_BATCH = [1, 1]", "parameters.LOG_BATCH has a value twice"),
        (LEAST + "LOG_BLOCK_IN = [2]", "parameters.LOG_BLOCK stands for"),
        (LEAST + '[limits]\ndevice = "xc2"', "limits.device: 'xc2' is not one of xc7z010"),
        (LEAST + "[limits]\nlut = -1", "limits.lut = -1 is not a number of 0 or more"),
        (LEAST + "[limits]\nlut = nan", "limits.lut = nan is not a number of 0 or more"),
        (LEAST + "[limits]\nmhz = 900", "limits.mhz = 900 is more than the"),
        (f"route = 1\n{LEAST}", "route = 1: only the vendor's tools place on xc7z020"),
        (f"synthesis = 0.5\n{LEAST}", "synthesis = 0.5 is not a whole number of 0 or more"),
        (LEAST + '[objectives]\nminimize = ["speed"]', "'speed' is not one of cycles"),
        (LEAST + '[search]\nmethod = "genetic"', "search.method: 'genetic' is not one of grid"),
        (LEAST + "[search]\npoints = 0", "search.points = 0 is not a whole number of 1 or more"),
        (LEAST + "[search]\nbatches = 1", "search.batches is unknown"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        load_spec(spec_file(tmp_path, text))


def test_machines_are_legal_or_say_why_not(tmp_path: Path) -> None:
    spec = load_spec(
        spec_file(
            tmp_path,
            'networks = "a"\n[parameters]\nLOG_BLOCK = [4, 5]\nLOG_ACC_BUFF_SIZE = [16, 18]\n'
            "[limits]\nlut = 1_000_000",
        )
    )
    assert machine_of(spec, (4, 16)).status == ""
    illegal = machine_of(spec, (4, 18))
    assert (illegal.status, illegal.config) == (ILLEGAL, None)
    assert "LOG_ACC_BUFF_SIZE = 18" in illegal.reason
    # More multipliers than the chip has.
    large = machine_of(spec, (5, 16))
    assert large.status == OVER_LIMIT
    assert "dsp" in large.reason
    assert "of xc7z020" in large.reason


def test_reasons_are_counted_without_their_numbers() -> None:
    first = "a micro-op would need 33 bits (dst 11 + src 12 + wgt 10) of 32; reduce LOG_X = 17"
    second = "a micro-op would need 35 bits (dst 12 + src 12 + wgt 11) of 32; reduce LOG_Y = 2"
    assert kind_of(first) == kind_of(second) == "a micro-op would need N bits of N"
    assert kind_of("lut 12,345, more than the 1,000 of xc7z020") == (
        "lut N, more than the N of xc7z020"
    )
