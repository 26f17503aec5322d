"""The board's end of the host link: receives requests, executes them, and sends replies."""

from typing import Any, NamedTuple

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.crc import catalog
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from . import protocol
from .protocol import Command, Status

_SEQUENCE_BITS = 8


class HostAccess(data.Struct):
    """A read or write of one word; ``address`` is in bytes, a multiple of 4, and ``strobe`` selects
    the bytes that a write changes.
    """

    address: 32
    data: 32
    strobe: protocol.WORD_BYTES
    write: 1


class HostAccessSignature(wiring.Signature):
    """An initiator of accesses, one at a time: it waits for ``done`` before the next one.

    ``data`` and ``error`` are valid in the cycle in which ``done`` is high.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "request": Out(stream.Signature(HostAccess)),
                "done": In(1),
                "data": In(32),
                "error": In(1),
            }
        )


class WordOfBeat(NamedTuple):
    """Position of a host word in a memory of beats: index of the beat, index of the word in the
    beat, and the ``data`` and ``strobe`` of a beat that writes only bytes of this word.
    """

    beat: Value
    word: Value
    data: Value
    strobe: Value


def word_of_beat(access: Any, beat_bytes: int) -> WordOfBeat:
    """Position of ``access``, a `HostAccess`, in a memory with beats of ``beat_bytes`` bytes."""
    words = beat_bytes // protocol.WORD_BYTES
    word = access.address[2 : 2 + (words - 1).bit_length()]
    return WordOfBeat(
        beat=access.address[(beat_bytes - 1).bit_length() :],
        word=word,
        data=access.data.replicate(words),
        strobe=Cat(Mux(word == at, access.strobe, 0) for at in range(words)),
    )


class _Header(data.Struct):
    sequence: _SEQUENCE_BITS
    command: 8
    words: 8
    address: 32


class Link(wiring.Component):
    """Executes the requests of `amaranth_vta.hw.boards.protocol`, one at a time.

    A request is executed only after its checksum has arrived and matches. An incomplete request is
    dropped after ``gap`` cycles of silence, so a later request is recognized whatever preceded it
    on the line. Bytes that arrive during a request wait in a queue of `protocol.RECEIVE_BYTES`.

    Timing: up to one byte per cycle in each direction. A request is checked three cycles after its
    last byte; each word that it reads or writes takes two or three cycles plus the access.

    Ports
    -----
    i : bytes from the line
    o : bytes to the line
    access : accesses to memory and registers
    dropped : number of dropped requests, modulo 2^16
    """

    def __init__(self, gap: int) -> None:
        self._gap = gap
        super().__init__(
            {
                "i": In(stream.Signature(8, always_ready=True)),
                "o": Out(stream.Signature(8)),
                "access": Out(HostAccessSignature()),
                "dropped": Out(16),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.queue = queue = SyncFIFOBuffered(width=8, depth=protocol.RECEIVE_BYTES)
        m.submodules.crc = self._crc = catalog.CRC32_ISO_HDLC(8).create()
        # The payload is not written while a request executes.
        m.submodules.payload = payload = Memory(
            shape=32,
            depth=protocol.MAX_WORDS,
            init=[],
            attrs={"ram_style": "block", "no_rw_check": 1},
        )
        self._write, self._read = payload.write_port(), payload.read_port()
        # Bytes from the queue are registered before use, since block RAM is slow.
        self._byte, self._has_byte, self._take_byte = Signal(8), Signal(), Signal()
        m.d.comb += [
            queue.w_data.eq(self.i.payload),
            queue.w_en.eq(self.i.valid),
            queue.r_en.eq(~self._has_byte | self._take_byte),
        ]
        with m.If(queue.r_en):
            m.d.sync += [self._byte.eq(queue.r_data), self._has_byte.eq(queue.r_rdy)]
        self._header = Signal(_Header)
        self._status, self._execute = Signal(Status), Signal()
        self._reply_words = Signal(8)
        # Number of bytes in the current part of a frame, and of words in its payload.
        self._bytes, self._words = Signal(range(8)), Signal(8)
        self._word = Signal(32)
        self._silence = Signal(range(self._gap + 1))
        expected = Signal(_SEQUENCE_BITS)
        with m.FSM():
            self._receive(m)
            self._judge(m, expected)
            self._perform(m)
            self._reply(m)
        return m

    def _receive(self, m: Module) -> None:
        header = self._header
        with m.State("hunt"):
            m.d.comb += [self._take_byte.eq(1), self._crc.start.eq(1)]
            m.d.sync += [self._bytes.eq(0), self._words.eq(0), self._silence.eq(0)]
            with m.If(self._has_byte & (self._byte == protocol.REQUEST_START)):
                m.next = "header"
        bits = Cat(header.as_value()[8:], self._byte)
        with m.State("header"):
            with self._each_byte(m):
                m.d.sync += [header.as_value().eq(bits), self._bytes.eq(self._bytes + 1)]
                with m.If(self._bytes == protocol.REQUEST_HEADER_BYTES - 1):
                    m.d.sync += self._bytes.eq(0)
                    whole = data.View(_Header, bits)
                    has_payload = (whole.command == Command.WRITE) | (whole.command == Command.FILL)
                    with m.If(whole.words > protocol.MAX_WORDS):
                        self._drop(m)
                    with m.Elif(has_payload & (whole.words != 0)):
                        m.next = "payload"
                    with m.Else():
                        m.next = "checksum"
        m.d.comb += [
            self._write.addr.eq(self._words),
            self._write.data.eq(Cat(self._word[8:], self._byte)),
        ]
        with m.State("payload"):
            with self._each_byte(m):
                m.d.sync += [self._word.eq(self._write.data), self._bytes.eq(self._bytes + 1)]
                with m.If(self._bytes == protocol.WORD_BYTES - 1):
                    m.d.comb += self._write.en.eq(1)
                    m.d.sync += [self._bytes.eq(0), self._words.eq(self._words + 1)]
                    with m.If(self._words == header.words - 1):
                        m.next = "checksum"
        with m.State("checksum"):
            with self._each_byte(m):
                m.d.sync += self._bytes.eq(self._bytes + 1)
                with m.If(self._bytes == protocol.CHECKSUM_BYTES - 1):
                    m.next = "judge"

    def _each_byte(self, m: Module) -> Any:
        """Accept each byte of the current part of a request; returns a context for the cycles in
        which one arrives. Drops the request after too long a silence.
        """
        crc, has_byte, cut = self._crc, self._has_byte, self._silence == self._gap
        m.d.comb += [
            self._take_byte.eq(1),
            crc.data.eq(self._byte),
            crc.valid.eq(has_byte),
        ]
        m.d.sync += self._silence.eq(Mux(has_byte, 0, self._silence + 1))
        with m.If(cut):
            self._drop(m)
        return m.If(has_byte & ~cut)

    def _drop(self, m: Module) -> None:
        m.d.sync += self.dropped.eq(self.dropped + 1)
        m.next = "hunt"

    def _judge(self, m: Module, expected: Signal) -> None:
        """Decide whether the received request is executed, and with which reply."""
        header, known = self._header, Signal()
        is_read = header.command == Command.READ
        is_write = header.command == Command.WRITE
        is_fill = header.command == Command.FILL
        ahead = Signal(_SEQUENCE_BITS)
        m.d.comb += [
            ahead.eq(header.sequence - expected),
            known.eq(
                ((is_read | is_write) & (header.words != 0)) | (is_fill & (header.words == 2))
            ),
        ]
        with m.State("judge"):
            m.d.sync += [
                self._words.eq(0),
                self._bytes.eq(0),
                self._status.eq(Status.DONE),
                self._reply_words.eq(0),
                self._execute.eq(0),
            ]
            m.next = "reply start"
            with m.If(~self._crc.match_detected):
                self._drop(m)
            with m.Elif(header.command == Command.IDENTIFY):
                m.d.sync += [
                    expected.eq(header.sequence + 1),
                    header.address.eq(protocol.BOARD_BASE),
                    self._reply_words.eq(protocol.IDENTIFY_WORDS),
                ]
            with m.Elif((ahead != 0) & ~ahead[-1]):
                m.d.sync += self._status.eq(Status.OUT_OF_ORDER)
            with m.Else():
                with m.If(ahead == 0):
                    m.d.sync += expected.eq(expected + 1)
                with m.If(~known):
                    m.d.sync += self._status.eq(Status.REFUSED)
                with m.Elif(is_read):
                    m.d.sync += self._reply_words.eq(header.words)
                with m.Elif(ahead == 0):
                    m.next = "prepare"

    def _perform(self, m: Module) -> None:
        """Write the words of a WRITE or FILL before the reply."""
        access, header = self.access, self._header
        is_fill = header.command == Command.FILL
        left = Signal(32)
        m.d.comb += [
            self._read.addr.eq(Mux(is_fill, 0, self._words)),
            access.request.payload.address.eq(header.address),
            access.request.payload.data.eq(self._read.data),
            access.request.payload.strobe.eq(-1),
        ]
        with m.State("prepare"):
            # A FILL's count is its second word, the last one received.
            m.d.sync += left.eq(Mux(is_fill, self._word, header.words))
            m.next = "write"
        with m.State("write"):
            m.d.comb += [
                access.request.valid.eq(left != 0),
                access.request.payload.write.eq(1),
            ]
            with m.If(left == 0):
                m.next = "reply start"
            with m.Elif(access.request.ready):
                m.next = "written"
        with m.State("written"):
            with m.If(access.done):
                m.d.sync += [
                    left.eq(left - 1),
                    self._words.eq(self._words + 1),
                    header.address.eq(header.address + protocol.WORD_BYTES),
                ]
                m.next = "next word"
                with m.If(access.error):
                    m.d.sync += self._status.eq(Status.REFUSED)
                    m.next = "reply start"
        with m.State("next word"):
            # The payload memory's read data follow its address by one cycle.
            m.next = "write"

    def _reply(self, m: Module) -> None:
        access, crc = self.access, self._crc

        def send(name: str, byte: Any, following: str) -> None:
            """Add a state that sends one byte."""
            with m.State(name):
                m.d.comb += [self.o.payload.eq(byte), self.o.valid.eq(1)]
                m.d.comb += [crc.data.eq(byte), crc.valid.eq(self.o.ready)]
                with m.If(self.o.ready):
                    m.next = following

        with m.State("reply start"):
            m.d.comb += [self.o.payload.eq(protocol.REPLY_START), self.o.valid.eq(1)]
            m.d.comb += crc.start.eq(1)
            m.d.sync += [self._bytes.eq(0), self._words.eq(0)]
            with m.If(self.o.ready):
                m.next = "reply sequence"
        send("reply sequence", self._header.sequence, "reply words")
        send("reply words", self._reply_words, "read")
        with m.State("read"):
            m.d.comb += access.request.valid.eq(self._words != self._reply_words)
            with m.If(self._words == self._reply_words):
                m.next = "reply status"
            with m.Elif(access.request.ready):
                m.next = "reading"
        with m.State("reading"):
            with m.If(access.done):
                m.d.sync += [
                    self._word.eq(access.data),
                    self._words.eq(self._words + 1),
                    self._header.address.eq(self._header.address + protocol.WORD_BYTES),
                ]
                m.next = "reply word"
                with m.If(access.error):
                    m.d.sync += self._status.eq(Status.REFUSED)
        self._send_word(m, "reply word", self._word, "read", checked=True)
        send("reply status", self._status, "reply checksum")
        self._send_word(m, "reply checksum", crc.crc, "hunt", checked=False)

    def _send_word(self, m: Module, name: str, word: Any, following: str, checked: bool) -> None:
        """Add a state that sends the four bytes of ``word``."""
        byte = word.word_select(self._bytes[:2], 8)
        with m.State(name):
            m.d.comb += [self.o.payload.eq(byte), self.o.valid.eq(1)]
            if checked:
                m.d.comb += [self._crc.data.eq(byte), self._crc.valid.eq(self.o.ready)]
            with m.If(self.o.ready):
                m.d.sync += self._bytes.eq(self._bytes + 1)
                with m.If(self._bytes == protocol.WORD_BYTES - 1):
                    m.d.sync += self._bytes.eq(0)
                    m.next = following
