"""Reading the headers of wave files."""

from __future__ import annotations

from pathlib import Path

import pytest

from amaranth_vta.sim.trace.wave_file import (
    WaveError,
    WaveSignal,
    lz4_decompressed,
    signals_of,
    wave_format,
)

HEADER = """\
$timescale 1ns $end
$scope module TOP $end
$var wire 1 ! clk $end
$scope module vta $end
$var wire 32 " data [31:0] $end
$var string 1 # state $end
$upscope $end
$upscope $end
$enddefinitions $end
#0
"""


def test_the_suffix_selects_the_format() -> None:
    assert [wave_format(path) for path in ("a.fst", "a.vcd", "a", "/dev/stdout")] == [
        *("fst", "vcd", "vcd", "vcd")
    ]


def test_signals_of_a_vcd_have_scopes_and_bits(tmp_path: Path) -> None:
    path = tmp_path / "run.vcd"
    path.write_text(HEADER)
    assert signals_of(path) == [
        WaveSignal("TOP", "clk", 1),
        WaveSignal("TOP.vta", "data", 32),
        WaveSignal("TOP.vta", "state", 1, is_text=True),
    ]
    assert signals_of(path)[1].path == "TOP.vta.data"


@pytest.mark.parametrize("name", ["run.vcd", "run.fst"])
@pytest.mark.parametrize("text", ["", HEADER[:90]])
def test_an_incomplete_file_is_reported(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(WaveError, match=f"{name} is not a complete wave file"):
        signals_of(path)


def test_matches_of_lz4_may_overlap_themselves() -> None:
    # One literal, a match of 19 bytes at distance 1, and three literals.
    assert lz4_decompressed(bytes([0x1F, 97, 1, 0, 0, 0x30, 98, 99, 100])) == b"a" * 20 + b"bcd"
    # 16 literals.
    assert lz4_decompressed(bytes([0xF0, 1]) + bytes(range(16))) == bytes(range(16))
    with pytest.raises(IndexError):
        lz4_decompressed(bytes([0x1F, 97, 1]))
