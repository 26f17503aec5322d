"""The ALU's copies of the LOOKUP table, one per lane."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.scratchpad import geometry
from amaranth_vta.hw.timing import TABLE_WORDS

# Entries written at once. A LUT can serve as a memory of 64 words of one bit.
_ENTRIES = isa.TABLE_BYTES // TABLE_WORDS
_WORD_WIDTH = 8 * _ENTRIES
# Inputs of a `Table` besides the index, the same in all lanes.
TABLE_PORTS = {
    "write": In(1),
    "place": In(range(TABLE_WORDS)),
    "word": In(_WORD_WIDTH),
    "read": In(1),
}
# Ports through which an ALU lane looks up entries.
LOOKUP_PORTS = {"index": Out(8), "entry": In(signed(8))}


class Table(wiring.Component):
    """``entry = table[index]``, of 256 bytes, written one word at a time.

    Timing: the entry is valid in the cycle after ``read`` and stable until the next read. No read
    may coincide with a ``write``; a read in the next cycle returns the written data.

    Ports
    -----
    write, place, word : entries from 4 · ``place`` on
    read, index, entry : the entry at an index
    """

    def __init__(self) -> None:
        super().__init__({**TABLE_PORTS, "index": In(8), "entry": Out(signed(8))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        shape = data.ArrayLayout(8, _ENTRIES)
        m.submodules.memory = memory = Memory(shape=shape, depth=TABLE_WORDS, init=[])
        writer, reader = memory.write_port(), memory.read_port(domain="comb")
        within = (_ENTRIES - 1).bit_length()
        # One shared address: a single-port memory takes the fewest LUTs.
        address = Signal(range(TABLE_WORDS))
        entry = Signal(signed(8), reset_less=True)
        m.d.comb += [
            address.eq(Mux(self.write, self.place, self.index[within:])),
            writer.addr.eq(address),
            writer.en.eq(self.write),
            Value.cast(writer.data).eq(self.word),
            reader.addr.eq(address),
            self.entry.eq(entry),
        ]
        with m.If(self.read), m.Switch(self.index[:within]):
            for number in range(_ENTRIES):
                with m.Case(number):
                    m.d.sync += entry.eq(reader.data[number])
        return m


class TableWords(wiring.Component):
    """Selects a word of a table from its accumulator element, for the copies.

    Separate from `TableReader`, with the clock of the lanes: while that clock is stopped, a
    simulator evaluates neither the element nor the copies.

    Timing: the word is written in the cycle after ``take``.

    Ports
    -----
    take, taken_place, element : the word of this place of the table is in this element
    write, place, word : of the copies
    """

    def __init__(self, config: Config) -> None:
        self._count = config.table_elements
        super().__init__(
            {
                "take": In(1),
                "taken_place": In(range(TABLE_WORDS)),
                "element": In(config.acc.element_bits),
                "write": Out(1),
                "place": Out(range(TABLE_WORDS)),
                "word": Out(_WORD_WIDTH),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        within = (TABLE_WORDS // self._count - 1).bit_length()
        m.d.sync += self.write.eq(self.take)
        with m.If(self.take):
            m.d.sync += self.place.eq(self.taken_place)
            with m.Switch(self.taken_place[:within]):
                for number in range(1 << within):
                    with m.Case(number):
                        m.d.sync += self.word.eq(self.element.word_select(number, _WORD_WIDTH))
        return m


def written_elements(config: Config) -> data.ArrayLayout:
    """Writes of GEMM and the loader to the accumulators per cycle: one element, and one beat of
    them.
    """
    element = data.StructLayout({"enable": 1, "index": config.acc.index_width})
    return data.ArrayLayout(element, 1 + geometry(config, isa.Memory.ACC).elements)


class TableReader(wiring.Component):
    """Reads tables from the accumulators into the copies of all lanes, and tracks which table they
    hold.

    Timing: while ``wanted``, one word per cycle is read and written to the copies. After
    `TABLE_WORDS` + 1 such cycles the table is ``known``, and a micro-op can be accepted. The table
    is invalidated two cycles after one of its elements is ``written``.

    Ports
    -----
    comes, next_src : a micro-op arrives, whose table starts at this element
    wanted, src : copy the table of the latest micro-op, from this element on; nothing in flight
        writes to it, and no other micro-op arrives
    known : the copies hold that table
    asks, granted, moves_on : request for the accumulator element with the next word, its grant, and
        whether the word after it is in the next element
    take, place : the element that is read contains the word at this place of the table
    written : elements of accumulators that are or will be written; the last one is the ALU's own,
        which invalidates the table in the next cycle
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        index = config.acc.index_width
        others = written_elements(config)
        super().__init__(
            {
                "comes": In(1),
                "next_src": In(index),
                "wanted": In(1),
                "src": In(index),
                "known": Out(1),
                "asks": Out(1),
                "granted": In(1),
                "moves_on": Out(1),
                "take": Out(1),
                "place": Out(range(TABLE_WORDS)),
                "written": In(data.ArrayLayout(others.elem_shape, others.length + 1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        count = self._config.table_elements
        # The low part of a step selects the word within an element, the high part the element.
        within = (TABLE_WORDS // count - 1).bit_length()
        is_valid, table = Signal(), Signal.like(self.src)
        # Determined when the micro-op arrives, since the result has a high fan-out.
        is_same = Signal()
        with m.If(self.comes):
            m.d.sync += is_same.eq(is_valid & (table == self.next_src))
        step = Signal(range(TABLE_WORDS + 1))
        changed, changes_own = Signal(), Signal()
        m.d.comb += [
            self.known.eq(is_same & ~changes_own),
            self.asks.eq(self.wanted & ~self.known & (step != TABLE_WORDS)),
            self.moves_on.eq(self.asks & (step[:within] == TABLE_WORDS // count - 1)),
            self.take.eq(self.asks & self.granted),
            self.place.eq(step),
        ]
        with m.If(self.take):
            m.d.sync += step.eq(step + 1)
        with m.If(self.wanted & ~self.known & (step == TABLE_WORDS)):
            m.d.sync += [step.eq(0), is_valid.eq(1), is_same.eq(1), table.eq(self.src)]

        def is_of_table(element: Any) -> Value:
            distance = (element.index - table)[: len(table)]
            return element.enable & (distance < count)

        *others, own = self.written
        m.d.sync += [
            changed.eq(Cat(is_of_table(element) for element in others).any()),
            changes_own.eq(is_of_table(own)),
        ]
        with m.If(changed | changes_own):
            m.d.sync += [is_valid.eq(0), is_same.eq(0)]
        return m
