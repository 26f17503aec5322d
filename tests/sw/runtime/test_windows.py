"""Instructions relative to a window access another part of its buffer after each move."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Memory, Module
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sw.runtime.archive import ProgramError
from amaranth_vta.sw.runtime.memory import Buffer, Motion, MovingWindow
from amaranth_vta.sw.runtime.program import Program, Recorder
from amaranth_vta.sw.runtime.runtime import Runtime

CONFIG = PRESETS["tiny-extended"]
TILE = CONFIG.out.element_bytes
PLACES = 11
BLOCKS = -(-PLACES // CONFIG.block_out)
# Rows of a weight tile, whose columns are in three tiles.
MOTION = Motion(CONFIG.block_out, 3 * CONFIG.block_out * TILE, TILE)


def record_copy(recorder: Recorder) -> Program:
    """Three tiles are copied from ``source`` to a window of ``target`` and, in the same stream, all
    of ``target`` to ``copy``."""
    source = recorder.allocate(3 * TILE, "source")
    target = recorder.allocate(BLOCKS * MOTION.stride, "target")
    copy = recorder.allocate(target.size, "copy")
    target.write(np.zeros(target.size, np.uint8))
    size = (2 * CONFIG.block_out + 1) * TILE
    window = MovingWindow(target, size, "window", MOTION)

    def moved(given: Buffer, taken: Buffer, count: int, stride: int) -> None:
        recorder.load_buffer_2d(
            given, 0, count, 1, 0, 0, 0, 0, 0, sram_index=0, memory=Memory.ACC_8BIT
        )
        recorder.dep_push(Module.COMPUTE, Module.STORE)
        recorder.dep_pop(Module.COMPUTE, Module.STORE)
        recorder.store_buffer_2d(
            0, taken, 0, 1 if stride else count, count if stride else 1, stride
        )

    moved(source, window, 3, CONFIG.block_out)
    recorder.barrier()
    moved(target, copy, target.size // TILE, 0)
    recorder.synchronize()
    return recorder.program([source], [copy], [target])


@pytest.fixture(scope="module")
def program() -> Program:
    return record_copy(Recorder(CONFIG))


def test_a_window_begins_at_its_place() -> None:
    motion = Motion(4, 100, 3)
    assert [motion.offset(place) for place in (0, 1, 3, 4, 9)] == [0, 3, 9, 100, 203]


def test_stores_follow_their_window(program: Program, tmp_path: Path) -> None:
    assert [item.name for item in program.windows] == ["window"]
    program.save(tmp_path / "program.vta")
    loaded = Program.load(tmp_path / "program.vta", CONFIG)
    assert loaded.windows == program.windows
    random = np.random.default_rng(3)
    runtime = Runtime(open_device("functional", CONFIG, 1 << 14))
    placed, rows = loaded.place(runtime), {}
    for place in (0, 3, 10, 4, 4, 0):
        rows[place] = random.integers(0, 256, (3, TILE), np.uint8)
        placed.buffer("source").write(rows[place])
        placed.move_windows(["window"], place)
        placed.run()
        wanted = np.zeros((BLOCKS, 3, CONFIG.block_out, TILE), np.uint8)
        for at, row in rows.items():
            wanted[at // CONFIG.block_out, :, at % CONFIG.block_out] = row
        found = placed.buffer("copy").read(np.uint8, wanted.shape)
        np.testing.assert_array_equal(found, wanted)


def test_instructions_with_their_addresses_are_those_in_memory(program: Program) -> None:
    placed = program.place(Runtime(open_device("functional", CONFIG, 1 << 14)))
    placed.move_windows(["window"], 5)
    for address, words in placed.streams.values():
        read = placed.buffer("source")._device().read(address, words.nbytes)
        np.testing.assert_array_equal(read, words.reshape(-1).view(np.uint8))


@pytest.mark.parametrize(
    "change",
    [
        {"buffer": "other"},
        {"name": 3},
        {"size": 1 << 20},
        {"size": -1},
        {"motion": Motion(0, 1, 1)},
        {"motion": Motion(4, -1, 1)},
        {"motion": Motion(4, 1, 0.5)},  # type: ignore[arg-type]
    ],
)
def test_malformed_windows_are_refused(program: Program, change: dict[str, object]) -> None:
    (window,) = program.windows
    changed = replace(program, windows=(replace(window, **change),))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="its window .* is malformed"):
        changed.validate()


def test_windows_have_different_names_and_streams_use_those_of_the_program(
    program: Program,
) -> None:
    with pytest.raises(ValueError, match="two of its windows have the same name"):
        replace(program, windows=program.windows * 2).validate()
    with pytest.raises(ValueError, match="uses buffers that it does not have"):
        replace(program, windows=()).validate()


def test_a_window_is_no_buffer_of_its_own() -> None:
    buffer = Recorder(CONFIG).allocate(64, "buffer")
    window = MovingWindow(buffer, 32, "window", MOTION)
    assert window.part(16, 8, "part").reached is buffer
    assert window.part(16, 8, "part").whole is window
    with pytest.raises(ValueError, match="window is a window of buffer"):
        window.free()
    with pytest.raises(IndexError, match="cannot move bytes 0 to 65 of buffer, which has 64"):
        MovingWindow(buffer, 65, "window", MOTION)


def test_programs_without_windows_have_the_form_of_earlier_releases(program: Program) -> None:
    assert "windows" in program.parts()[0]
    assert "windows" not in replace(program, windows=()).parts()[0]
    with pytest.raises(ProgramError, match="no buffer window"):
        program.place(Runtime(open_device("functional", CONFIG, 1 << 14))).buffer("window")
