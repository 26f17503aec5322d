"""Random programs for any configuration, each with what must come of it.

`random_program` makes legal programs that give the same result in every order, since a token
orders whatever two modules share: the generator follows what each module knows of the others and
adds a token, or an instruction that only passes one on, where that is not enough. Loads, work and
stores go on in both halves of every scratchpad at once; tokens pile up; and the corners of the
instruction set are visited: empty ranges and rows, indices and addresses that are not read, row
overlaps, padding of every memory, shifts by any amount, micro-ops that need the one before. What
extensions the configuration has is used; what is claimed to be independent is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config, TileMemory
from amaranth_vta.hw.isa import Alu, AluOp, Finish, Gemm, Instruction, Load, Memory, Multiply, Store
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.model.observers.observers import Elements
from amaranth_vta.sim.model.observers.ordered_stream import TOKENS, Access, OrderedStream

from .image import ProgramImage

# Elements at each end of a scratchpad that a program uses.
_WINDOW = 24
# The furthest that a transfer within a window reaches, in elements, with room to spare.
_REACH = 64
# Sets of requantization parameters at the beginning of memory.
_PARAMETER_SETS = 30


def random_program(
    config: Config, seed: int, length: int = 60, deep_tokens: bool = False
) -> ProgramImage:
    """A legal program of ``length`` instructions that do something, and more that pass tokens on.

    ``expected`` is what the functional model makes of it. With ``deep_tokens`` some queues come to
    hold hundreds of tokens, which takes as many instructions.
    """
    image = _Generator(config, random.Random(f"{seed}:{config}")).program(length, deep_tokens)
    device = FunctionalDevice(config, image.dram.size)
    device.write(0, image.dram)
    result = device.run(image.insn_addr, image.insn_count)
    assert result.fault is None, result.fault
    return replace(image, expected=device.read(0, image.dram.size))


class _Generator:
    """Makes one program. Its memory holds, in this order: random data; what stores write; what the
    end of the program stores; micro-ops; the instructions."""

    def __init__(self, config: Config, chance: random.Random) -> None:
        self.config = config
        self.chance = chance
        self.data = self._make_data()
        out_bytes = config.out.element_bytes
        self.results = range(self.data.size, self.data.size + 4 * _REACH * out_bytes)
        self.final = self.results.stop
        self.uops_at = -(-(self.final + 2 * _WINDOW * out_bytes) // 64) * 64
        self.uop_words: list[int] = []
        self.stream = OrderedStream(config, chance)
        # Instructions whose micro-ops are still where they were loaded.
        self.kernels: list[_Kernel] = []
        # Where each set of a table of requantization parameters begins.
        self.tables: list[range] = []

    def program(self, length: int, deep_tokens: bool) -> ProgramImage:
        for memory in (Memory.INP, Memory.WGT, Memory.ACC):
            for half in (0, 1):
                self._fill(memory, half)
        makers: list[tuple[Callable[[], None], int]] = [
            (lambda: self._load(Memory.INP), 4),
            (lambda: self._load(Memory.WGT), 4),
            (lambda: self._load(Memory.ACC), 1),
            (lambda: self._load(Memory.ACC_8BIT), 1),
            (self._gemm, 5),
            (self._alu, 5),
            (self._repeat, 3),
            (self._store, 4),
            (self._do_nothing, 1),
        ]
        if self.config.requantize:
            makers.append((self._requantize, 4))
        if self.config.pad_value:
            makers.append((self._set_padding, 2))
        pile_up = sorted(self.chance.sample(range(length), min(length, 2))) if deep_tokens else []
        for step in range(length):
            if step in pile_up:
                self._pile_up_tokens()
            make = self.chance.choices(*zip(*makers, strict=True))[0]
            make()
        for half in (0, 1):
            window = self._window(self.config.acc, half)
            at = self.final // self.config.out.element_bytes + half * _WINDOW
            self._emit_store(Store(sram_base=window.start, dram_base=at, x_size=len(window)))
        self._emit(Finish(), [])
        return self._image()

    def _make_data(self) -> npt.NDArray[np.uint8]:
        memories = (self.config.inp, self.config.wgt, self.config.acc)
        size = max(1 << 16, 2 * _REACH * max(memory.element_bytes for memory in memories))
        data = np.frombuffer(self.chance.randbytes(size), np.uint8).copy()
        # Some small accumulators too: amounts to shift by.
        small = np.array([self.chance.randint(-40, 40) for _ in range(size // 16)], "<i4")
        data[-4 * small.size :] = small.view(np.uint8)
        if self.config.requantize:
            lanes = self.config.acc.rows * self.config.acc.columns
            sets = [self._parameters() for _ in range(_PARAMETER_SETS * lanes)]
            table = np.array(sets, "<u4").reshape(_PARAMETER_SETS, lanes, -1).transpose(0, 2, 1)
            data[: table.nbytes] = np.ascontiguousarray(table).view(np.uint8).reshape(-1)
        return data

    def _parameters(self) -> tuple[int, ...]:
        """Bias, scale in two parts, and bounds of one lane's requantization, as bits."""
        chance = self.chance
        bias = chance.choice((0, chance.randint(-3000, 3000), chance.randrange(1 << 32)))
        # From 2^-24 to 2^0 mostly, which leaves something of most accumulators.
        mantissa = chance.choice((0, 0, 1, (1 << 23) - 1, *[chance.randrange(1 << 23)] * 4))
        mantissa |= 1 << 23
        scale = chance.choice((0, mantissa << 25, *[mantissa << 20 >> chance.randrange(24)] * 8))
        low, high = sorted(chance.choice((-128, 127, chance.randint(-128, 127))) for _ in range(2))
        zero_point = chance.choice((0, -128, 127, chance.randint(-128, 127)))
        # With the flag of wide sums, and bits that say nothing.
        bounds = sum(byte % 256 << 8 * at for at, byte in enumerate((zero_point, low, high)))
        bounds |= chance.randrange(256) << isa.WIDE_BIT
        upper = scale >> 32 | chance.randrange(1 << 15) << 17
        return bias % (1 << 32), scale % (1 << 32), upper, bounds

    def _image(self) -> ProgramImage:
        words = np.array(self.uop_words, "<u4").view(np.uint8)
        # Any multiple of an instruction will do for an address.
        end = self.uops_at + words.size + self.chance.randrange(8) * isa.INSTRUCTION_BYTES
        address = -(-end // isa.INSTRUCTION_BYTES) * isa.INSTRUCTION_BYTES
        instructions = self.stream.instructions()
        size = address + len(instructions) * isa.INSTRUCTION_BYTES
        dram = np.zeros(size, np.uint8)
        dram[: self.data.size] = self.data
        dram[self.uops_at : self.uops_at + words.size] = words
        return ProgramImage.assemble(self.config, dram, address, instructions)

    # Which elements.

    def _window(self, memory: TileMemory, half: int) -> range:
        size = min(memory.depth // 2, _WINDOW)
        return range(memory.depth - size, memory.depth) if half else range(size)

    def _half(self) -> int:
        return self.chance.randrange(2)

    # Loads and stores.

    def _fill(self, memory: Memory, half: int) -> None:
        scratchpad = self.config.memory(memory)
        window = self._window(scratchpad, half)
        at = self._data_index(scratchpad, len(window))
        self._emit_load(
            Load(memory=memory, sram_base=window.start, dram_base=at, x_size=len(window))
        )

    def _load(self, memory: Memory) -> None:
        target = self.config.acc if memory is Memory.ACC_8BIT else self.config.memory(memory)
        window = self._window(target, self._half())
        fields = self._rows(len(window), padded=True)
        load = Load(memory=memory, **fields)
        geometry = self.config.memory(memory)
        reach = max(load.y_size - 1, 0) * load.x_stride + load.x_size
        if self.chance.random() < 0.2 and memory is not Memory.ACC:
            # What stores wrote, if an element of this memory is small enough for it.
            size = geometry.element_bytes
            first, last = -(-self.results.start // size), self.results.stop // size - reach
            at = self.chance.randrange(first, last) if last > first else 0
        else:
            at = self._data_index(geometry, reach)
        base = window.start + self.chance.randrange(len(window) - load.elements + 1)
        self._emit_load(replace(load, sram_base=base, dram_base=at))

    def _set_padding(self) -> None:
        chance = self.chance
        value = chance.choice(
            (0, -1, -128, 127, chance.randint(-128, 127), chance.randrange(-(1 << 31), 1 << 31))
        )
        self._emit(isa.set_padding(chance.choice(list(isa.Padding)), value), [])

    def _store(self) -> None:
        window = self._window(self.config.acc, self._half())
        store = Store(**self._rows(len(window), padded=False))
        size = self.config.out.element_bytes
        reach = (store.y_size - 1) * store.x_stride + store.x_size
        first, last = self.results.start // size, self.results.stop // size - reach
        self._emit_store(
            replace(
                store,
                sram_base=window.start + self.chance.randrange(len(window) - store.elements + 1),
                dram_base=self.chance.randrange(first, last),
            )
        )

    def _rows(self, elements: int, padded: bool) -> dict[str, int]:
        """Sizes, stride and padding of a transfer of 1 to ``elements`` elements."""
        chance = self.chance
        pads = ("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1")
        while True:
            fields = {
                "x_size": chance.choice((1, 1, 2, 3, 4, 5, 8, chance.randint(1, elements))),
                "y_size": chance.choice((1, 1, 1, 2, 3, 5)),
            }
            fields["x_stride"] = chance.choice(
                (fields["x_size"], fields["x_size"] + chance.randrange(4), chance.randrange(4))
            )
            if padded and chance.random() < 0.4:
                fields |= {pad: chance.choice((0, 1, 2, chance.randrange(16))) for pad in pads}
                fields["y_size"] = chance.choice((0, fields["y_size"], fields["y_size"]))
            if 0 < Load(memory=Memory.INP, **fields).elements <= elements:
                return fields

    def _data_index(self, memory: TileMemory, elements: int) -> int:
        return self.chance.randrange(self.data.size // memory.element_bytes - elements + 1)

    def _emit_load(self, load: Load) -> None:
        memory = Memory(load.memory)
        target = "ACC" if memory is Memory.ACC_8BIT else self.config.memory(memory).name
        written = np.arange(load.sram_base, load.sram_base + load.elements)
        accesses = [Access(target, written, writes=True)]
        if load.elements and load.y_size:
            accesses.append(self._bytes(load, self.config.memory(memory), writes=False))
        self._emit(load, accesses)

    def _emit_store(self, store: Store) -> None:
        read = np.arange(store.sram_base, store.sram_base + store.elements)
        written = self._bytes(store, self.config.out, writes=True)
        self._emit(store, [Access("ACC", read, writes=False), written])

    def _bytes(self, transfer: Load | Store, geometry: TileMemory, writes: bool) -> Access:
        size = geometry.element_bytes
        rows = (transfer.dram_base + np.arange(transfer.y_size) * transfer.x_stride) * size
        touched = rows[:, np.newaxis] + np.arange(transfer.x_size * size)
        return Access("DRAM", touched.reshape(-1), writes)

    # GEMM and ALU.

    def _gemm(self) -> None:
        loops, windows = self._loops(), (self._half(), self._half(), self._half())
        count = self._uop_count()
        layout = isa.instruction_set(self.config).uop_layout
        fields: dict[str, int] = {}
        uops: dict[str, Elements] = {}
        for name, memory, half in zip(
            ("dst", "src", "wgt"),
            (self.config.acc, self.config.inp, self.config.wgt),
            windows,
            strict=True,
        ):
            uops[name], factors = self._operand(name, self._window(memory, half), loops, count)
            fields |= factors
        reset = int(self.chance.random() < 0.15)
        if reset:
            # Not read, so anything will do.
            for name in ("src", "wgt"):
                top = 1 << layout[name].width
                uops[name] = np.array([self.chance.randrange(top) for _ in range(count)])
        kind = Gemm
        if self.config.overwrite and not reset and self.chance.random() < 0.3:
            kind = Multiply
        self._emit_kernel(
            lambda **place: kind(reset=reset, **loops, **fields, **place),
            uops,
            may_pad=not any(windows),
        )

    def _alu(self) -> None:
        loops, windows = self._loops(), (self._half(), self._half())
        count = self._uop_count()
        layout = isa.instruction_set(self.config).uop_layout
        fields: dict[str, int] = {}
        uops: dict[str, Elements] = {}
        for name, half in zip(("dst", "src"), windows, strict=True):
            window = self._window(self.config.acc, half)
            uops[name], factors = self._operand(name, window, loops, count)
            fields |= factors
        immediate = self.chance.random() < 0.5
        if immediate:
            top = 1 << layout["src"].width
            uops["src"] = np.array([self.chance.randrange(top) for _ in range(count)])
        elif self.chance.random() < 0.2:
            # Each micro-op takes what one before it, near or far, has just written.
            uops["src"] = np.roll(uops["dst"], self.chance.randint(0, 3))
            for loop in ("in", "out"):
                fields[f"src_factor_{loop}"] = fields[f"dst_factor_{loop}"]
        uops["wgt"] = np.array(
            [self.chance.randrange(1 << layout["wgt"].width) for _ in range(count)]
        )
        operation = self.chance.choice((*isa.BASE_ALU_OPS, AluOp.ADD, AluOp.ADD, AluOp.SHR))
        value = self.chance.choice(
            (
                self.chance.randint(-4, 4),
                self.chance.randint(-40, 40),
                self.chance.randrange(-(1 << 15), 1 << 15),
            )
        )
        self._emit_kernel(
            lambda **place: Alu(
                alu_opcode=operation,
                use_immediate=int(immediate),
                immediate=value,
                **loops,
                **fields,
                **place,
            ),
            uops,
            may_pad=not any(windows),
        )

    def _requantize(self) -> None:
        chance, size = self.chance, isa.REQUANTIZE_PARAMETERS
        if not self.tables or chance.random() < 0.4:
            self._load_parameters()
        if chance.random() < 0.4:
            self._gemm()
        if not self.tables:
            return
        table = chance.choice(self.tables)
        window = self._window(self.config.acc, self._half())
        # Parameters that were written over by the same instruction would mean nothing.
        window = max(
            range(window.start, min(window.stop, table.start)),
            range(max(window.start, table.stop), window.stop),
            key=len,
        )
        loops, count = self._loops(), self._uop_count()
        dst, fields = self._operand("dst", window, loops, count)
        which, factors = self._operand("src", range(len(table)), loops, count)
        fields |= {name: factor * size for name, factor in factors.items()}
        top = 1 << isa.instruction_set(self.config).uop_layout["wgt"].width
        unused = np.array([chance.randrange(top) for _ in range(count)])
        value = chance.randrange(-(1 << 15), 1 << 15)
        self._emit_kernel(
            lambda **place: Alu(
                alu_opcode=AluOp.REQUANTIZE, immediate=value, **loops, **fields, **place
            ),
            {"dst": dst, "src": table.start + size * which, "wgt": unused},
            may_pad=False,
        )

    def _load_parameters(self) -> None:
        window, size = self._window(self.config.acc, self._half()), isa.REQUANTIZE_PARAMETERS
        sets = self.chance.randint(1, min(3, len(window) // (2 * size)))
        first = self.chance.randrange(_PARAMETER_SETS - sets + 1)
        base = window.start + self.chance.randrange(len(window) - size * sets + 1)
        load = Load(
            memory=Memory.ACC, sram_base=base, dram_base=size * first, x_size=size * sets, y_size=1
        )
        self._emit_load(load)
        self.tables.append(range(base, base + size * sets, size))

    def _uop_count(self) -> int:
        return min(self.chance.choice((1, 1, 2, 3, 4, 6, 9)), len(self._window(self.config.uop, 0)))

    def _loops(self) -> dict[str, int]:
        return {name: self.chance.choice((1, 1, 2, 3, 5)) for name in ("iter_out", "iter_in")}

    def _operand(
        self, name: str, window: range, loops: dict[str, int], count: int
    ) -> tuple[Elements, dict[str, int]]:
        """Fields and factors of one operand of ``count`` micro-ops, all within ``window``."""
        chance = self.chance
        left = len(window) - 1
        factors = {}
        for loop in chance.sample(("out", "in"), 2):
            steps = loops[f"iter_{loop}"] - 1
            if steps:
                factor = chance.randint(0, min(left // steps, 4))
                left -= factor * steps
            else:
                factor = chance.choice((0, 1, len(window) - 1))
            factors[f"{name}_factor_{loop}"] = factor
        kind = chance.random()
        if kind < 0.4:
            start = chance.randint(0, left)
            step = chance.choice((0, 1, 1, 2))
            offsets = [min(start + step * at, left) for at in range(count)]
        else:
            offsets = [chance.randint(0, left) for _ in range(count)]
        return np.array([window.start + offset for offset in offsets]), factors

    def _emit_kernel(
        self,
        make: Callable[..., Gemm | Alu],
        uops: dict[str, Elements],
        may_pad: bool,
    ) -> None:
        """Loads micro-ops to somewhere in their buffer, and emits the instruction of them."""
        chance = self.chance
        count = uops["dst"].size
        window = self._window(self.config.uop, self._half())
        pads = {name: chance.choice((0, 0, 1, 2)) if may_pad else 0 for name in _X_PADS}
        if count + sum(pads.values()) > len(window):
            pads = dict.fromkeys(_X_PADS, 0)
        total = count + sum(pads.values())
        begin = window.start + chance.randrange(len(window) - total + 1)
        layout = isa.instruction_set(self.config).uop_layout
        words = [
            sum(layout[name].insert(int(uops[name][at])) for name in uops) for at in range(count)
        ]
        apart = chance.choice((0, 0, 1, 3))
        at = self.uops_at // 4 + len(self.uop_words)
        for word in words:
            self.uop_words += [word, *[chance.randrange(1 << 32) for _ in range(apart)]]
        if apart and not any(pads.values()):
            rows = {"x_size": 1, "y_size": count, "x_stride": 1 + apart}
        else:
            self.uop_words += words
            at += count * (1 + apart)
            rows = {"x_size": count, "y_size": 1, "x_stride": chance.randrange(1 << 16)}
        self._emit_load(Load(memory=Memory.UOP, sram_base=begin, dram_base=at, **rows, **pads))
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
        accesses = _kernel_accesses(instruction, padded)
        self.kernels.append(_Kernel(taken, instruction, accesses))
        self._emit(instruction, accesses)

    def _repeat(self) -> None:
        """Micro-ops that stayed in their buffer, once more."""
        if not self.kernels:
            self._gemm()
            return
        kernel = self.chance.choice(self.kernels)
        instruction = kernel.instruction
        match instruction:
            case Multiply():
                pass
            case Gemm() if not instruction.reset and self.chance.random() < 0.2:
                instruction = replace(instruction, reset=1)
            case Alu() if self.chance.random() < 0.5 or not self._has_parameters(kernel):
                instruction = replace(instruction, alu_opcode=self.chance.choice(isa.BASE_ALU_OPS))
        self._emit(instruction, kernel.accesses)

    def _has_parameters(self, kernel: _Kernel) -> bool:
        """Whether the sources of a REQUANTIZE, if it is one, are still parameters."""
        assert isinstance(kernel.instruction, Alu)
        if kernel.instruction.alu_opcode != AluOp.REQUANTIZE:
            return True
        return all(
            any(int(first) in table for table in self.tables)
            for first in kernel.accesses[1].elements
        )

    def _emit(self, instruction: Instruction, accesses: Sequence[Access]) -> None:
        for access in accesses:
            if access.memory == "ACC" and access.writes:
                self.tables = [
                    table
                    for table in self.tables
                    if not ((access.elements >= table.start) & (access.elements < table.stop)).any()
                ]
        self.stream.emit(instruction, accesses)

    # Instructions for their tokens alone.

    def _do_nothing(self) -> None:
        """An instruction that reads and writes nothing, whatever its other fields hold."""
        chance = self.chance
        anything = {
            "sram_base": chance.randrange(1 << 16),
            "dram_base": chance.randrange(1 << 32),
            "x_stride": chance.randrange(1 << 16),
        }
        pads = {name: chance.randrange(16) for name in ("y_pad_0", "y_pad_1", *_X_PADS)}
        top = self.config.uop.depth
        empty: dict[str, int] = chance.choice(
            (
                {"uop_begin": top - 1, "uop_end": 2 * top - 1, "iter_out": 0, "iter_in": 9},
                {"uop_begin": 0, "uop_end": 2 * top - 1, "iter_out": (1 << 14) - 1, "iter_in": 0},
                {"uop_begin": top - 1, "uop_end": top - 1},
                {"uop_begin": top - 1, "uop_end": 1, "iter_in": (1 << 14) - 1},
            )
        )
        memory = chance.choice((Memory.INP, Memory.WGT, Memory.UOP, Memory.ACC, Memory.ACC_8BIT))
        rows = chance.randrange(1 << 16)
        operations = [*isa.BASE_ALU_OPS, *([AluOp.REQUANTIZE] if self.config.requantize else [])]
        self._emit(
            chance.choice(
                (
                    Load(memory=memory, x_size=0, y_size=rows, **anything, **pads),
                    Load(memory=memory, x_size=rows, y_size=0, **anything),
                    Store(x_size=0, y_size=rows, **anything),
                    Store(x_size=rows, y_size=0, **anything),
                    Gemm(**empty),
                    Alu(alu_opcode=chance.choice(operations), **empty),
                    *([Multiply(**empty)] if self.config.overwrite else []),
                )
            ),
            [],
        )

    def _pile_up_tokens(self) -> None:
        queue = self.chance.choice(list(self.stream.clocks.tokens))
        room = TOKENS - len(self.stream.clocks.tokens[queue])
        for _ in range(min(self.chance.randint(200, 700), room)):
            self.stream.pass_on(queue[0], pushes={queue})


_X_PADS = ("x_pad_0", "x_pad_1")


def _kernel_accesses(instruction: Gemm | Alu, uops: dict[str, Elements]) -> list[Access]:
    def touched(name: str) -> Elements:
        outer, inner = np.divmod(
            np.arange(instruction.iter_out * instruction.iter_in), instruction.iter_in
        )
        offset = outer * getattr(instruction, f"{name}_factor_out") + inner * getattr(
            instruction, f"{name}_factor_in"
        )
        return (offset[:, np.newaxis] + uops[name]).reshape(-1)

    accesses = [Access("ACC", touched("dst"), writes=True)]
    if isinstance(instruction, Alu) and not instruction.use_immediate:
        accesses.append(Access("ACC", touched("src"), writes=False))
        if instruction.alu_opcode == AluOp.REQUANTIZE:
            for at in range(1, isa.REQUANTIZE_PARAMETERS):
                accesses.append(Access("ACC", touched("src") + at, writes=False))
    if isinstance(instruction, Gemm) and not instruction.reset:
        accesses.append(Access("INP", touched("src"), writes=False))
        accesses.append(Access("WGT", touched("wgt"), writes=False))
    return accesses


@dataclass(frozen=True)
class _Kernel:
    """An instruction whose micro-ops are at ``place``; the first access is to what it writes, the
    second to what it reads first."""

    place: range
    instruction: Gemm | Alu
    accesses: list[Access]
