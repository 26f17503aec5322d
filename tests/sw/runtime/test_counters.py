"""Figures derived from the counters of a run, on numbers that can be checked by hand."""

from __future__ import annotations

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.registers import COUNTERS
from amaranth_vta.sw.runtime.counters import Spent, completed, summed

TINY = PRESETS["tiny"]


def test_bytes_and_multiplications_are_added_to_what_was_counted() -> None:
    counted = {counter.name: 0 for counter in COUNTERS} | {
        "gemm_uops": 7,
        "uop_elements": 5,
        "inp_elements": 3,
        "wgt_elements": 2,
        "acc_elements": 11,
        "acc_8bit_elements": 13,
        "out_elements": 17,
    }
    found = completed(TINY, counted)
    assert {name: found[name] for name in counted} == counted
    # Tiles of 1 × 4 and of 4 × 4 bytes; an accumulator has 4 bytes.
    assert found["macs"] == 7 * 16
    assert found["uop_bytes"] == 5 * 4
    assert found["inp_bytes"] == 3 * 4
    assert found["wgt_bytes"] == 2 * 16
    assert found["acc_bytes"] == 11 * 16
    assert found["acc_8bit_bytes"] == 13 * 4
    assert found["out_bytes"] == 17 * 4 == found["bytes_stored"]
    assert found["bytes_loaded"] == 5 * 4 + 3 * 4 + 2 * 16 + 11 * 16 + 13 * 4


def test_sums_are_over_all_of_them() -> None:
    parts = [
        Spent("first", {"cycles": 10, "gemm_busy": 4}, 2),
        Spent("second", {"cycles": 30, "gemm_busy": 6}, 3),
    ]
    both = summed(parts)
    assert both == Spent("all", {"cycles": 40, "gemm_busy": 10}, 3)
    assert both.share("gemm_busy") == 0.25
    assert summed([]) == Spent("all", {})
