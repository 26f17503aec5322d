"""Builds programs from instructions and the elements that each touches: `ProgramBuilder`.

It lays out memory, loads micro-ops, inserts the tokens that order conflicting accesses, and can end
a program with stores that dump the scratchpads to memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Alu, AluOp, Finish, Forward, Gemm, Instruction, Load, Memory, Store
from amaranth_vta.hw.tiles import TileMemory
from amaranth_vta.hw.timing import copied_sources
from amaranth_vta.sim.model.observers.observer import Elements

from .image import ProgramImage
from .ordered_stream import LoadedKernel, MemoryAccess, OrderedStream, kernel_accesses
from .random_fields import X_PADS

# Elements per window. Programs use only windows of each scratchpad: one at each end and, if there
# is room, others across inner borders.
WINDOW = 24
_ROOM_FOR_BORDERS = 4 * WINDOW
# Unit for the sizes of data and result areas, in elements: larger than a window.
_REACH = 64
# Sets of requantization parameters at the beginning of memory.
PARAMETER_SETS = 30


class ProgramBuilder:
    """Builds one program. Its memory, from address ``origin`` on, consists of random data, results
    of stores, scratchpad dumps, micro-ops, and instructions, in this order.

    DRAM addresses in instructions passed to it are relative to the beginning of the memory.
    """

    def __init__(self, config: Config, chance: random.Random, origin: int = 0) -> None:
        self.config = config
        self.chance = chance
        self.origin = origin
        self.data = _random_data(config, chance)
        out_bytes = config.out.element_bytes
        self.results = range(self.data.size, self.data.size + 4 * _REACH * out_bytes)
        self._dumped_at = self.results.stop // out_bytes
        sets = len(self.windows(config.acc)) + self._products
        shown = sets * self._slices * WINDOW
        self._uops_at = -(-(self.results.stop + shown * out_bytes) // 64) * 64
        self._uop_words: list[int] = []
        self.stream = OrderedStream(config, chance)
        # Instructions whose micro-ops have not been overwritten.
        self.kernels: list[LoadedKernel] = []
        # Tables of requantization parameters in the accumulators: the start of each parameter set.
        self.tables: list[range] = []

    def image(self) -> ProgramImage:
        """The program so far, which must end with FINISH."""
        words = np.array(self._uop_words, "<u4").view(np.uint8)
        # Any multiple of the instruction size is a legal address.
        end = self._uops_at + words.size + self.chance.randrange(8) * isa.INSTRUCTION_BYTES
        address = -(-end // isa.INSTRUCTION_BYTES) * isa.INSTRUCTION_BYTES
        instructions = self.stream.instructions()
        size = address + len(instructions) * isa.INSTRUCTION_BYTES
        dram = np.zeros(size, np.uint8)
        dram[: self.data.size] = self.data
        dram[self._uops_at : self._uops_at + words.size] = words
        return ProgramImage.assemble(
            self.config, dram, self.origin + address, instructions, self.origin
        )

    # Elements used.

    def windows(self, memory: TileMemory) -> list[range]:
        """The parts of a scratchpad that a program uses, in ascending order."""
        size, depth = min(memory.depth // 2, WINDOW), memory.depth
        last = range(depth - size, depth)
        return [range(size), *self._around_borders(memory, last.start), last]

    def _around_borders(self, memory: TileMemory, end: int) -> list[range]:
        """Windows below ``end``, each across a border: the middle of the scratchpad, where
        accumulator banks meet, and the first accumulator that has a second copy for the ALU.
        """
        if memory.depth < _ROOM_FOR_BORDERS:
            return []
        borders = [memory.depth // 2]
        if memory.name == self.config.acc.name and self.config.overlap:
            borders.append(memory.depth - copied_sources(self.config))
        half = WINDOW // 2
        return [range(border - half, min(border + half, end)) for border in borders]

    def window(self, memory: TileMemory) -> range:
        return self.chance.choice(self.windows(memory))

    # Loads and stores.

    def fill(self, memory: Memory, elements: range) -> None:
        """Load random data into ``elements`` of a scratchpad."""
        at = self.data_index(self.config.memory(memory), len(elements))
        self.load(Load(memory=memory, sram_base=elements.start, dram_base=at, x_size=len(elements)))

    def data_index(self, memory: TileMemory, elements: int) -> int:
        """A random index, in elements, at which ``elements`` elements of random data begin."""
        return self.chance.randrange(self.data.size // memory.element_bytes - elements + 1)

    def load(self, load: Load) -> None:
        memory = Memory(load.memory)
        target = isa.filled_by(memory).name
        written = np.arange(load.sram_base, load.sram_base + load.elements)
        accesses = [MemoryAccess(target, written, writes=True)]
        if load.elements and load.y_size:
            accesses.append(self._bytes(load, self.config.memory(memory), writes=False))
        self.emit(self._placed(load, self.config.memory(memory)), accesses)

    def store(self, store: Store) -> None:
        read = np.arange(store.sram_base, store.sram_base + store.elements)
        written = self._bytes(store, self.config.out, writes=True)
        placed = self._placed(store, self.config.out)
        self.emit(placed, [MemoryAccess("ACC", read, writes=False), written])

    def forward(self, forward: Forward) -> None:
        rows = forward.source + np.arange(forward.y_size)[:, np.newaxis] * forward.x_stride
        read = (rows + np.arange(forward.x_size)).reshape(-1)
        written = np.arange(forward.sram_base, forward.sram_base + forward.elements)
        accesses = [MemoryAccess("INP", written, writes=True)]
        if read.size:
            accesses.append(MemoryAccess("ACC", read, writes=False))
        self.emit(forward, accesses)

    def _bytes(self, transfer: Load | Store, geometry: TileMemory, writes: bool) -> MemoryAccess:
        size = geometry.element_bytes
        rows = (transfer.dram_base + np.arange(transfer.y_size) * transfer.x_stride) * size
        addresses = rows[:, np.newaxis] + np.arange(transfer.x_size * size)
        return MemoryAccess("DRAM", addresses.reshape(-1), writes)

    def _placed(self, transfer: Load | Store, geometry: TileMemory) -> Load | Store:
        first = self.origin // geometry.element_bytes
        return replace(transfer, dram_base=transfer.dram_base + first)

    # GEMM and ALU.

    def kernel(
        self,
        make: Callable[..., Gemm | Alu],
        uops: dict[str, Elements],
        may_pad: bool = False,
    ) -> None:
        """Load micro-ops to a random position of their scratchpad and emit the instruction that
        uses them.
        """
        chance = self.chance
        count = uops["dst"].size
        window = self.window(self.config.uop)
        pads = {name: chance.choice((0, 0, 1, 2)) if may_pad else 0 for name in X_PADS}
        if count + sum(pads.values()) > len(window):
            pads = dict.fromkeys(X_PADS, 0)
        total = count + sum(pads.values())
        begin = window.start + chance.randrange(len(window) - total + 1)
        layout = isa.instruction_set(self.config).uop_layout
        words = [
            sum(layout[name].insert(int(uops[name][at])) for name in uops) for at in range(count)
        ]
        apart = chance.choice((0, 0, 1, 3))
        at = self._uops_at // 4 + len(self._uop_words)
        for word in words:
            self._uop_words += [word, *[chance.randrange(1 << 32) for _ in range(apart)]]
        if apart and not any(pads.values()):
            rows = {"x_size": 1, "y_size": count, "x_stride": 1 + apart}
        else:
            self._uop_words += words
            at += count * (1 + apart)
            rows = {"x_size": count, "y_size": 1, "x_stride": chance.randrange(1 << 16)}
        self.load(Load(memory=Memory.UOP, sram_base=begin, dram_base=at, **rows, **pads))
        taken = range(begin, begin + total)
        self.kernels = [
            kernel for kernel in self.kernels if not set(kernel.place).intersection(taken)
        ]
        padded = {
            name: np.concatenate(
                (np.zeros(pads["x_pad_0"], int), uops[name], np.zeros(pads["x_pad_1"], int))
            )
            for name in uops
        }
        instruction = make(uop_begin=taken.start, uop_end=taken.stop)
        accesses = kernel_accesses(self.config, instruction, padded)
        self.kernels.append(LoadedKernel(taken, instruction, accesses))
        self.emit(instruction, accesses)

    def emit(self, instruction: Instruction, accesses: Sequence[MemoryAccess]) -> None:
        """Append an instruction; ``accesses`` must cover all elements that it touches."""
        for access in accesses:
            if access.memory == "ACC" and access.writes:
                self.tables = [
                    table
                    for table in self.tables
                    if not ((access.elements >= table.start) & (access.elements < table.stop)).any()
                ]
        self.stream.emit(instruction, accesses)

    # Scratchpad dumps.

    @property
    def _slices(self) -> int:
        """Number of stores that dump all bits of an accumulator."""
        return max(1, self.config.acc_width // self.config.out_width)

    @property
    def _products(self) -> int:
        """Number of window pairs that `dump_products` multiplies."""
        return max(len(self.windows(memory)) for memory in (self.config.inp, self.config.wgt))

    def dump_low_bits(self) -> None:
        """Stores the low bits of the accumulators in all windows."""
        for window in self.windows(self.config.acc):
            self._dump(window)

    def dump_accumulators(self) -> None:
        """Store all bits of the accumulators in all windows; this shifts the values out."""
        for window in self.windows(self.config.acc):
            self._dump_all_bits(window)

    def dump_products(self) -> None:
        """Store products that depend on every input and every weight of all windows."""
        config = self.config
        windows = [self.windows(memory) for memory in (config.acc, config.inp, config.wgt)]
        for number in range(self._products):
            dst, src, wgt = (several[number % len(several)] for several in windows)
            size = min(len(dst), len(src), len(wgt))
            dst, src, wgt = dst[:size], src[:size], wgt[:size]
            self._line(Gemm, dst, src, wgt, reset=1)
            product = replace(self.kernels[-1].instruction, reset=0)
            first = {"dst": dst[:1], "src": src[:1], "wgt": wgt[:1]}
            uop = {name: np.array(elements) for name, elements in first.items()}
            self.emit(product, kernel_accesses(config, product, uop))
            self._dump_all_bits(dst)

    def _dump_all_bits(self, window: range) -> None:
        self._dump(window)
        for more in range(self._slices - 1):
            if more:
                self.emit(self.kernels[-1].instruction, self.kernels[-1].accesses)
            else:
                amount = self.config.out_width
                self._line(Alu, window, alu_opcode=AluOp.SHR, use_immediate=1, immediate=amount)
            self._dump(window)

    def _line(
        self,
        kind: type[Gemm] | type[Alu],
        dst: range,
        src: range = range(0),
        wgt: range = range(0),
        **fields: int,
    ) -> None:
        """Emit an instruction with one micro-op that iterates over the ranges in parallel."""
        operands = {"dst": dst, "src": src, "wgt": wgt}
        factors = {
            f"{name}_factor_in": 1
            for name, elements in operands.items()
            if elements and len(dst) > 1
        }
        self.kernel(
            lambda **place: kind(iter_in=len(dst), **factors, **fields, **place),
            {name: np.array([elements.start]) for name, elements in operands.items()},
        )

    def _dump(self, elements: range) -> None:
        at, self._dumped_at = self._dumped_at, self._dumped_at + len(elements)
        self.store(Store(sram_base=elements.start, dram_base=at, x_size=len(elements)))


def probe(
    config: Config, defined: Mapping[Memory, npt.NDArray[np.bool_]], seed: int, origin: int = 0
) -> ProgramImage:
    """A program that dumps the scratchpads after another program has run: stores values that
    depend on every input, weight and accumulator in the windows of `ProgramBuilder`.

    ``defined`` says, per element of INP, WGT and ACC, whether all devices must hold the same value;
    the other elements are overwritten by loads first.
    """
    builder = ProgramBuilder(config, random.Random(f"probe:{seed}:{config}"), origin)
    for memory, elements in defined.items():
        for window in builder.windows(config.memory(memory)):
            holes = np.flatnonzero(~elements[window.start : window.stop])
            if holes.size:
                first, last = window.start + int(holes[0]), window.start + int(holes[-1])
                builder.fill(memory, range(first, last + 1))
    builder.dump_accumulators()
    builder.dump_products()
    builder.emit(Finish(), [])
    return builder.image()


def _random_data(config: Config, chance: random.Random) -> npt.NDArray[np.uint8]:
    """Random tiles. A quarter of them hold only the lowest scalar; the last ones are small
    accumulators. With REQUANTIZE the first ones are `PARAMETER_SETS` sets of its parameters.
    """
    memories = (config.inp, config.wgt, config.acc)
    size = max(1 << 16, 2 * _REACH * max(memory.element_bytes for memory in memories))
    data = np.frombuffer(chance.randbytes(size), np.uint8).copy()
    # Sums are largest where all factors are the lowest scalar.
    data[size // 4 : size // 2] = 0x80 if config.inp_width == 8 else 0x88
    # Small accumulators serve as shift amounts.
    small = np.array([chance.randint(-40, 40) for _ in range(size // 16)], "<i4")
    data[-4 * small.size :] = small.view(np.uint8)
    if config.requantize:
        lanes = config.acc.rows * config.acc.columns
        sets = [_parameters(chance) for _ in range(PARAMETER_SETS * lanes)]
        table = np.array(sets, "<u4").reshape(PARAMETER_SETS, lanes, -1).transpose(0, 2, 1)
        data[: table.nbytes] = np.ascontiguousarray(table).view(np.uint8).reshape(-1)
    return data


def _parameters(chance: random.Random) -> tuple[int, ...]:
    """Bias, scale in two parts, and bounds of one lane's requantization, as bits."""
    bias = chance.choice((0, chance.randint(-3000, 3000), chance.randrange(1 << 32)))
    # Mostly from 2^-24 to 2^0, so that few results are all zero or out of bounds.
    mantissa = chance.choice((0, 0, 1, (1 << 23) - 1, *[chance.randrange(1 << 23)] * 4))
    mantissa |= 1 << 23
    scale = chance.choice((0, mantissa << 25, *[mantissa << 20 >> chance.randrange(24)] * 8))
    low, high = sorted(chance.choice((-128, 127, chance.randint(-128, 127))) for _ in range(2))
    zero_point = chance.choice((0, -128, 127, chance.randint(-128, 127)))
    # The top byte has flags, the shift of a second rounding and an ignored bit, all random.
    bounds = sum(byte % 256 << 8 * at for at, byte in enumerate((zero_point, low, high)))
    bounds |= chance.randrange(256) << isa.WIDE_BIT
    upper = scale >> 32 | chance.randrange(1 << 15) << 17
    return bias % (1 << 32), scale % (1 << 32), upper, bounds
