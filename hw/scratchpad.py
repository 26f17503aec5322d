"""Scratchpad memories that transfer several elements per cycle at any alignment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Shape, Signal, Value, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory, ReadPort, WritePort
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.timing import MAX_LANE_BEATS


class WritePortSignature(wiring.Signature):
    """Write port for up to ``elements`` consecutive elements per cycle, or for lanes of one.

    ``enable``
        bit j writes element ``index`` + j.
    ``lanes``
        the lanes of an element that are written, the same for all elements.
    ``index``
        of element 0. It may be negative, or so large that ``index`` + j exceeds the depth, if those
        elements are not enabled: data that start in the middle of a beat keep their position.
    """

    def __init__(self, element_bits: int, depth: int, elements: int, lanes: int) -> None:
        self.lanes = lanes
        super().__init__(
            {
                "enable": Out(elements),
                "lanes": Out(lanes),
                "index": Out(_index_shape(depth, elements)),
                "data": Out(data.ArrayLayout(unsigned(element_bits), elements)),
            }
        )


class ReadPortSignature(wiring.Signature):
    """Read port for ``elements`` consecutive elements from ``index`` on.

    ``data`` is valid in the cycle after ``enable`` and stable while ``enable`` is low; with
    ``cycles`` = 2 it is valid only in the second cycle after. Elements outside of the memory
    (including negative indices) are undefined.
    """

    def __init__(self, element_bits: int, depth: int, elements: int, cycles: int = 1) -> None:
        self.cycles = cycles
        super().__init__(
            {
                "enable": Out(1),
                "index": Out(_index_shape(depth, elements)),
                "data": In(data.ArrayLayout(unsigned(element_bits), elements)),
            }
        )


def _index_shape(depth: int, elements: int) -> Shape:
    return signed(exact_log2(max(depth, elements)) + 1)


class Scratchpad(wiring.Component):
    """A memory of ``depth`` elements with one write port and several read ports.

    Elements are interleaved: element i is in bank i mod N, where N is the largest number of
    elements that a port transfers per cycle, rounded up to a power of two. Each read port has its
    own copy of the memory, so that a block RAM needs one read and one write port. Raises
    `ValueError` if ``depth`` or ``write_elements`` are not powers of two, or ``lanes`` does not
    divide ``element_bits``.

    Timing: read data are valid in the next cycle and stable until the next read. A read in the
    cycle of a write to the same element returns the old value in simulation and is undefined on
    an FPGA::

        cycle          0     1     2
        write.enable   1
        read.index     i     i
        read.data            old   new

    Parameters
    ----------
    element_bits, depth : geometry, depth a power of two
    write_elements, lanes : of the write port; ``lanes`` divides ``element_bits``
    read_elements : elements per read, by port; the ports are ``read0``, ``read1``, …
    """

    def __init__(
        self,
        *,
        element_bits: int,
        depth: int,
        write_elements: int = 1,
        lanes: int = 1,
        read_elements: Sequence[int] = (1,),
    ) -> None:
        if element_bits % lanes:
            raise ValueError(f"{lanes} lanes do not divide an element of {element_bits} bits")
        self._element_bits = element_bits
        self._depth = depth
        self._lanes = lanes
        self._read_elements = tuple(read_elements)
        exact_log2(write_elements)
        self._log_banks = (max(write_elements, *read_elements) - 1).bit_length()
        super().__init__(
            {
                "write": In(WritePortSignature(element_bits, depth, write_elements, lanes)),
                **{
                    f"read{number}": In(ReadPortSignature(element_bits, depth, elements))
                    for number, elements in enumerate(self._read_elements)
                },
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        banks = 1 << self._log_banks
        # At least two rows: a memory of one word has no address.
        row_width = max(1, exact_log2(self._depth) - self._log_banks)

        def row(index: Value, first: Value, bank: int) -> Value:
            """Row of ``bank`` for an access that starts at ``index``."""
            return ((index >> self._log_banks) + (first > bank))[:row_width]

        write_first = _low_bits(self.write.index, self._log_banks)
        enables = _rotate(_padded(list(self.write.enable), banks), write_first)
        datas = _rotate(
            _padded([self.write.data[j] for j in range(len(self.write.enable))], banks), write_first
        )
        write_rows, write_enables = [], []
        for bank in range(banks):
            write_row = Signal(row_width, name=f"write_row_{bank}")
            write_enable = Signal(self._lanes, name=f"write_enable_{bank}")
            m.d.comb += [
                write_row.eq(row(self.write.index, write_first, bank)),
                write_enable.eq(Mux(enables[bank], self.write.lanes, 0)),
            ]
            write_rows.append(write_row)
            write_enables.append(write_enable)

        lane_bits = self._element_bits // self._lanes
        shape = data.ArrayLayout(unsigned(lane_bits), self._lanes)
        for number, elements in enumerate(self._read_elements):
            port = getattr(self, f"read{number}")
            first = _low_bits(port.index, self._log_banks)
            outputs = []
            for bank in range(banks):
                memory = Memory(
                    shape=shape, depth=1 << row_width, init=[], attrs=_NO_COLLISION_CHECK
                )
                m.submodules[f"copy{number}_bank{bank}"] = memory
                writer: WritePort = memory.write_port(granularity=1)
                reader: ReadPort = memory.read_port()
                m.d.comb += [
                    writer.addr.eq(write_rows[bank]),
                    writer.en.eq(write_enables[bank]),
                    Value.cast(writer.data).eq(datas[bank]),
                    # A single-element port reads one bank, so its row does not depend on the
                    # others.
                    reader.addr.eq(
                        row(port.index, first, bank)
                        if elements > 1
                        else (port.index >> self._log_banks)[:row_width]
                    ),
                    reader.en.eq(port.enable),
                ]
                outputs.append(Value.cast(reader.data))
            read_first = Signal(self._log_banks, name=f"read_first_{number}")
            with m.If(port.enable):
                m.d.sync += read_first.eq(first)
            if elements & (elements - 1) == 0:
                ordered = _rotate(outputs, -read_first, banks)
            else:
                # One multiplexer over all banks takes fewer LUTs.
                ordered = [
                    Array(outputs)[(read_first + j)[: self._log_banks]] for j in range(elements)
                ]
            m.d.comb += [port.data[j].eq(ordered[j]) for j in range(elements)]
        return m


# Programs order reads and writes, and units forward what they write, so Yosys need not emulate
# read-old-value collisions of a block RAM.
_NO_COLLISION_CHECK = {"no_rw_check": 1}


def _low_bits(index: Value, width: int) -> Value:
    """The lowest ``width`` bits of the signed ``index``, sign-extended if it is narrower: a memory
    may have more banks, one per element of a beat, than elements.
    """
    low = index[:width].as_unsigned()
    return low if len(low) == width else Cat(low, index[-1].replicate(width - len(low)))


def _padded(values: list[Value], count: int) -> list[Value]:
    """Extend ``values`` to ``count`` items, with copies of the first, or zeros if it is a bit."""
    filler = values[0] if len(Value.cast(values[0])) > 1 else Const(0, 1)
    return [*values, *[filler] * (count - len(values))]


def _rotate(values: list[Value], amount: Value, count: int | None = None) -> list[Value]:
    """Rotate ``values`` upwards: the first one moves to position ``amount``."""
    values = [Value.cast(value) for value in values]
    for stage in range(exact_log2(count or len(values))):
        step = 1 << stage
        values = [
            Mux(amount[stage], values[place - step], values[place]) for place in range(len(values))
        ]
    return values


@dataclass(frozen=True)
class Geometry:
    """How a memory maps to the bus: an element takes ``beats`` beats, or a beat has ``elements``.

    Loads gather ``lane_beats`` beats into a lane before writing it. This leaves most write cycles
    to padding and other writers, and wide lanes, each with its write enable, use block RAM better.
    """

    element_bits: int
    depth: int
    beats: int
    elements: int
    lane_beats: int

    @property
    def lanes(self) -> int:
        return self.beats // self.lane_beats

    def write_port(self) -> WritePortSignature:
        return WritePortSignature(self.element_bits, self.depth, self.elements, self.lanes)

    def read_port(self) -> ReadPortSignature:
        """A port that reads one beat of elements per cycle, or one element if that is wider."""
        return ReadPortSignature(self.element_bits, self.depth, self.elements)

    def scratchpad(self, read_elements: Sequence[int] = (1,)) -> Scratchpad:
        return Scratchpad(
            element_bits=self.element_bits,
            depth=self.depth,
            write_elements=self.elements,
            lanes=self.lanes,
            read_elements=read_elements,
        )


def geometry(config: Config, memory: isa.Memory) -> Geometry:
    """The `Geometry` of a memory of ``config``."""
    tile = config.memory(memory)
    bus_bits = 8 * config.bus_bytes
    beats = max(1, tile.element_bits // bus_bits)
    lane_beats = min(beats, MAX_LANE_BEATS)
    if memory is isa.Memory.ACC and config.out_width < config.acc_width:
        # A beat of ACC_8BIT widens to this many beats, which are written at once.
        lane_beats = min(lane_beats, config.acc_width // config.out_width)
    return Geometry(
        element_bits=tile.element_bits,
        depth=tile.depth,
        beats=beats,
        elements=max(1, bus_bits // tile.element_bits),
        lane_beats=lane_beats,
    )
