"""Timelines of programs whose execution is known."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Finish, Gemm, Instruction, Load, Memory, Store
from amaranth_vta.sim.devices import DeviceError, open_device
from amaranth_vta.sim.trace.perfetto import Timeline
from amaranth_vta.sim.trace.timeline import LANES

TINY = PRESETS["tiny"]
PROGRAM: list[Instruction] = [
    Load(memory=Memory.UOP, x_size=1),
    Load(memory=Memory.INP, x_size=16, push_next=1),
    Gemm(uop_end=1, iter_out=3, iter_in=5, pop_prev=1, push_next=1),
    Store(x_size=4, dram_base=0x400, pop_prev=1),
    Finish(),
]


def events(device: str, programs: list[list[Instruction]], dram: str = "ideal") -> Any:
    """Events of consecutive programs, except those that describe lanes; each with the name of its
    lane, and times in cycles.
    """
    timeline = Timeline()
    machine = open_device(device, TINY, 0x4000, dram=dram, timeline=timeline)
    encode = isa.instruction_set(TINY).encode
    for number, program in enumerate(programs):
        timeline.begin(f"program {number}")
        machine.write(0x1000, b"".join(encode(item).to_bytes(16, "little") for item in program))
        machine.run(0x1000, len(program))
    file = io.BytesIO()
    timeline.write(file)
    found = json.loads(file.getvalue())["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    return [
        e | {"lane": lanes[e["tid"]], "ts": round(e["ts"] * 1e3), "dur": round(e["dur"] * 1e3)}
        for e in found
        if e["ph"] == "X"
    ]


def by_lane(found: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {lane: [e["name"] for e in found if e["lane"] == lane] for lane in ("runs", *LANES)}


@pytest.mark.parametrize("device", ["rtl", "pysim"])
def test_each_instruction_is_an_event_in_the_lane_of_its_module(device: str) -> None:
    found = events(device, [PROGRAM])
    lanes = by_lane(found)
    assert lanes["runs"] == ["program 0"]
    assert len(lanes["fetch"]) == 5
    assert [name.split(",")[0] for name in lanes["load"]] == ["LOAD INP[0:16]"]
    assert [name.split(",")[0] for name in lanes["compute loads"]] == ["LOAD UOP[0:1]"]
    assert lanes["gemm"] == [
        "waits for load",
        "GEMM uop[0:1] x 3 x 5; pop from load; push to store",
    ]
    assert [name.split(",")[0] for name in lanes["store"]] == [
        "waits for compute",
        "STORE OUT[0:4]",
    ]
    assert lanes["compute"] == ["FINISH"]
    wait, gemm = (e for e in found if e["lane"] == "gemm")
    assert 15 <= gemm["dur"] < 15 + 20
    assert gemm["args"]["instruction"] == 2
    assert gemm["args"]["iter_in"] == 5
    assert wait["ts"] + wait["dur"] <= gemm["ts"]


def test_both_simulators_show_the_same() -> None:
    assert events("rtl", [PROGRAM], "random:4") == events("pysim", [PROGRAM], "random:4")


def test_events_of_a_lane_do_not_overlap_and_runs_follow_one_another() -> None:
    many: list[Instruction] = [
        Load(memory=Memory.UOP, x_size=1),
        *[Load(memory=Memory.INP, x_size=3)] * 12,
        *[Gemm(uop_end=1, iter_in=7)] * 12,
        Finish(),
    ]
    found = events("rtl", [many, PROGRAM])
    for lane in ("runs", *LANES):
        mine = sorted((e["ts"], e["dur"]) for e in found if e["lane"] == lane)
        ends = [begin + length for begin, length in mine]
        assert all(end <= begin for end, (begin, _) in zip(ends, mine[1:], strict=False)), lane
    first, second = (e for e in found if e["lane"] == "runs")
    assert second["ts"] == first["dur"] == first["args"]["cycles"]
    assert [e["name"] for e in found].count("GEMM uop[0:1] x 1 x 7") == 2 * 12  # fetched, executed


def test_what_a_fault_cuts_off_ends_with_the_run() -> None:
    stuck: list[Instruction] = [Gemm(uop_end=0, pop_prev=1), Finish()]
    found = events("rtl", [stuck])
    (run,) = (e for e in found if e["lane"] == "runs")
    (wait,) = (e for e in found if e["lane"] == "gemm")
    assert wait["name"] == "waits for load"
    assert wait["ts"] + wait["dur"] == run["dur"]


def test_a_watched_machine_takes_the_same_cycles() -> None:
    cycles = []
    for timeline in (None, Timeline()):
        device = open_device("rtl", TINY, 0x4000, timeline=timeline)
        encode = isa.instruction_set(TINY).encode
        device.write(0x1000, b"".join(encode(item).to_bytes(16, "little") for item in PROGRAM))
        cycles.append(device.run(0x1000, len(PROGRAM)).cycles)
    assert cycles[0] == cycles[1]


def test_the_functional_model_has_no_timeline() -> None:
    with pytest.raises(DeviceError, match="no clock, hence no timeline"):
        open_device("functional", TINY, 64, timeline=Timeline())


def test_instructions_beyond_the_memory_do_not_stop_the_timeline() -> None:
    timeline = Timeline()
    device = open_device("rtl", TINY, 0x1000, timeline=timeline)
    device.write(0, np.zeros(0x1000, np.uint8))
    result = device.run(0xFF0, 3)
    assert result.fault is not None
    assert result.fault.cause == "bus_error"


def test_what_a_stopped_run_was_at_is_not_in_the_next_one() -> None:
    endless = Gemm(uop_end=1, iter_out=16383, iter_in=16383)
    stopped: list[Instruction] = [Load(memory=Memory.UOP, x_size=1), endless, Finish()]
    encode = isa.instruction_set(TINY).encode
    found = []
    for first in (stopped, None):
        timeline = Timeline()
        device = open_device("pysim", TINY, 0x4000, timeline=timeline)
        for program in (first, PROGRAM):
            if program is not None:
                words = b"".join(encode(item).to_bytes(16, "little") for item in program)
                device.write(0x1000, words)
                device.run(0x1000, len(program), 0.05 if program is stopped else None)
        file = io.BytesIO()
        timeline.write(file)
        found.append(file.getvalue())
    assert found[0] == found[1]
