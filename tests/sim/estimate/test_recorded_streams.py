"""The estimate for whole networks, against the RTL's cycles recorded in tests/golden/streams.

``python benchmarks/estimate_accuracy.py --record tests/golden/streams`` writes them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Finish, Load, Memory
from amaranth_vta.sim.estimate.library import Engine
from amaranth_vta.sim.estimate.recorded_stream import RecordedRun, load_streams, save_streams
from amaranth_vta.sim.machine.dram import memory_timing

STREAMS = sorted((Path(__file__).parents[2] / "golden" / "streams").glob("*.npz"))
# Maximum relative errors of a network and of a long layer; minimum cycles of a long layer.
TOLERANCE, LAYER_TOLERANCE, LONG_LAYER = 0.001, 0.012, 10_000


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_a_network_takes_the_cycles_of_the_rtl(path: Path) -> None:
    streams = load_streams(path)
    engine = Engine(streams.config, memory_timing(streams.dram))
    estimated = 0
    for run in streams.runs:
        cycles = engine.replay(streams.memory, run.address, run.count).cycles
        assert cycles is not None, run.layer
        if run.cycles >= LONG_LAYER:
            assert cycles == pytest.approx(run.cycles, rel=LAYER_TOLERANCE), run.layer
        estimated += cycles
    assert estimated == pytest.approx(sum(run.cycles for run in streams.runs), rel=TOLERANCE)


def test_runs_can_be_replayed_in_one_call() -> None:
    streams = load_streams(STREAMS[0])
    engine = Engine(streams.config, memory_timing(streams.dram))
    runs = [(run.address, run.count) for run in streams.runs]
    expected = [engine.replay(streams.memory, *run).cycles for run in runs]
    first, *others = runs
    without_finish = (first[0], first[1] - 1)
    beyond = (streams.memory.size, 1)
    found = engine.replay_all(streams.memory, [first, without_finish, beyond, *others])
    assert found == [expected[0], None, None, *expected[1:]]
    assert engine.replay_all(streams.memory, runs) == expected


def test_the_networks_are_there() -> None:
    names = {path.stem for path in STREAMS}
    networks = ("digits", "mobilenetv2", "mobilenetv2-without-forward", "resnet18", "resnet50")
    assert names == {f"{name}-ddr" for name in networks}


def test_a_file_holds_instructions_and_micro_ops_alone(tmp_path: Path) -> None:
    config = PRESETS["tiny"]
    memory = np.arange(8192, dtype=np.uint32).view(np.uint8)[:8192].copy()
    program = [Load(memory=Memory.UOP, x_size=3, dram_base=512), Finish()]
    words = [isa.instruction_set(config).encode(item) for item in program]
    memory[4096:4128] = np.frombuffer(b"".join(w.to_bytes(16, "little") for w in words), np.uint8)
    path = tmp_path / "streams.npz"
    save_streams(path, config, "ddr", memory, [RecordedRun("only", 4096, 2, 99)])
    loaded = load_streams(path)
    assert loaded.config == config
    assert (loaded.dram, loaded.runs) == ("ddr", (RecordedRun("only", 4096, 2, 99),))
    assert loaded.memory.size == memory.size
    assert (loaded.memory[4096:4128] == memory[4096:4128]).all()
    assert (loaded.memory[2048:2060] == memory[2048:2060]).all()
    assert not loaded.memory[:2048].any()
