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
from dataclasses import replace

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PYNQ, Config, TileMemory
from amaranth_vta.hw.isa import Alu, AluOp, Finish, Gemm, Instruction, Load, Memory, Multiply, Store
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.model.observers.observer import Elements

from .empty_instructions import X_PADS, empty_instruction
from .image import ProgramImage
from .ordered_stream import Access, Kernel, OrderedStream, kernel_accesses
from .random_data import PARAMETER_SETS, REACH, random_data
from .random_fields import (
    outside,
    random_immediate,
    random_loops,
    random_operand,
    random_rows,
    random_table,
)

# Elements at each end of a scratchpad that a program uses.
_WINDOW = 24


def random_program(
    config: Config, seed: int, length: int = 60, deep_tokens: bool = False
) -> ProgramImage:
    """A legal program of ``length`` instructions that do something, and more that pass tokens on.

    ``expected`` is what the clear functional model makes of it. With ``deep_tokens`` some queues
    come to hold hundreds of tokens, which takes as many instructions.
    """
    # Not by the keys that are as in the base profile: one that is new changes no programs.
    keys = sorted(config.to_dict().items() - PYNQ.to_dict().items())
    image = _Generator(config, random.Random(f"{seed}:{keys}")).program(length, deep_tokens)
    device = FunctionalDevice(config, image.dram.size, clear=True)
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
        self.data = random_data(config, chance)
        out_bytes = config.out.element_bytes
        self.results = range(self.data.size, self.data.size + 4 * REACH * out_bytes)
        self.final = self.results.stop
        self.uops_at = -(-(self.final + 2 * _WINDOW * out_bytes) // 64) * 64
        self.uop_words: list[int] = []
        self.stream = OrderedStream(config, chance)
        # Instructions whose micro-ops are still where they were loaded.
        self.kernels: list[Kernel] = []
        # Where each set of a table of requantization parameters begins.
        self.tables: list[range] = []
        # Where lookups have found tables.
        self.lookups: list[range] = []

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
            (lambda: self._emit(empty_instruction(self.config, self.chance), []), 1),
        ]
        if self.config.requantize:
            makers.append((self._requantize, 4))
        if self.config.lookup:
            makers.append((self._look_up, 4))
        if self.config.pad_value:
            makers.append((self._set_padding, 2))
        pile_up = sorted(self.chance.sample(range(length), min(length, 2))) if deep_tokens else []
        for step in range(length):
            if step in pile_up:
                self.stream.pile_up()
            make = self.chance.choices(*zip(*makers, strict=True))[0]
            make()
        for half in (0, 1):
            window = self._window(self.config.acc, half)
            at = self.final // self.config.out.element_bytes + half * _WINDOW
            self._emit_store(Store(sram_base=window.start, dram_base=at, x_size=len(window)))
        self._emit(Finish(), [])
        return self._image()

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
        fields = random_rows(self.chance, len(window), padded=True)
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
        store = Store(**random_rows(self.chance, len(window), padded=False))
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
        loops, windows = random_loops(self.chance), (self._half(), self._half(), self._half())
        count = self._uop_count()
        fields: dict[str, int] = {}
        uops: dict[str, Elements] = {}
        for name, memory, half in zip(
            ("dst", "src", "wgt"),
            (self.config.acc, self.config.inp, self.config.wgt),
            windows,
            strict=True,
        ):
            uops[name], factors = random_operand(
                self.chance, name, self._window(memory, half), loops, count
            )
            fields |= factors
        reset = int(self.chance.random() < 0.15)
        if reset:
            # Not read, so anything will do.
            uops |= {name: self._anything(name, count) for name in ("src", "wgt")}
        kind = Gemm
        if self.config.overwrite and not reset and self.chance.random() < 0.3:
            kind = Multiply
        self._emit_kernel(
            lambda **place: kind(reset=reset, **loops, **fields, **place),
            uops,
            may_pad=not any(windows),
        )

    def _alu(self) -> None:
        loops, windows = random_loops(self.chance), (self._half(), self._half())
        count = self._uop_count()
        fields: dict[str, int] = {}
        uops: dict[str, Elements] = {}
        for name, half in zip(("dst", "src"), windows, strict=True):
            window = self._window(self.config.acc, half)
            uops[name], factors = random_operand(self.chance, name, window, loops, count)
            fields |= factors
        immediate = self.chance.random() < 0.5
        if immediate:
            uops["src"] = self._anything("src", count)
        elif self.chance.random() < 0.2:
            # Each micro-op takes what one before it, near or far, has just written.
            uops["src"] = np.roll(uops["dst"], self.chance.randint(0, 3))
            for loop in ("in", "out"):
                fields[f"src_factor_{loop}"] = fields[f"dst_factor_{loop}"]
        uops["wgt"] = self._anything("wgt", count)
        operation = self.chance.choice((*isa.BASE_ALU_OPS, AluOp.ADD, AluOp.ADD, AluOp.SHR))
        value = random_immediate(self.chance)
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
        loops, count = random_loops(self.chance), self._uop_count()
        which, factors = random_operand(self.chance, "src", range(len(table)), loops, count)
        factors = {name: factor * size for name, factor in factors.items()}
        self._emit_with_table(AluOp.REQUANTIZE, table, loops, table.start + size * which, factors)

    def _look_up(self) -> None:
        chance, size = self.chance, self.config.table_elements
        window = self._window(self.config.acc, self._half())
        if size >= len(window):
            return
        # Any bytes are a table; maybe one to which something was written since it was used.
        if self.lookups and chance.random() < 0.6:
            table = chance.choice(self.lookups)
        else:
            table = random_table(chance, window, size)
            self.lookups.append(table)
        loops, begins = random_loops(chance), range(table.start, table.stop - size + 1)
        src, factors = random_operand(chance, "src", begins, loops, self._uop_count())
        self._emit_with_table(AluOp.LOOKUP, table, loops, src, factors)

    def _emit_with_table(
        self,
        operation: AluOp,
        table: range,
        loops: dict[str, int],
        src: Elements,
        factors: dict[str, int],
    ) -> None:
        """An operation whose second operand are elements of ``table``, from ``src`` on."""
        chance, count = self.chance, src.size
        # Parameters that were written over by the same instruction would mean nothing.
        window = outside(self._window(self.config.acc, self._half()), table)
        dst, fields = random_operand(chance, "dst", window, loops, count)
        value = chance.randrange(-(1 << 15), 1 << 15)
        self._emit_kernel(
            lambda **place: Alu(
                alu_opcode=operation, immediate=value, **loops, **fields, **factors, **place
            ),
            {"dst": dst, "src": src, "wgt": self._anything("wgt", count)},
            may_pad=False,
        )

    def _load_parameters(self) -> None:
        window, size = self._window(self.config.acc, self._half()), isa.REQUANTIZE_PARAMETERS
        sets = self.chance.randint(1, min(3, len(window) // (2 * size)))
        first = self.chance.randrange(PARAMETER_SETS - sets + 1)
        base = window.start + self.chance.randrange(len(window) - size * sets + 1)
        load = Load(
            memory=Memory.ACC, sram_base=base, dram_base=size * first, x_size=size * sets, y_size=1
        )
        self._emit_load(load)
        self.tables.append(range(base, base + size * sets, size))

    def _anything(self, name: str, count: int) -> Elements:
        """The field ``name`` of ``count`` micro-ops where it says nothing."""
        top = 1 << isa.instruction_set(self.config).uop_layout[name].width
        return np.array([self.chance.randrange(top) for _ in range(count)])

    def _uop_count(self) -> int:
        return min(self.chance.choice((1, 1, 2, 3, 4, 6, 9)), len(self._window(self.config.uop, 0)))

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
        accesses = kernel_accesses(self.config, instruction, padded)
        self.kernels.append(Kernel(taken, instruction, accesses))
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

    def _has_parameters(self, kernel: Kernel) -> bool:
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
