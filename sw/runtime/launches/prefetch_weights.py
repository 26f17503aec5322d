"""Prefetches weights during preceding layers, in idle time of the bus.

Load executes its instructions in order, so after the last loads of a layer it can prefetch only
while that layer's last tile is computed. The first weight loads of later layers, which depend on
nothing, are therefore moved further ahead, in pieces between other loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Memory, Module
from amaranth_vta.sw.runtime.instruction_words import (
    element_bytes,
    field_of,
    instruction_words,
    memories_of,
)
from amaranth_vta.sw.runtime.memory import Buffer
from amaranth_vta.sw.runtime.stream import NO_OPERATION_BITS, POP, PUSH, Stream

from .accesses import OPERANDS, WEIGHTS, Interval, elements_of, overlap

# Maximum bus words of a piece, which bounds the delay of the next load.
_PIECE_WORDS = 128
# Number of preceding layers considered.
_LAYERS_AHEAD = 8
# Fraction of GEMM's cycles in which the bus can transfer a word.
_BUS_SHARE = 0.9
_POP_FROM_COMPUTE = POP[Module.COMPUTE, Module.LOAD]
_PUSH_TO_COMPUTE = PUSH[Module.LOAD, Module.COMPUTE]


@dataclass
class _JoinedLayer:
    """A layer's ``stream`` and the changes to it.

    ``loads`` are the numbers of its load instructions. ``slack`` (float64, one item per
    instruction) is the number of words that the bus can transfer during its GEMM cycles, less the
    words that the instruction transfers. ``weights`` is its interval of the WGT scratchpad, and
    ``stored`` are the buffers that it stores to. ``removed`` instructions are dropped, and
    ``added`` ones are inserted after the load that they are listed under.
    """

    stream: Stream
    loads: list[int]
    slack: npt.NDArray[np.float64]
    weights: Interval
    stored: set[Buffer]
    removed: set[int] = field(default_factory=set)
    added: dict[int, list[tuple[int, Buffer]]] = field(default_factory=dict)


def prefetch_weights(config: Config, streams: Sequence[Stream]) -> list[Stream]:
    """``streams`` of consecutive layers, with first weight loads of later layers moved into each
    where scratchpad and bus have room.
    """
    layers = [_layer(config, stream) for stream in streams]
    stored = set[Buffer]().union(*(layer.stored for layer in layers))
    for number, layer in enumerate(layers):
        pieces = list(_pieces(config, layer, stored))
        _move_into(layer, _layers_with_slack(layer, layers[:number], pieces), pieces)
    return [_rewritten(layer) for layer in layers]


def _layer(config: Config, stream: Stream) -> _JoinedLayer:
    words, layouts = instruction_words(stream.words), isa.instruction_set(config).layouts
    load, gemm = layouts[isa.Opcode.LOAD], layouts[isa.Opcode.GEMM]
    opcodes, memories = field_of(words, load["opcode"]), memories_of(words, load, config.extensions)
    is_load, is_store = opcodes == isa.Opcode.LOAD, opcodes == isa.Opcode.STORE
    moved = field_of(words, load["x_size"]) * field_of(words, load["y_size"])
    words_each = element_bytes(config) / config.bus_bytes
    products = field_of(words, gemm["uop_end"]) - field_of(words, gemm["uop_begin"])
    products *= field_of(words, gemm["iter_out"]) * field_of(words, gemm["iter_in"])
    # All instructions that multiply have GEMM's loops at the same bits.
    slack = np.where(np.isin(opcodes, isa.MULTIPLYING), products * _BUS_SHARE, 0.0)
    on_bus = is_load | is_store & (memories == Memory.OUT)
    slack -= np.where(on_bus, moved * words_each[memories], 0.0)
    weights = is_load & np.isin(memories, WEIGHTS)
    begins = field_of(words, load["sram_base"])[weights]
    ends = begins + elements_of(words[weights], load)
    return _JoinedLayer(
        stream,
        np.flatnonzero(is_load & np.isin(memories, OPERANDS)).tolist(),
        slack,
        (int(begins.min()), int(ends.max())) if begins.size else (0, 0),
        {buffer.reached for number, buffer in stream.relocations if is_store[number]},
    )


@dataclass(frozen=True)
class _WeightPiece:
    """A part of weight load ``number``; it takes ``words`` on the bus."""

    number: int
    bits: int
    buffer: Buffer
    words: float


def _pieces(config: Config, layer: _JoinedLayer, stored: set[Buffer]) -> Iterator[_WeightPiece]:
    """Weight loads that wait for nothing, in pieces. Loads of buffers in ``stored``, which layers
    write, are excluded.
    """
    instructions, buffers = isa.instruction_set(config), dict(layer.stream.relocations)
    for number in layer.loads:
        bits = layer.stream.words[number]
        if bits & _POP_FROM_COMPUTE:
            return
        load = instructions.decode(bits)
        assert isinstance(load, isa.Load)
        padded = load.x_pad_0 | load.x_pad_1 | load.y_pad_0 | load.y_pad_1
        if load.memory not in WEIGHTS or buffers[number].reached in stored or padded:
            continue
        words_each = config.memory(Memory(load.memory)).element_bytes / config.bus_bytes
        most = max(int(_PIECE_WORDS / words_each), 1)
        for part in _parts(replace(load, push_next=0), most):
            words = part.x_size * part.y_size * words_each
            yield _WeightPiece(number, instructions.encode(part), buffers[number], words)


def _parts(load: isa.Load, most: int) -> Iterator[isa.Load]:
    """``load`` split into loads of at most ``most`` elements."""
    columns = min(load.x_size, most)
    rows = most // columns if columns else 1
    for y in range(0, load.y_size, rows):
        for x in range(0, load.x_size, columns):
            yield replace(
                load,
                sram_base=load.sram_base + y * load.x_size + x,
                dram_base=load.dram_base + y * load.x_stride + x,
                y_size=min(rows, load.y_size - y),
                x_size=min(columns, load.x_size - x),
            )


def _layers_with_slack(
    layer: _JoinedLayer, before: Sequence[_JoinedLayer], pieces: Sequence[_WeightPiece]
) -> Sequence[_JoinedLayer]:
    """The last layers of ``before`` with enough slack for ``pieces``, as far as their weights do
    not overlap with ``layer``'s in the scratchpad.
    """
    needed, count = sum(piece.words for piece in pieces), 0
    for other in reversed(before[-_LAYERS_AHEAD:]):
        if needed <= 0 or overlap(other.weights, layer.weights):
            break
        needed -= float(other.slack.sum())
        count += 1
    return before[len(before) - count :]


def _move_into(
    layer: _JoinedLayer, before: Sequence[_JoinedLayer], pieces: Sequence[_WeightPiece]
) -> None:
    """Move ``pieces`` to the layers ``before``, each as late as the slack allows for it and its
    successors. Loads that do not fit completely stay.
    """
    ends = np.cumsum([len(other.loads) for other in before])
    if not ends.size or not ends[-1] or not pieces:
        return
    firsts = np.cumsum([0, *(len(other.slack) for other in before)])
    places = np.concatenate(
        [
            np.array(other.loads, np.int64) + first
            for other, first in zip(before, firsts, strict=False)
        ]
    )
    # Per place, the slack from there to the end; then its maximum over that place and all later
    # ones.
    left = np.concatenate([other.slack for other in before])[::-1].cumsum()[::-1][places]
    left = np.maximum.accumulate(left[::-1])[::-1]
    words = np.array([piece.words for piece in pieces])
    fitting = int(np.searchsorted(words.cumsum(), left[0], side="right"))
    stays = pieces[fitting].number if fitting < len(pieces) else None
    needed = words[:fitting][::-1].cumsum()[::-1]
    chosen = np.searchsorted(-left, -needed, side="right") - 1
    for piece, place in zip(pieces, chosen.tolist(), strict=False):
        if piece.number == stays:
            break
        owner = int(np.searchsorted(ends, place, side="right"))
        other, number = before[owner], int(places[place] - firsts[owner])
        other.added.setdefault(number, []).append((piece.bits, piece.buffer))
        other.slack[number] -= piece.words
        layer.slack[piece.number] = 0.0
        layer.removed.add(piece.number)


def _rewritten(layer: _JoinedLayer) -> Stream:
    """The stream with removed loads dropped and added ones inserted."""
    if not layer.added and not layer.removed:
        return layer.stream
    stream, begin = Stream(), 0
    latest: int | None = None
    for number in layer.loads:
        if number in layer.removed:
            stream.extend(layer.stream, begin, number)
            begin = number + 1
            if layer.stream.words[number] & _PUSH_TO_COMPUTE:
                latest = _push(stream, latest)
        else:
            latest = len(stream.words) + number - begin
        if number in layer.added:
            stream.extend(layer.stream, begin, number + 1)
            begin = number + 1
            for bits, buffer in layer.added[number]:
                stream.append_before_pops(Module.LOAD, bits, buffer)
    stream.extend(layer.stream, begin)
    stream.outstanding, stream.padding = layer.stream.outstanding, layer.stream.padding
    return stream


def _push(stream: Stream, latest: int | None) -> int:
    """Push the token of a dropped load after the ``latest`` load; returns the number of the
    instruction that pushes it.
    """
    if latest is None or stream.words[latest] & _PUSH_TO_COMPUTE:
        latest = len(stream.words)
        stream.append_before_pops(Module.LOAD, NO_OPERATION_BITS[Module.LOAD])
    stream.words[latest] |= _PUSH_TO_COMPUTE
    return latest
