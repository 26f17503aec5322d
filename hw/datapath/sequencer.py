"""The sequencer: unrolls the loops of a GEMM or ALU instruction into one micro-op per cycle."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from amaranth.hdl import Cat, Module, Mux, ShapeLike, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.interfaces import uop_layout

Operands = dict[str, int]


class LoopCommand(data.StructLayout):
    """Loops of one instruction.

    ``factors`` hold the two loop factors of each operand. ``sources_used`` tells whether operands
    other than ``dst`` are read; only then are their indices checked. ``context`` accompanies every
    micro-op. ``kind`` is one of ``kinds``.
    """

    def __init__(
        self, config: Config, operands: Operands, context: ShapeLike, kinds: int = 1
    ) -> None:
        width = config.uop.index_width
        super().__init__(
            {
                "kind": range(kinds),
                "uop_begin": unsigned(width),
                "uop_end": unsigned(width + 1),
                "iter_out": unsigned(isa.ITERATION_WIDTH),
                "iter_in": unsigned(isa.ITERATION_WIDTH),
                "factors": data.StructLayout(
                    {
                        name: data.StructLayout({"outer": unsigned(bits), "inner": unsigned(bits)})
                        for name, bits in operands.items()
                    }
                ),
                "sources_used": 1,
                "context": context,
            }
        )


class IndexedUop(data.StructLayout):
    """A micro-op with its loop offsets added, of a command of ``kind``.

    ``enable`` is 0 for the single item of an instruction without micro-ops; ``last`` marks the last
    item of an instruction; ``error``: an index exceeds its scratchpad's depth, so neither this item
    nor any later one may have an effect.
    """

    def __init__(self, operands: Operands, context: ShapeLike, kinds: int = 1) -> None:
        super().__init__(
            {
                "kind": range(kinds),
                "indices": data.StructLayout(
                    {name: unsigned(bits) for name, bits in operands.items()}
                ),
                "enable": 1,
                "last": 1,
                "error": 1,
                "context": context,
            }
        )


class Sequencer(wiring.Component):
    """Unrolls loop commands into micro-ops with the final index of each operand.

    Timing: the first item of a command appears three cycles after the command is accepted, then one
    per cycle; the first item of a waiting command follows the last one of its predecessor without a
    gap. A micro-op that serves consecutive items is read once; an item whose micro-op cannot be
    read waits.

    Parameters
    ----------
    operands : index width of each operand, by micro-op field, including ``dst``; or a sequence with
        one such mapping per kind of command, where a source that a kind lacks is ignored
    context : shape of the payload that accompanies a command

    Ports
    -----
    i : `LoopCommand`
    o : `IndexedUop`
    uop_wanted : the loops need a micro-op that has not been read, whether or not they advance in
        this cycle; registered
    uop_enable, uop_index, uop_bits : read port of the micro-op buffer; the micro-op is valid
        only in the cycle after ``uop_enable``
    uop_denied : the port is not available in this cycle
    """

    def __init__(
        self,
        config: Config,
        operands: Operands | Sequence[Operands],
        context: ShapeLike,
    ) -> None:
        self._config = config
        self._kinds = [operands] if isinstance(operands, dict) else list(operands)
        self._operands = widest(self._kinds)
        layout = self._operands, context, len(self._kinds)
        super().__init__(
            {
                "i": In(stream.Signature(LoopCommand(config, *layout))),
                "o": Out(stream.Signature(IndexedUop(*layout))),
                "uop_wanted": Out(1),
                "uop_enable": Out(1),
                "uop_index": Out(config.uop.index_width),
                "uop_bits": In(isa.UOP_WIDTH),
                "uop_denied": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        # ``moves``: the output and the micro-op behind it advance. ``advance``: the loops do too,
        # since they get a micro-op.
        moves, advance = Signal(), Signal()
        m.d.comb += moves.eq(~self.o.valid | self.o.ready)
        at = self._count_loops(m, moves, advance)
        word = self._receive_uop(m)

        arrived = Signal()
        arrived_item = Signal(self.o.payload.shape())
        arrived_offset = Signal(at.offset.shape())
        arrived_sources_used = Signal()
        with m.If(moves):
            m.d.sync += arrived.eq(at.active & advance)
        with m.If(advance):
            m.d.sync += [
                arrived_offset.eq(at.offset),
                arrived_sources_used.eq(at.command.sources_used),
                arrived_item.kind.eq(at.command.kind),
                arrived_item.enable.eq(~at.empty),
                arrived_item.last.eq(at.last),
                arrived_item.error.eq(~at.empty & at.uop[-1]),
                arrived_item.context.eq(at.command.context),
            ]

        # The indices of the item that arrived.
        uop_fields = data.View(uop_layout(self._config), word)
        # Errors known before the micro-op arrives, and errors of its index sums.
        early, late = [arrived_item.error], []
        indices = {}
        for name, bits in self._operands.items():
            index = Signal(range((1 << len(uop_fields[name])) + (1 << bits)), name=f"{name}_index")
            m.d.comb += index.eq(uop_fields[name] + arrived_offset[name][:bits])
            checked, beyond = (Signal(name=f"{name}_{verb}") for verb in ("checked", "beyond"))
            with m.Switch(arrived_item.kind):
                for kind, widths in enumerate(self._kinds):
                    if name in widths:
                        with m.Case(kind):
                            m.d.comb += [
                                checked.eq(1 if name == "dst" else arrived_sources_used),
                                beyond.eq(index[widths[name] :] != 0),
                            ]
            early.append(checked & arrived_offset[name][bits])
            late.append(checked & beyond)
            indices[name] = index
        item, late_error = Signal.like(arrived_item), Signal()
        with m.If(moves):
            m.d.sync += [
                self.o.valid.eq(arrived),
                item.eq(arrived_item),
                item.error.eq(arrived_item.enable & Cat(early).any()),
                late_error.eq(arrived_item.enable & Cat(late).any()),
                *(item.indices[name].eq(index) for name, index in indices.items()),
            ]
        m.d.comb += [
            self.o.payload.eq(item),
            self.o.payload.error.eq(item.error | late_error),
        ]
        return m

    def _count_loops(self, m: Module, moves: Signal, advance: Signal) -> "_Counters":
        """Add the loop counters, and read the micro-op that they select.

        An operand's offset is one bit wider than its index: once it exceeds the depth it remains
        there, since factors are never negative.
        """
        offset_layout = data.StructLayout(
            {name: unsigned(bits + 1) for name, bits in self._operands.items()}
        )
        command = Signal(self.i.payload.shape())
        active, empty = Signal(), Signal()
        uop = Signal(self._config.uop.index_width + 1)
        # Kept, since the end of a command arrives late in the cycle even without a preceding adder.
        final_uop = Signal.like(uop)
        inner_left = Signal(isa.ITERATION_WIDTH)
        outer_left = Signal(isa.ITERATION_WIDTH)
        outer_offset, offset = Signal(offset_layout), Signal(offset_layout)

        last_uop, last_inner, last_outer, last = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            last_uop.eq(uop == final_uop),
            last_inner.eq(inner_left == 1),
            last_outer.eq(outer_left == 1),
            last.eq(empty | (last_uop & last_inner & last_outer)),
        ]
        with m.If(advance & active):
            m.d.sync += uop.eq(uop + 1)
            with m.If(last_uop):
                m.d.sync += [uop.eq(command.uop_begin), inner_left.eq(inner_left - 1)]
                for name, bits in self._operands.items():
                    factor = command.factors[name].inner
                    m.d.sync += offset[name].eq(_add_sticky(m, offset[name], factor, bits))
                with m.If(last_inner):
                    m.d.sync += [inner_left.eq(command.iter_in), outer_left.eq(outer_left - 1)]
                    for name, bits in self._operands.items():
                        factor = command.factors[name].outer
                        following = _add_sticky(m, outer_offset[name], factor, bits)
                        m.d.sync += [outer_offset[name].eq(following), offset[name].eq(following)]
        m.d.comb += self.i.ready.eq(~active | (advance & last))
        # Without ``i.valid``, which arrives late in the cycle.
        with m.If(self.i.ready):
            taken = self.i.payload
            m.d.sync += [
                command.eq(taken),
                active.eq(self.i.valid),
                empty.eq(
                    (taken.uop_begin >= taken.uop_end)
                    | (taken.iter_out == 0)
                    | (taken.iter_in == 0)
                ),
                uop.eq(taken.uop_begin),
                final_uop.eq(taken.uop_end - 1),
                inner_left.eq(taken.iter_in),
                outer_left.eq(taken.iter_out),
                outer_offset.eq(0),
                offset.eq(0),
            ]
        # The micro-op is read unless the previous item had the same one.
        needed, known = active & ~empty, Signal()
        wanted = self.uop_wanted
        m.d.comb += [
            wanted.eq(needed & ~known),
            self.uop_enable.eq(wanted & moves & ~self.uop_denied),
            self.uop_index.eq(uop),
            advance.eq(moves & ~(wanted & self.uop_denied)),
        ]
        with m.If(needed & advance):
            m.d.sync += known.eq(last_uop & (command.uop_begin == final_uop) & ~last)
        return _Counters(command, active, empty, uop, last, offset)

    def _receive_uop(self, m: Module) -> Signal:
        """The micro-op that arrives in this cycle, or else the previous one, which is kept."""
        fresh, kept = Signal(), Signal(isa.UOP_WIDTH)
        word = Signal(isa.UOP_WIDTH)
        m.d.sync += fresh.eq(self.uop_enable)
        m.d.comb += word.eq(Mux(fresh, self.uop_bits, kept))
        with m.If(fresh):
            m.d.sync += kept.eq(self.uop_bits)
        return word


def widest(kinds: Sequence[Operands]) -> Operands:
    """Index widths that suffice for the operands of each of ``kinds``."""
    names = {name: None for operands in kinds for name in operands}
    return {name: max(operands.get(name, 0) for operands in kinds) for name in names}


class _Counters(NamedTuple):
    """State of the loops: the next item, ``uop`` with ``offset``; ``last`` marks the last item."""

    command: Any
    active: Signal
    empty: Signal
    uop: Signal
    last: Signal
    offset: Any


def _add_sticky(m: Module, offset: Signal, factor: Signal, bits: int) -> Signal:
    total = Signal(bits + 1)
    m.d.comb += total.eq(offset[:bits] + factor)
    result = Signal(bits + 1)
    m.d.comb += result.eq(total | (offset & (1 << bits)))
    return result
