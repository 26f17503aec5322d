from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from amaranth_vta.sim.machine.axi_memory import DECERR, OKAY, Address, AxiMemory, Request, Word
from amaranth_vta.sim.machine.dram import MemoryTiming, ProtocolError, memory_timing

BURST = Address(address=64, length=1, size=3, burst=1, id=0)


def _memory(timing: MemoryTiming | None = None) -> AxiMemory:
    contents = np.arange(256, dtype=np.uint8)
    memory = AxiMemory(contents, 8, timing or memory_timing("ideal"))
    memory.step(Request())
    return memory


def _write(memory: AxiMemory, burst: Address, words: list[Word]) -> int:
    """Offers a burst until all of it is taken; returns the response."""
    address: Address | None = burst
    for _ in range(100):
        word = words[0] if words else None
        request = Request(aw=address, w=word, b_ready=1)
        before = replace(memory.answer)
        memory.step(request)
        if before.b_valid:
            return before.b_resp
        if before.aw_ready:
            address = None
        if before.w_ready and words:
            words.pop(0)
    raise AssertionError("no response")


def _play(memory: AxiMemory, requests: list[Request]) -> None:
    for request in requests:
        memory.step(request)


def test_the_first_word_comes_after_the_latency_and_the_others_follow() -> None:
    memory = _memory()
    asked = memory.cycle
    memory.step(Request(ar=BURST))
    seen = []
    for _ in range(10):
        answer = memory.answer
        if answer.r_valid:
            seen.append((memory.cycle - asked, answer.r_data & 255, answer.r_last))
        memory.step(Request(r_ready=1))
    assert seen == [(4, 64, 0), (5, 72, 1)]
    assert memory.quiet


def test_a_word_waits_until_its_reader_is_ready() -> None:
    memory = _memory()
    memory.step(Request(ar=BURST))
    for _ in range(20):
        memory.step(Request())
    assert (memory.answer.r_valid, memory.answer.r_data & 255) == (1, 64)


def test_strobes_choose_the_bytes_that_are_written() -> None:
    memory = _memory()
    words = [Word((1 << 64) - 1, 0b1000_0001, 0), Word(0, 0xFF, 1)]
    assert _write(memory, BURST, words) == OKAY
    expected = [255, *range(65, 71), 255, *[0] * 8, 80]
    assert memory.memory[64:81].tolist() == expected


def test_a_write_shows_only_with_its_response() -> None:
    memory = _memory()
    memory.step(Request(aw=BURST, w=Word(0, 0xFF, 0)))
    memory.step(Request(w=Word(0, 0xFF, 1)))
    while not memory.answer.b_valid:
        assert memory.memory[64] == 64
        memory.step(Request())
    assert memory.memory[64] == 0


def test_what_lies_past_the_memory_reads_as_zero_with_an_error() -> None:
    memory = _memory()
    memory.step(Request(ar=replace(BURST, address=248)))
    seen = []
    for _ in range(10):
        if memory.answer.r_valid:
            seen.append((memory.answer.r_data & 255, memory.answer.r_resp))
        memory.step(Request(r_ready=1))
    assert seen == [(248, OKAY), (0, DECERR)]


def test_what_is_written_past_the_memory_is_dropped_with_an_error() -> None:
    memory = _memory()
    words = [Word(0, 0xFF, 0), Word(0, 0xFF, 1)]
    assert _write(memory, replace(BURST, address=248), words) == DECERR
    assert memory.memory[248:].tolist() == [0] * 8
    assert memory.memory[0] == 0
    assert memory.memory[1] == 1


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([Request(ar=BURST), Request()], "AR in cycle 1: valid fell before ready"),
        (
            [Request(ar=BURST), Request(ar=replace(BURST, address=0))],
            "AR in cycle 1: the payload changed before ready",
        ),
        ([Request(aw=replace(BURST, burst=0))] * 2, "burst type 0 is not INCR"),
        ([Request(aw=replace(BURST, size=2))] * 2, "beats of 4 bytes on a bus of 8"),
        ([Request(aw=replace(BURST, address=4088))] * 2, "2 beats at 0xff8 crosses 4 KiB"),
        ([Request(ar=replace(BURST, id=1))] * 2, "id 1 is not 0"),
        ([Request(aw=BURST, w=Word(0, 255, 1))] * 2, "last is 1 with 1 beats to come"),
        (
            [Request(aw=replace(BURST, address=68), w=Word(0, 255, 0))] * 2,
            "strobes 0xff are below the address",
        ),
    ],
)
def test_a_broken_rule_of_the_bus_is_an_error(requests: list[Request], message: str) -> None:
    memory = AxiMemory(np.zeros(256, np.uint8), 8, memory_timing("ideal"))
    with pytest.raises(ProtocolError, match=message):
        _play(memory, [*requests, *[Request()] * 10])


def test_writing_on_after_an_error_breaks_a_rule() -> None:
    memory = _memory()
    words = [Word(0, 0xFF, 0), Word(0, 0xFF, 1)]
    assert _write(memory, replace(BURST, address=256), words.copy()) == DECERR
    assert _write(memory, replace(BURST, address=256), words.copy()) == DECERR
    unwritten = [Word(0, 0, 0), Word(0, 0, 1)]
    assert _write(memory, BURST, unwritten.copy()) == OKAY
    assert _write(memory, BURST, words.copy()) == OKAY
    with pytest.raises(ProtocolError, match="W in cycle .*: the word at 0x40 is written after an"):
        _write(memory, BURST, words.copy())
    memory = _memory()
    assert _write(memory, replace(BURST, address=256), words.copy()) == DECERR
    memory.begin()
    for _ in range(2):
        assert _write(memory, BURST, words.copy()) == OKAY
