"""A machine beside the processor, as on a Zynq. Memory is a mapped file shared with the machine in
Verilator, whose registers are mapped too.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.cli import invoke
from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.registers import IDENTITY, REGISTERS, VERSION, WORD_BYTES
from amaranth_vta.sim.board_model.device import open_board
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.machine.rtl.build import machine_library
from amaranth_vta.sim.machine.rtl.engine import CompiledMachine
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.programs.random_programs import random_program
from amaranth_vta.sw.board_drivers import mapped
from amaranth_vta.sw.board_drivers.device import BoardDevice
from amaranth_vta.sw.board_drivers.mapped import MappedTransport, map_words, open_mapped
from amaranth_vta.sw.board_drivers.transport import BoardError
from amaranth_vta.sw.runtime.device import Fault
from amaranth_vta.sw.runtime.driver import MismatchError

TINY = PRESETS["tiny"]
PROGRAM = random_program(TINY, seed=3, length=40)
# A Zynq's memory map: registers at M_AXI_GP0, and a region at the end of DRAM.
REGISTERS_AT, MEMORY_AT, MEMORY_BYTES = 0x43C0_0000, 0x1F00_0000, 1 << 20
PLACE = f"mem:{REGISTERS_AT:#x},{MEMORY_AT:#x}+{MEMORY_BYTES:#x}"


class SimulatedRegisters:
    """Registers of a simulated machine; reading STATUS advances its clock by 1,000 cycles."""

    def __init__(self, machine: CompiledMachine) -> None:
        self._machine = machine

    def __getitem__(self, number: int) -> int:
        if number * WORD_BYTES == REGISTERS["STATUS"].offset:
            self._machine.advance(1000)
        return self._machine.read_register(number * WORD_BYTES)

    def __setitem__(self, number: int, value: int) -> None:
        self._machine.write_register(number * WORD_BYTES, value)


@pytest.fixture(scope="module")
def physical(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sparse file in place of /dev/mem."""
    path = tmp_path_factory.mktemp("physical") / "mem"
    path.touch()
    os.truncate(path, MEMORY_AT + MEMORY_BYTES)
    return path


@pytest.fixture(scope="module")
def registers(physical: Path) -> Iterator[SimulatedRegisters]:
    memory = map_words(str(physical), MEMORY_AT, MEMORY_BYTES).view(np.uint8)
    timing = memory_timing("ddr")
    machine = CompiledMachine(machine_library(TINY), memory, timing, origin=MEMORY_AT)
    yield SimulatedRegisters(machine)
    machine.close()


@pytest.fixture(autouse=True)
def _mapped(physical: Path, registers: SimulatedRegisters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace /dev/mem by the file, with the machine's registers at their physical address."""
    of_files = map_words

    def with_registers(path: str, offset: int, size: int) -> Any:
        at = path == str(physical) and offset == REGISTERS_AT
        return registers if at else of_files(path, offset, size)

    monkeypatch.setattr(mapped, "PHYSICAL", str(physical))
    monkeypatch.setattr(mapped, "map_words", with_registers)
    monkeypatch.setenv("VTA_PORT", PLACE)


def _opened(memory_bytes: int = PROGRAM.dram.size) -> BoardDevice:
    return open_board(TINY, memory_bytes)


def _program(*instructions: isa.Instruction) -> ProgramImage:
    return ProgramImage.assemble(TINY, np.zeros(1024, np.uint8), 512, instructions)


@pytest.mark.parametrize("seed", range(4))
def test_a_program_leaves_the_memory_and_the_counters_of_the_model(
    seed: int, physical: Path
) -> None:
    program = random_program(TINY, seed=seed, length=40)
    model = FunctionalDevice(TINY, program.dram.size)
    model.write(0, program.dram)
    expected = model.run(program.insn_addr, program.insn_count)
    device = _opened(program.dram.size)
    device.write(0, program.dram)
    result = device.run(program.insn_addr, program.insn_count)
    assert result.fault == expected.fault
    assert result.tokens_left == expected.tokens_left
    assert result.counters["macs"] == expected.counters["macs"]
    np.testing.assert_array_equal(device.read(0, program.dram.size), program.expected)
    assert program.expected is not None
    with physical.open("rb") as file:
        file.seek(MEMORY_AT)
        assert file.read(program.dram.size) == program.expected.tobytes()


def test_whoever_comes_next_finds_zeros_in_memory() -> None:
    first = _opened()
    first.write(0, PROGRAM.dram)
    assert first.run(PROGRAM.insn_addr, PROGRAM.insn_count).fault is None
    assert not _opened().read(0, PROGRAM.dram.size).any()


@pytest.mark.parametrize("memory", [isa.Memory.INP, isa.Memory.OUT])
def test_no_transfer_goes_beyond_the_memory_of_a_program(memory: isa.Memory) -> None:
    last = 2048 // TINY.memory(memory).element_bytes - 1
    module = "load" if memory is isa.Memory.INP else "store"
    for at, fault in ((last, None), (last + 1, Fault(module, 0, "bus_error"))):
        one = {"dram_base": at, "y_size": 1, "x_size": 1}
        transfer = isa.Load(memory=memory, **one) if module == "load" else isa.Store(**one)
        program = _program(transfer, isa.Finish())
        device = _opened(2048)
        device.write(0, program.dram)
        assert device.run(program.insn_addr, program.insn_count).fault == fault


def test_instructions_beyond_the_memory_are_not_fetched() -> None:
    device = _opened()
    with pytest.raises(ValueError, match="are not within the device's"):
        device.run(device.memory_bytes, 1)


def test_a_time_limit_stops_a_run() -> None:
    endless = _program(
        isa.Gemm(reset=True, uop_end=200, iter_out=16_000, iter_in=16_000), isa.Finish()
    )
    device = _opened()
    device.write(0, endless.dram)
    result = device.run(endless.insn_addr, endless.insn_count, time_limit=0.05)
    assert result.fault == Fault("compute", 0, "timeout")


def test_the_command_runs_an_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "image.npz"
    PROGRAM.save(str(path))
    assert invoke(["replay", str(path), "--device", "board"]) == 0
    assert "memory is as expected in every byte" in capsys.readouterr().out


def test_another_configuration_is_refused_by_its_parameter() -> None:
    other = replace(TINY, log_wgt_buff_size=TINY.log_wgt_buff_size + 1)
    with pytest.raises(MismatchError, match="LOG_WGT_BUFF_SIZE = 10, but its software is for 11"):
        open_board(other, 4096)


def test_registers_of_a_file_are_read_as_those_of_a_machine(tmp_path: Path) -> None:
    """Word by word, at their mapped address."""
    words = np.zeros(1024, np.uint32)
    words[:2] = IDENTITY, VERSION
    for item in fields(Config):
        words[REGISTERS[item.name.upper()].offset // WORD_BYTES] = getattr(TINY, item.name)
    path = tmp_path / "uio"
    path.write_bytes(bytes(mmap.PAGESIZE) + words.tobytes())
    shown = map_words(str(path), mmap.PAGESIZE, 4096)
    memory = np.zeros(1024, np.uint32)
    other = replace(TINY, overwrite=1)
    with pytest.raises(MismatchError, match="the machine has OVERWRITE = 0"):
        BoardDevice(other, 64, MappedTransport(shown, memory, 0))
    with pytest.raises(MismatchError, match="the machine's IDENTITY is 0x0, not"):
        BoardDevice(TINY, 64, MappedTransport(memory, memory, 0))


def test_memory_is_accessed_in_whole_lines_and_single_words() -> None:
    """Other accesses would depend on the C library for alignment."""

    class Noted(np.ndarray):
        def __setitem__(self, part: Any, value: Any) -> None:
            accessed.append((part.start, part.stop))
            super().__setitem__(part, value)

        def __getitem__(self, part: Any) -> Any:
            accessed.append((part.start, part.stop))
            return np.asarray(self)[part]

    accessed: list[tuple[int, int]] = []
    memory = np.zeros(256, np.uint32).view(Noted)
    transport = MappedTransport(memory, memory, 0)
    generator = np.random.default_rng(1)
    for first in range(40):
        for count in (0, 1, 15, 16, 17, 40, 100):
            data = generator.integers(0, 256, 4 * count, np.uint8).tobytes()
            transport.write(4 * first, data)
            assert transport.read(4 * first, count) == data
            transport.fill(4 * first, count)
    assert not np.asarray(memory).any()
    assert all(stop - at == 1 or at % 16 == stop % 16 == 0 for at, stop in accessed)


def test_memory_that_is_too_small_or_too_far_is_refused() -> None:
    with pytest.raises(BoardError, match="needs 1,048,640 bytes of memory, and the board has 1,04"):
        _opened(MEMORY_BYTES + 1)
    words = np.zeros(1024, np.uint32)
    device = BoardDevice.__new__(BoardDevice)
    transport = MappedTransport(words, words, 1 << 20, release=lambda: None)
    small = replace(TINY, log_dram_size=20)
    device._check_machine = lambda: None  # type: ignore[method-assign]
    with pytest.raises(BoardError, match="from 0x100000 on is beyond the 1,048,576 bytes that a m"):
        BoardDevice.__init__(device, small, 64, transport)


def _uio(folder: Path, monkeypatch: pytest.MonkeyPatch, maps: int = 2) -> None:
    for number, (origin, size) in enumerate(
        ((REGISTERS_AT, 4096), (MEMORY_AT, MEMORY_BYTES))[:maps]
    ):
        map_folder = folder / "class" / "uio7" / "maps" / f"map{number}"
        map_folder.mkdir(parents=True)
        (map_folder / "addr").write_text(f"{origin:#010x}\n")
        (map_folder / "size").write_text(f"{size:#010x}\n")
    monkeypatch.setattr(mapped, "UIO_CLASS", str(folder / "class"))


def test_a_uio_device_has_registers_and_memory_as_its_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _uio(tmp_path, monkeypatch)
    asked = []

    def note(path: str, offset: int, size: int) -> Any:
        asked.append((path, offset, size))
        return np.zeros(size // 4, np.uint32)

    monkeypatch.setattr(mapped, "map_words", note)
    transport = open_mapped("uio:/dev/uio7", 64)
    assert transport.origin == MEMORY_AT
    assert transport.memory_bytes == MEMORY_BYTES
    assert asked == [("/dev/uio7", 0, 4096), ("/dev/uio7", mmap.PAGESIZE, MEMORY_BYTES)]


def test_the_allocator_of_pynq_gives_memory_and_keeps_caches(
    registers: SimulatedRegisters, physical: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mock of pynq, whose buffer is the machine's memory, records the calls."""
    noted: list[str] = []

    class Buffer(np.ndarray):
        physical_address = MEMORY_AT

        def flush(self) -> None:
            noted.append("flush")

        def invalidate(self) -> None:
            noted.append("invalidate")

        def freebuffer(self) -> None:
            noted.append("free")

    def allocate(shape: tuple[int, ...], dtype: type) -> Buffer:
        assert np.prod(shape) * np.dtype(dtype).itemsize % mmap.PAGESIZE == 0
        return map_words(str(physical), MEMORY_AT, MEMORY_BYTES)[: shape[0]].view(Buffer)

    pynq = SimpleNamespace(
        allocate=allocate, MMIO=lambda address, size: SimpleNamespace(array=registers)
    )
    monkeypatch.setitem(sys.modules, "pynq", pynq)
    monkeypatch.setenv("VTA_PORT", f"pynq:{REGISTERS_AT:#x}")
    device = _opened()
    noted.clear()
    device.write(0, PROGRAM.dram)
    device.run(PROGRAM.insn_addr, PROGRAM.insn_count)
    np.testing.assert_array_equal(device.read(0, PROGRAM.dram.size), PROGRAM.expected)
    device.close()
    assert noted == ["flush", "invalidate", "free"]


Arrange = Callable[[pytest.MonkeyPatch, Path], str]


def _denied(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", refuse)
    return f"mem:0x1000,{MEMORY_AT:#x}+0x1000"


def _nowhere(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.setattr(mapped, "PHYSICAL", f"{folder}/mem")
    return "mem:0x1000,0x2000+0x1000"


def _one_map(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    _uio(folder, monkeypatch, maps=1)
    return "uio:/dev/uio7"


@pytest.mark.parametrize(
    ("arrange", "problem"),
    [
        (_denied, "mem cannot be opened: Permission denied: run as root"),
        (_nowhere, "mem cannot be opened: No such file or directory"),
        (_one_map, "/dev/uio7 is not a UIO device with two maps"),
        (lambda *_: "uio:/dev/uio9", "/dev/uio9 is not a UIO device with two maps"),
        (lambda *_: "pynq:0x43c00000", "the package pynq, which PYNQ's images have"),
        (lambda *_: "mem:0x43c00000", "mem:0x43c00000 does not locate a machine; the forms are"),
        (lambda *_: "mem:here,there+1", "does not locate a machine"),
        (lambda *_: "mem:0x43c00004,0x1000+0x1000", "addresses must be multiples of 0x1000"),
        (lambda *_: "mem:0x43c00000,0x1000+0", "0x0 bytes at 0x1000 of"),
        (lambda *_: "mem:0x43c00000,0x1f000000+0x200000", "cannot be mapped: mmap length is gre"),
    ],
)
def test_what_is_not_there_is_said_in_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arrange: Arrange,
    problem: str,
) -> None:
    monkeypatch.setitem(sys.modules, "pynq", None)
    path = tmp_path / "image.npz"
    PROGRAM.save(str(path))
    monkeypatch.setenv("VTA_PORT", arrange(monkeypatch, tmp_path))
    assert invoke(["replay", str(path), "--device", "board"]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1
