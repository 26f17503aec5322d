"""Model of the memory behind the machine's AXI4 port, one step per cycle, with protocol checks.

rtl/harness.cpp has the same model in C++; change both together.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from .dram import Dice, MemoryTiming, ProtocolError

PAGE_BYTES = 4096  # no burst may cross a multiple of it
OKAY, SLVERR, DECERR = 0, 2, 3
INCR = 1

_R, _W, _B, _AR, _AW, _WREADY = range(6)  # channels with independent random gaps
_WORDS_WAITING = 2  # write data accepted ahead of processing
_WRITTEN_AFTER_ERROR = 2  # words that the machine may have in registers at an error
_DENSITY_CYCLES = 128  # cycles between changes of the gap density
_DENSITIES = (1, 4, 7, 8)  # open cycles out of 8


@dataclass(frozen=True)
class Address:
    """The payload of an address channel."""

    address: int
    length: int
    size: int
    burst: int
    id: int


@dataclass(frozen=True)
class Word:
    """The payload of the channel of write data."""

    data: int
    strobes: int
    last: int


_Payload = TypeVar("_Payload")


class Channel(Generic[_Payload]):
    """Checks that a channel's payload stays stable until the handshake."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._held: _Payload | None = None

    def take(self, payload: _Payload | None, ready: int, cycle: int) -> _Payload | None:
        """The payload transferred in this cycle, or None; raises `ProtocolError`."""
        if self._held is not None and payload is None:
            raise ProtocolError(f"{self.name} in cycle {cycle}: valid fell before ready")
        if self._held is not None and payload != self._held:
            raise ProtocolError(f"{self.name} in cycle {cycle}: the payload changed before ready")
        self._held = None if ready else payload
        return payload if ready else None


@dataclass
class Request:
    """The machine's outputs in one cycle; None for channels that are not valid."""

    ar: Address | None = None
    aw: Address | None = None
    w: Word | None = None
    r_ready: int = 0
    b_ready: int = 0


@dataclass
class Answer:
    """The memory's outputs in one cycle."""

    ar_ready: int = 0
    aw_ready: int = 0
    w_ready: int = 0
    r_valid: int = 0
    r_data: int = 0
    r_resp: int = OKAY
    r_last: int = 0
    b_valid: int = 0
    b_resp: int = OKAY


@dataclass
class _Read:
    address: int
    beats: int
    earliest: int


@dataclass
class _Write:
    burst: Address
    beats: int  # still to come
    earliest: int = 0
    words: list[Word] = field(default_factory=list)


class AxiMemory:
    """An AXI4 slave with contents ``memory``, in whole bus words, and ``timing``; `answer` is its
    output in the current cycle.

    ``memory`` begins at address ``origin``. Accesses outside of it are answered with SLVERR or
    DECERR, alternating from word to word.
    """

    def __init__(
        self,
        memory: npt.NDArray[np.uint8],
        bus_bytes: int,
        timing: MemoryTiming,
        origin: int = 0,
    ) -> None:
        self.memory = memory
        self.origin = origin
        self.bus_bytes = bus_bytes
        self.timing = timing
        self.dice = Dice(timing.seed or 0)
        self.cycle = 0
        self.start = 0  # cycle of the launch
        self.last_moved = 0
        self.awaited: list[int] = []  # byte addresses, in order
        self.reached: list[int] = []  # cycles in which they were written, in order
        self.reset()

    def reset(self) -> None:
        """Drop all accesses in flight."""
        self.answer = Answer()
        self._ar = Channel[Address]("AR")
        self._aw = Channel[Address]("AW")
        self._w = Channel[Word]("W")
        self._reads: deque[_Read] = deque()
        self._writes: deque[_Write] = deque()
        self._words: deque[tuple[Word, bool]] = deque()  # and whether it came after an error
        self.begin()
        self._filling = 0  # number of writes whose words are complete
        self._write_turn = False
        self._densities = [8] * 6
        self._open = [True] * 6
        self._paused: deque[int] = deque()  # the latest cycles of random pauses

    @property
    def quiet(self) -> bool:
        """Whether no access is in flight."""
        return not (self._reads or self._writes or self._words)

    def begin(self) -> None:
        """Clear the error state; called when the host may launch a program."""
        self._refused = False
        self._written_after_error = 0

    def step(self, request: Request) -> Answer:
        """Advance one cycle with inputs ``request``; returns the outputs of the next cycle. Raises
        `ProtocolError`.
        """
        self._accept(request)
        following = self.cycle + 1
        if self.timing.seed is not None:
            if following % _DENSITY_CYCLES == 0:
                self._densities = [_DENSITIES[self.dice.draw(4)] for _ in range(6)]
            self._open = [self.dice.draw(8) < density for density in self._densities]
        if self.timing.is_limited:
            words = not self._pauses(following)
            self._open = [words, words, *[True] * 4]
        self._transfer_words(following)
        if (
            not self.answer.b_valid
            and self._filling
            and self._writes[0].earliest <= following
            and self._open[_B]
        ):
            self._respond(self._writes[0])
        self._show_room()
        self.cycle = following
        return self.answer

    def _accept(self, request: Request) -> None:
        """Accept transfers of this cycle on all five channels."""
        answer = self.answer
        ar = self._ar.take(request.ar, answer.ar_ready, self.cycle)
        aw = self._aw.take(request.aw, answer.aw_ready, self.cycle)
        w = self._w.take(request.w, answer.w_ready, self.cycle)
        if ar:
            self._check_burst("AR", ar)
        if aw:
            self._check_burst("AW", aw)
        r = answer.r_valid and request.r_ready
        b = answer.b_valid and request.b_ready
        if ar or aw or w or r or b:
            self.last_moved = self.cycle
        if ar:
            self._reads.append(_Read(self._first(ar), ar.length + 1, self.cycle + self._latency()))
        if aw:
            self._writes.append(_Write(aw, aw.length + 1))
        if w:
            self._words.append((w, self._refused))
        if r:
            answer.r_valid = 0
            if answer.r_last:
                self._reads.popleft()
        if b:
            answer.b_valid = 0
            self._refused |= answer.b_resp != OKAY
            self._writes.popleft()
            self._filling -= 1

    def _transfer_words(self, following: int) -> None:
        """Transfer a word each way, or only one if reads and writes share the bus."""
        timing = self.timing
        moving = (
            not timing.refresh_period
            or timing.is_limited
            or (
                (following - self.start - 1) % timing.refresh_period
                < timing.refresh_period - timing.refresh_stall
            )
        )
        can_read = (
            moving
            and not self.answer.r_valid
            and bool(self._reads)
            and self._reads[0].earliest <= following
            and self._open[_R]
        )
        can_write = (
            moving and bool(self._words) and self._filling < len(self._writes) and self._open[_W]
        )
        if can_read and can_write and timing.shared:
            can_read, can_write = not self._write_turn, self._write_turn
            self._write_turn = not self._write_turn
        if can_read:
            self._show_word(self._reads[0])
        if can_write:
            self._take_word(self._writes[self._filling])

    def _show_room(self) -> None:
        """Set the ready signals of the next cycle."""
        timing, answer = self.timing, self.answer
        answer.ar_ready = int(
            (not timing.reads_outstanding or len(self._reads) < timing.reads_outstanding)
            and self._open[_AR]
        )
        answer.aw_ready = int(
            (not timing.writes_outstanding or len(self._writes) < timing.writes_outstanding)
            and self._open[_AW]
        )
        answer.w_ready = int(len(self._words) < _WORDS_WAITING and self._open[_WREADY])

    def _check_burst(self, channel: str, burst: Address) -> None:
        beats = burst.length + 1
        if burst.burst != INCR:
            self._fail(channel, f"burst type {burst.burst} is not INCR")
        if 1 << burst.size != self.bus_bytes:
            self._fail(channel, f"beats of {1 << burst.size} bytes on a bus of {self.bus_bytes}")
        if self._first(burst) % PAGE_BYTES + beats * self.bus_bytes > PAGE_BYTES:
            self._fail(channel, f"the burst of {beats} beats at {burst.address:#x} crosses 4 KiB")
        if burst.id:
            self._fail(channel, f"id {burst.id} is not 0")

    def _first(self, burst: Address) -> int:
        return burst.address & -self.bus_bytes

    def _show_word(self, read: _Read) -> None:
        word = self._find(read.address)
        read.beats -= 1
        self.answer.r_valid = 1
        self.answer.r_data = int.from_bytes(word.tobytes(), "little")
        self.answer.r_resp = OKAY if word.size else self._error(read.address)
        self.answer.r_last = int(read.beats == 0)
        read.address += self.bus_bytes

    def _take_word(self, write: _Write) -> None:
        word, after_error = self._words.popleft()
        if not write.words and word.strobes & ((1 << write.burst.address % self.bus_bytes) - 1):
            self._fail("W", f"strobes {word.strobes:#x} are below the address")
        address = self._first(write.burst) + len(write.words) * self.bus_bytes
        if after_error and word.strobes and self._find(address).size:
            self._written_after_error += 1
            if self._written_after_error > _WRITTEN_AFTER_ERROR:
                self._fail("W", f"the word at {address:#x} is written after an error")
        write.words.append(word)
        write.beats -= 1
        if word.last != (write.beats == 0):
            self._fail("W", f"last is {word.last} with {write.beats} beats to come")
        if write.beats == 0:
            write.earliest = self.cycle + self._latency()
            self._filling += 1

    def _respond(self, write: _Write) -> None:
        """Commit a write and respond. Memory changes only now, so a read that does not wait for the
        response returns old data.
        """
        address, response = self._first(write.burst), OKAY
        for word in write.words:
            place = self._find(address)
            if place.size:
                data = np.frombuffer(word.data.to_bytes(self.bus_bytes, "little"), np.uint8)
                strobes = np.frombuffer(word.strobes.to_bytes(8, "little"), np.uint8)
                taken = np.unpackbits(strobes, bitorder="little")[: self.bus_bytes]
                np.copyto(place, data, where=taken.astype(bool))
            elif response == OKAY:
                response = self._error(address)
            address += self.bus_bytes
        self.answer.b_valid = 1
        self.answer.b_resp = response
        if len(self.reached) < len(self.awaited):
            following = self.awaited[len(self.reached)]
            if self._first(write.burst) <= following < address:
                self.reached.append(self.cycle + 1)

    def _pauses(self, cycle: int) -> bool:
        """Whether no word is transferred in ``cycle``: at random, within the limits."""
        timing = self.timing
        if self._open[_R] or not timing.refresh_stall:
            return False
        if len(self._paused) == timing.refresh_stall:
            if cycle - self._paused[0] < timing.refresh_period:
                return False
            self._paused.popleft()
        self._paused.append(cycle)
        return True

    def _find(self, address: int) -> npt.NDArray[np.uint8]:
        """The word at an address; empty if there is no memory."""
        place = address - self.origin
        return self.memory[place : place + self.bus_bytes] if place >= 0 else self.memory[:0]

    def _error(self, address: int) -> int:
        return SLVERR if address // self.bus_bytes % 2 else DECERR

    def _latency(self) -> int:
        if self.timing.seed is None:
            return self.timing.latency
        if self.timing.is_limited:
            most = self.timing.latency
            return most if self.dice.draw(2) else self.dice.draw(most + 1)
        return 1 + self.dice.draw(8) if self.dice.draw(4) else 1 + self.dice.draw(80)

    def _fail(self, channel: str, text: str) -> NoReturn:
        raise ProtocolError(f"{channel} in cycle {self.cycle}: {text}")
