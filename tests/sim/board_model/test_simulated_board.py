"""Programs on a whole board in Verilator, through the pins of its serial line."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import serial

from amaranth_vta.cli import invoke
from amaranth_vta.hw import isa
from amaranth_vta.hw.boards import protocol
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.registers import REGISTERS
from amaranth_vta.sim.board_model.simulated import HARNESS, SimulatedBoard
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sim.machine.rtl.build import design_library, flags_of
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.programs.builder import probe
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.programs.random_programs import random_program
from amaranth_vta.sim.trace.wave_file import signals_of
from amaranth_vta.sw.board_drivers.device import BoardDevice
from amaranth_vta.sw.board_drivers.link import LinkError
from amaranth_vta.sw.board_drivers.transport import BoardError, SerialTransport, open_line
from amaranth_vta.sw.runtime.device import Fault
from amaranth_vta.sw.runtime.driver import MismatchError
from amaranth_vta.sw.runtime.scrub import scrub_stream

TINY = PRESETS["tiny"]
PROGRAM = random_program(TINY, seed=3, length=40)


def _program(*instructions: isa.Instruction) -> ProgramImage:
    return ProgramImage.assemble(TINY, np.zeros(1024, np.uint8), 512, instructions)


SHORT = _program(isa.Finish())
# A program that runs for seconds on a board, for minutes in simulation.
ENDLESS = _program(isa.Gemm(reset=True, uop_end=200, iter_out=16_000, iter_in=16_000), isa.Finish())


BOARD = "ulx3s-sdram"
# Replaces a board: echoes received bytes.
ECHO = """
module vta(input clk, input rst, input rx, output reg tx);
  initial tx = 1;
  always @(posedge clk) tx <= rx;
endmodule
"""


@pytest.fixture(scope="module", params=[BOARD, pytest.param("ulx3s", marks=pytest.mark.nightly)])
def board(request: pytest.FixtureRequest) -> Iterator[SimulatedBoard]:
    board = SimulatedBoard(TINY, board=request.param)
    yield board
    board.close()


@pytest.fixture
def device(board: SimulatedBoard) -> Iterator[BoardDevice]:
    device = BoardDevice(TINY, PROGRAM.dram.size, SerialTransport(open_line(board.port)))
    yield device
    device.close()


class NoisyLine(serial.Serial):
    """Occasionally loses, changes or repeats bytes, in both directions."""

    noise = 0.0
    generator = random.Random(1)

    def read(self, size: int = 1) -> bytes:
        return self._spoil(super().read(size))

    def write(self, data: bytes) -> int | None:
        return super().write(self._spoil(data))

    def _spoil(self, data: bytes) -> bytes:
        spoiled = bytearray()
        for byte in data:
            if self.generator.random() >= self.noise:
                spoiled.append(byte)
            elif self.generator.random() < 0.5:
                spoiled += bytes([byte ^ 1 << self.generator.randrange(8), byte])
        return bytes(spoiled)


def test_a_program_leaves_the_memory_and_the_counters_of_the_model(device: BoardDevice) -> None:
    model = FunctionalDevice(TINY, PROGRAM.dram.size)
    model.write(0, PROGRAM.dram)
    expected = model.run(PROGRAM.insn_addr, PROGRAM.insn_count)
    device.write(0, PROGRAM.dram)
    result = device.run(PROGRAM.insn_addr, PROGRAM.insn_count)
    assert result.fault is None
    assert result.cycles is not None
    assert result.counters["macs"] == expected.counters["macs"]
    assert result.tokens_left == expected.tokens_left
    np.testing.assert_array_equal(device.read(0, PROGRAM.dram.size), PROGRAM.expected)


def test_whoever_comes_next_finds_nothing_of_a_program(board: SimulatedBoard) -> None:
    """No leftovers in registers, scratchpads or memory."""
    everywhere = {
        memory: np.ones(TINY.memory(memory).depth, bool)
        for memory in (isa.Memory.INP, isa.Memory.WGT, isa.Memory.ACC)
    }
    shown = probe(TINY, everywhere, seed=1)
    first = BoardDevice(TINY, PROGRAM.dram.size, SerialTransport(open_line(board.port)))
    first.write(0, PROGRAM.dram)
    first.set_limits({isa.Memory.OUT: 1})
    first.run(PROGRAM.insn_addr, PROGRAM.insn_count)
    first.write_words(REGISTERS["OUT_BASE"].offset, [64, 0])
    first.close()
    found = []
    for device in (
        BoardDevice(TINY, PROGRAM.dram.size, SerialTransport(open_line(board.port))),
        FunctionalDevice(TINY, PROGRAM.dram.size),
    ):
        assert not device.read(0, PROGRAM.dram.size).any()
        scrub = scrub_stream(TINY)
        if isinstance(device, FunctionalDevice):
            device.write(0, scrub)
            device.run(0, len(scrub))
        device.write(0, shown.dram)
        assert device.run(shown.insn_addr, shown.insn_count).fault is None
        found.append(device.read(0, shown.dram.size))
        if isinstance(device, BoardDevice):
            device.close()
    np.testing.assert_array_equal(found[0], found[1])


def test_a_line_that_spoils_bytes_changes_nothing(board: SimulatedBoard) -> None:
    line = NoisyLine(board.port, timeout=0)
    transport = SerialTransport(line)
    device = BoardDevice(TINY, PROGRAM.dram.size, transport)
    data = np.random.default_rng(1).integers(0, 256, 5000, np.uint8)
    line.noise = 1 / 3000
    device.write(0, data)
    found = device.read(0, data.size)
    assert transport.resent
    line.close()
    np.testing.assert_array_equal(found, data)


def test_bytes_are_read_and_written_wherever_they_begin_and_end(device: BoardDevice) -> None:
    memory = np.zeros(device.memory_bytes, np.uint8)
    generator = np.random.default_rng(1)
    for address, size in ((0, 3), (5, 1), (6, 700), (1021, 9), (4096, 600), (4100, 300)):
        data = generator.integers(0, 256, size, np.uint8) if size != 600 else np.zeros(600, "u1")
        device.write(address, data)
        memory[address : address + size] = data
        np.testing.assert_array_equal(
            device.read(address + 1, size), memory[address + 1 : address + 1 + size]
        )
    np.testing.assert_array_equal(device.read(0, 5000), memory[:5000])


def test_what_lies_beyond_the_memory_of_a_program_is_a_bus_error(device: BoardDevice) -> None:
    result = device.run(device.memory_bytes, 1)
    assert result.fault == Fault("fetch", 0, "bus_error")
    with pytest.raises(ValueError, match="are not within the device's"):
        device.read(device.memory_bytes - 1, 2)


def test_a_time_limit_stops_a_run(device: BoardDevice) -> None:
    device.write(0, ENDLESS.dram)
    result = device.run(ENDLESS.insn_addr, ENDLESS.insn_count, time_limit=0.1)
    assert result.cycles is None
    assert result.fault == Fault("compute", 0, "timeout")
    device.write(0, SHORT.dram)
    assert device.run(SHORT.insn_addr, SHORT.insn_count).fault is None


def test_another_configuration_is_refused_by_its_parameter(board: SimulatedBoard) -> None:
    line = open_line(board.port)
    other = replace(TINY, log_wgt_buff_size=TINY.log_wgt_buff_size + 1)
    with pytest.raises(MismatchError, match="LOG_WGT_BUFF_SIZE = 10, but its software is for 11"):
        BoardDevice(other, 4096, SerialTransport(line))
    line.close()


def test_a_program_that_needs_more_memory_is_refused(board: SimulatedBoard) -> None:
    transport = SerialTransport(open_line(board.port))
    size = transport.memory_bytes
    with pytest.raises(BoardError, match=f"needs {size + 64:,} bytes of memory, and the board has"):
        BoardDevice(TINY, size + 1, transport)
    transport.close()


def test_requests_of_another_program_that_was_cut_are_forgotten(board: SimulatedBoard) -> None:
    with serial.Serial(board.port) as line:
        line.write(bytes([protocol.REQUEST_START, 9, 2, 64, 0, 0, 0, 0, 1, 2, 3]))
    device = BoardDevice(TINY, PROGRAM.dram.size, SerialTransport(open_line(board.port)))
    assert not device.read(0, 16).any()
    device.close()


def test_a_board_that_is_gone_is_said_to_be() -> None:
    board = SimulatedBoard(TINY, board=BOARD)
    device = BoardDevice(TINY, 4096, SerialTransport(open_line(board.port)))
    board.close()
    with pytest.raises(LinkError, match=r"the (serial port|board at) /dev/pts/\d+ "):
        device.read(0, 16)


def test_a_board_that_stays_open_ends_with_the_interpreter() -> None:
    code = f"""
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.board_model.simulated import SimulatedBoard
board = SimulatedBoard(PRESETS["tiny"], board={BOARD!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_runs_an_image_on_a_simulated_board(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{tmp_path}/image.npz"
    replace(SHORT, expected=SHORT.dram).save(path)
    monkeypatch.setenv("VTA_PORT", f"simulated:{BOARD}")
    assert invoke(["replay", path, "--device", "board"]) == 0
    assert "memory is as expected in every byte" in capsys.readouterr().out


def test_a_board_writes_waves(tmp_path: Path) -> None:
    waves = tmp_path / "echo.fst"
    library = design_library(ECHO, HARNESS, flags_of("fst"))
    board = SimulatedBoard(TINY, waves=waves, library=library)
    while not board.cycle:
        time.sleep(0.01)  # the first edge of the clock is lost
    with serial.Serial(board.port, timeout=60) as line:
        line.write(b"sent")
        assert line.read(4) == b"sent"
    board.close()
    assert {signal.path for signal in signals_of(waves)} >= {"TOP.vta.rx", "TOP.vta.tx"}


@pytest.mark.nightly  # builds a board with waves; the test above uses a small design
def test_the_command_writes_waves_of_a_board_with_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, waves = tmp_path / "image.npz", tmp_path / "board.fst"
    replace(SHORT, expected=SHORT.dram).save(path)
    monkeypatch.setenv("VTA_PORT", f"simulated:{BOARD}")
    assert invoke(["replay", str(path), "--device", "board", "--waves", str(waves)]) == 0
    view = (tmp_path / "board.fst.views" / "surfer.sucl").read_text().splitlines()
    groups = [line.partition(" ")[2] for line in view if line.startswith("divider_add")]
    assert groups == [
        *("serial line", "link", "run", "fetch", "load", "load to compute", "compute to load"),
        *("compute", "GEMM", "ALU", "compute to store", "store to compute", "store"),
        *("memory bus", "SDRAM"),
    ]
    shown = {line.partition(" ")[2] for line in view if line.startswith("variable_add")}
    assert shown <= {signal.path for signal in signals_of(waves)}


def test_waves_of_a_real_board_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTA_PORT", "/dev/ttyUSB0")
    with pytest.raises(BoardError, match="a real board has no waves; VTA_PORT=simulated"):
        open_device("board", TINY, 4096, waves="board.fst")


def test_the_command_says_how_to_name_a_board(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{tmp_path}/image.npz"
    SHORT.save(path)
    monkeypatch.setenv("VTA_PORT", f"{tmp_path}/nothing")
    assert invoke(["replay", path, "--device", "board"]) == 2
    assert "nothing cannot be opened" in capsys.readouterr().err
