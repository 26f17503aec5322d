from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import AluOp, Memory, Module
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.runtime.archive import ProgramError, is_archive
from amaranth_vta.sw.runtime.memory import OutOfMemory
from amaranth_vta.sw.runtime.program import Program, Recorder
from amaranth_vta.sw.runtime.runtime import CommandError, Runtime, RuntimeFault

MakeDevice = Callable[..., Any]
TINY = PRESETS["tiny"]
X = np.arange(24, dtype=np.int32).reshape(6, 4)
BIAS = np.arange(100, 124, dtype=np.int32).reshape(6, 4)


def record_add(recorder: Recorder, streams: int = 1) -> Program:
    """out = low bytes of x + bias + 3; with two streams, the first one's result waits in memory."""
    recorder.allocate(320, "elsewhere")
    x, bias = recorder.allocate(96, "x"), recorder.allocate(96, "bias")
    out = recorder.allocate(24, "out")
    bias.write(BIAS)
    source = x
    for stream in range(streams):
        target = out if stream == streams - 1 else recorder.allocate(24, f"middle {stream}")
        memory = Memory.ACC if stream == 0 else Memory.ACC_8BIT
        recorder.load_buffer_2d(source, 0, 6, 1, 6, 0, 0, 0, 0, 0, memory)
        recorder.load_buffer_2d(bias, 0, 6, 1, 6, 0, 0, 0, 0, 8, Memory.ACC)

        def add_bias() -> None:
            recorder.uop_push(1, 0, np.arange(6), np.arange(8, 14), 0, AluOp.ADD)

        def add_three() -> None:
            recorder.uop_loop_begin(6, 1, 0, 0)
            recorder.uop_push(1, 0, 0, 0, 0, AluOp.ADD, 1, 3)
            recorder.uop_loop_end()

        recorder.push_alu(add_bias)
        recorder.push_alu(add_three)
        recorder.dep_push(Module.COMPUTE, Module.STORE)
        recorder.dep_pop(Module.COMPUTE, Module.STORE)
        recorder.store_buffer_2d(0, target, 0, 6, 1, 6)
        recorder.synchronize()
        source = target
    return recorder.program(inputs=[x], outputs=[out], constants=[bias])


def expected(streams: int = 1) -> npt.NDArray[np.int8]:
    result = X
    for _ in range(streams):
        result = (result + BIAS + 3).astype(np.int8).astype(np.int32)
    return result.astype(np.int8)


def run(program: Program, runtime: Runtime) -> npt.NDArray[np.int8]:
    placed = program.place(runtime)
    placed.buffer("x").write(X)
    placed.run()
    return placed.buffer("out").read(np.int8, (6, 4))


def device_runtime(memory_bytes: int = 1 << 18) -> Runtime:
    return Runtime(FunctionalDevice(TINY, memory_bytes))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "add.vta"
    record_add(Recorder(TINY)).save(path)
    return path


@pytest.mark.parametrize("streams", [1, 3])
def test_a_program_runs_wherever_it_is_placed(streams: int) -> None:
    program = record_add(Recorder(TINY), streams)
    runtime = device_runtime()
    for size in (1, 777, 4096):
        runtime.allocate(size)
        assert (run(program, runtime) == expected(streams)).all()


def test_a_program_split_by_a_stream_limit_does_the_same() -> None:
    program = record_add(Recorder(TINY, stream_limit=3))
    assert len(program.streams) > 2
    assert (run(program, device_runtime()) == expected()).all()


def test_single_streams_of_a_program_run_by_their_index() -> None:
    placed = record_add(Recorder(TINY), 2).place(device_runtime())
    placed.buffer("x").write(X)
    placed.run(range(1))
    middle = placed.buffer("middle 0").read(np.int8, (6, 4))
    assert (middle == expected()).all()
    placed.run(range(1, 2))
    assert (placed.buffer("out").read(np.int8, (6, 4)) == expected(2)).all()


def test_a_saved_program_is_the_same_when_loaded(saved: Path) -> None:
    program = record_add(Recorder(TINY))
    loaded = Program.load(saved, TINY)
    assert loaded.config == program.config
    assert loaded.buffers == program.buffers
    roles = {item.name: item.role for item in loaded.buffers}
    assert roles == {"x": "input", "out": "output", "bias": "constant", "micro-ops 0": "constant"}
    assert loaded.contents["micro-ops 0"].size == 7 * 4
    assert (run(loaded, device_runtime()) == expected()).all()


def test_equal_programs_are_equal_files(saved: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.vta"
    record_add(Recorder(TINY)).save(again)
    assert again.read_bytes() == saved.read_bytes()


def test_a_program_and_a_runtime_share_a_machine() -> None:
    runtime = device_runtime()
    placed = record_add(Recorder(TINY)).place(runtime)
    placed.buffer("x").write(X)
    data = runtime.allocate(16)
    out = runtime.allocate(4)
    for _ in range(2):
        data.write(np.arange(4, dtype=np.int32))
        runtime.load_buffer_2d(data, 0, 1, 1, 1, 0, 0, 0, 0, 20, Memory.ACC)
        # Micro-op 0 in the buffer is this one; the program loads its own there.
        runtime.push_alu(lambda: runtime.uop_push(1, 0, 20, 0, 0, AluOp.ADD, 1, 50), key="add")
        runtime.dep_push(Module.COMPUTE, Module.STORE)
        runtime.dep_pop(Module.COMPUTE, Module.STORE)
        runtime.store_buffer_2d(20, out, 0, 1, 1, 1)
        with pytest.raises(CommandError, match="instructions are queued; synchronize before"):
            placed.run()
        runtime.synchronize()
        assert out.read(np.int8, 4).tolist() == [50, 51, 52, 53]
        placed.run()


def test_a_placed_program_gives_its_memory_back() -> None:
    runtime = device_runtime()
    before = runtime.memory.bytes_left
    placed = record_add(Recorder(TINY)).place(runtime)
    assert runtime.memory.bytes_left < before
    placed.free()
    assert runtime.memory.bytes_left == before
    small = device_runtime(640)
    with pytest.raises(OutOfMemory):
        record_add(Recorder(TINY)).place(small)
    assert small.memory.bytes_left == 640


def test_a_fault_in_a_program_is_told_as_everywhere() -> None:
    recorder = Recorder(TINY)
    x = recorder.allocate(64, "x")
    recorder.dep_pop(Module.COMPUTE, Module.LOAD)
    recorder.load_buffer_2d(x, 0, 1, 1, 1, 0, 0, 0, 0, 0, Memory.INP)
    recorder.synchronize()
    placed = recorder.program(inputs=[x]).place(device_runtime())
    with pytest.raises(RuntimeFault, match="deadlock in load, instruction 0 of 2"):
        placed.run()


def test_an_exported_image_runs_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "image.npz"
    record_add(Recorder(TINY)).save_image(path, {"x": X})
    image = ProgramImage.load(path)
    device = FunctionalDevice(image.config, image.dram.size)
    device.write(0, image.dram)
    assert device.run(image.insn_addr, image.insn_count).fault is None
    result = expected().tobytes()
    assert result not in image.dram.tobytes()
    assert result in device.read(0, image.dram.size).tobytes()


def test_an_image_of_several_streams_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="image has one stream, the program has 2"):
        record_add(Recorder(TINY), 2).save_image(tmp_path / "image.npz", {"x": X})


def test_a_recording_that_is_not_finished_or_contradicts_itself_is_refused() -> None:
    recorder = Recorder(TINY)
    x, twin = recorder.allocate(64, "x"), recorder.allocate(64, "x")
    recorder.load_buffer_2d(x, 0, 1, 1, 1, 0, 0, 0, 0, 0, Memory.INP)
    with pytest.raises(ProgramError, match="instructions are queued; synchronize before asking"):
        recorder.program(inputs=[x])
    recorder.synchronize()
    with pytest.raises(ProgramError, match="x is listed as input and as constant"):
        recorder.program(inputs=[x], constants=[x])
    with pytest.raises(ProgramError, match="two buffers of the program are named x"):
        recorder.program(inputs=[x, twin])


def test_an_unknown_buffer_is_refused() -> None:
    placed = record_add(Recorder(TINY)).place(device_runtime())
    with pytest.raises(ProgramError, match="no buffer y; it has bias, micro-ops 0, out, x"):
        placed.buffer("y")


def test_another_machine_is_refused_with_the_parameters_that_differ(saved: Path) -> None:
    other = replace(TINY, log_block_in=3, log_inp_buff_size=10)
    message = (
        r"made for a machine with LOG_BLOCK_IN = 2 \(here 3\), LOG_INP_BUFF_SIZE = 9 \(here 10\)"
    )
    with pytest.raises(ProgramError, match=message):
        Program.load(saved, other)
    with pytest.raises(ProgramError, match=message):
        Program.load(saved).place(Runtime(FunctionalDevice(other, 1 << 18)))


def test_a_program_out_of_reach_is_refused(fake_device: MakeDevice) -> None:
    device = fake_device()
    device.memory_bytes = 1 << 40
    runtime = Runtime(device)
    runtime.allocate(1 << 36)
    recorder = Recorder(TINY)
    x = recorder.allocate(64, "x")
    recorder.load_buffer_2d(x, 0, 1, 1, 1, 0, 0, 0, 0, 0, Memory.INP)
    recorder.synchronize()
    with pytest.raises(ProgramError, match="beyond the addressable range"):
        recorder.program(inputs=[x]).place(runtime)


def test_every_damaged_byte_is_found(saved: Path, tmp_path: Path) -> None:
    good = saved.read_bytes()
    generator = np.random.default_rng(1)
    path = tmp_path / "bad.vta"
    reference = Program.load(saved)
    refused = 0
    for at in generator.integers(0, len(good), 300):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        try:
            program = Program.load(path)
        except ProgramError:
            refused += 1
        else:  # an unused byte of the archive, such as a date
            assert program.buffers == reference.buffers
            assert (program.streams[0].words == reference.streams[0].words).all()
    assert refused > 200
    for size in (0, 3, 100, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:size])
        with pytest.raises(ProgramError, match="is truncated or damaged|is not a compiled program"):
            Program.load(path)


def edited(path: Path, **changes: Any) -> Path:
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(str(arrays["header"])) | changes
    with path.open("wb") as file:
        np.savez(file, **(arrays | {"header": np.array(json.dumps(header))}))
    return path


def test_files_of_other_kinds_are_refused(saved: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.vta"
    text.write_text("add\n")
    with pytest.raises(ProgramError, match="text.vta is not a compiled program"):
        Program.load(text)
    with pytest.raises(ProgramError, match="absent.vta cannot be read: No such file"):
        Program.load(tmp_path / "absent.vta")
    image = tmp_path / "image.npz"
    Program.load(saved).save_image(image, {})
    with pytest.raises(ProgramError, match="image.npz is not a compiled program: it has no header"):
        Program.load(image)
    with pytest.raises(ProgramError, match="cannot be written: No such file"):
        Program.load(saved).save(tmp_path / "no" / "such.vta")


def test_headers_that_do_not_fit_are_refused(saved: Path) -> None:
    with pytest.raises(ProgramError, match="its checksum does not match"):
        Program.load(edited(saved, streams=2))
    with pytest.raises(ProgramError, match="has format version 2; this release reads 1"):
        Program.load(edited(saved, version=2))
    with pytest.raises(ProgramError, match="is not a compiled program"):
        Program.load(edited(saved, format="other"))
    with saved.open("wb") as file:
        np.savez(file, header=np.array("[1]"))
    with pytest.raises(ProgramError, match="is not a compiled program"):
        Program.load(saved)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda stream: replace(stream, words=stream.words.astype(np.int64)), "0 is malformed"),
        (lambda stream: replace(stream, words=stream.words[:, :1]), "0 is malformed"),
        (lambda stream: replace(stream, words=stream.words.ravel()), "0 is malformed"),
        (lambda stream: replace(stream, buffer=stream.buffer.astype(np.int64)), "0 is malformed"),
        (lambda stream: replace(stream, buffer=stream.buffer[1:]), "0 is malformed"),
        (lambda stream: replace(stream, buffer=stream.buffer[:, None]), "0 is malformed"),
        (lambda stream: replace(stream, buffer=stream.buffer + 9), "buffers that it does not have"),
        (lambda stream: replace(stream, buffer=stream.buffer - 1), "buffers that it does not have"),
    ],
)
def test_the_parts_of_a_program_fit_together(saved: Path, change: Any, problem: str) -> None:
    program = Program.load(saved)
    program.validate()
    changed = replace(program, streams=(change(program.streams[0]), *program.streams[1:]))
    with pytest.raises(ValueError, match=problem):
        changed.validate()


def test_the_buffers_of_a_program_have_a_role_and_hold_their_contents(saved: Path) -> None:
    program = Program.load(saved)
    first, *rest = program.buffers
    unknown = replace(program, buffers=(replace(first, role="other"), *rest))
    with pytest.raises(ValueError, match=f"its buffer {first.name} is malformed"):
        unknown.validate()
    exact = {first.name: np.zeros(first.size, np.uint8)}
    replace(program, contents={**program.contents, **exact}).validate()
    beyond = {first.name: np.zeros(first.size + 1, np.uint8)}
    with pytest.raises(ValueError, match=f"the contents of its buffer {first.name} exceed"):
        replace(program, contents={**program.contents, **beyond}).validate()


def test_archives_are_recognized_by_their_header(saved: Path, tmp_path: Path) -> None:
    assert is_archive(saved)
    for name, contents in {"text": b"text", "empty": b""}.items():
        (tmp_path / name).write_bytes(contents)
        assert not is_archive(tmp_path / name)
    np.savez(tmp_path / "other.npz", other=np.zeros(1))
    assert not is_archive(tmp_path / "other.npz")
    assert not is_archive(tmp_path / "no such file")


def test_a_recorder_needs_neither_device_nor_simulator() -> None:
    code = (
        "import sys; import amaranth_vta.sw.runtime.program; "
        "sys.exit(any(n == 'amaranth' or n.startswith('amaranth_vta.sim') for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
