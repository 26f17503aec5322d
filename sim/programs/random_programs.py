"""Random programs for any configuration, each with its expected result.

`random_program` builds legal programs whose result does not depend on the execution order: the
generator keeps vector clocks of the modules and adds a token, or an instruction that only forwards
one, where two instructions conflict. Loads, kernels and stores work at both ends of every
scratchpad and around its inner borders; tokens accumulate. Corner cases are covered: empty ranges
and rows, random values in ignored fields, overlapping rows, padding of every memory, shifts by any
amount, dependent consecutive micro-ops, destinations half a scratchpad apart. Programs use all
extensions of the configuration, and mark only independent instructions as such.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PYNQ, Config
from amaranth_vta.hw.isa import (
    Alu,
    AluOp,
    Depthwise,
    Finish,
    Forward,
    Gemm,
    Load,
    Memory,
    Multiply,
    Store,
)
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.model.observers.observer import Elements
from amaranth_vta.sw.runtime.device import end_in_dram

from .builder import PARAMETER_SETS, WINDOW, ProgramBuilder
from .image import ProgramImage
from .ordered_stream import LoadedKernel
from .random_fields import (
    chained_operand,
    empty_instruction,
    many_rows,
    outside,
    random_immediate,
    random_loops,
    random_operand,
    random_rows,
    random_set_padding,
    random_table,
)

# Maximum iterations of one loop, and of both together; few programs use them, since they are slow.
_MAX_ITERATIONS = (1 << isa.ITERATION_WIDTH) - 1


def random_program(
    config: Config, seed: int, length: int = 60, deep_tokens: bool = False, origin: int = 0
) -> ProgramImage:
    """A `legal_program` whose ``expected`` is the memory after it ran on the clear model."""
    image = legal_program(config, seed, length, deep_tokens, origin)
    device = FunctionalDevice(config, image.dram.size, clear=True, origin=origin)
    device.write(origin, image.dram)
    result = device.run(image.insn_addr, image.insn_count)
    assert result.fault is None, result.fault
    return replace(image, expected=device.read(origin, image.dram.size))


def legal_program(
    config: Config, seed: int, length: int = 60, deep_tokens: bool = False, origin: int = 0
) -> ProgramImage:
    """A program of ``length`` working instructions, followed by some that forward tokens or dump
    scratchpads.

    ``deep_tokens`` fills some queues with hundreds of tokens, which adds as many instructions. The
    memory begins at address ``origin``, at most `most_origin`.
    """
    # The seed includes only keys that differ from the base preset, so that a new key does not
    # change existing programs.
    keys = sorted(config.to_dict().items() - PYNQ.to_dict().items())
    chance = random.Random(f"{seed}:{keys}")
    return _Generator(config, chance, origin).program(length, deep_tokens)


def most_origin(config: Config, size: int) -> int:
    """The highest multiple of 4096 at which ``size`` bytes can begin such that a 32-bit index
    reaches all of their elements, of every memory, and they lie within DRAM.
    """
    memories = (config.uop, config.inp, config.wgt, config.acc, config.out)
    smallest = min(memory.element_bytes for memory in memories)
    most = min(smallest << isa.DRAM_BASE_WIDTH, config.dram_bytes)
    return (most - size) >> 12 << 12


class _Generator(ProgramBuilder):
    def __init__(self, config: Config, chance: random.Random, origin: int) -> None:
        super().__init__(config, chance, origin)
        # Element ranges used as tables by LOOKUPs so far.
        self._lookups: list[range] = []

    def program(self, length: int, deep_tokens: bool) -> ProgramImage:
        for memory in (Memory.INP, Memory.WGT, Memory.ACC):
            for window in self.windows(self.config.memory(memory)):
                self.fill(memory, window)
        makers = self._makers()
        fills = sorted(self.chance.sample(range(length), min(length, 2))) if deep_tokens else []
        for step in range(length):
            if step in fills:
                self.stream.fill_queue()
            self.chance.choices(*zip(*makers, strict=True))[0]()
        if self.chance.random() < 0.3:
            self.dump_accumulators()
            self.dump_products()
        else:
            self.dump_low_bits()
        self.emit(Finish(), [])
        return self.image()

    def _makers(self) -> list[tuple[Callable[[], None], float]]:
        """Methods that emit one or more instructions, with their weights."""
        makers: list[tuple[Callable[[], None], float]] = [
            (lambda: self._load(Memory.INP), 4),
            (lambda: self._load(Memory.WGT), 4),
            (lambda: self._load(Memory.ACC), 1),
            (lambda: self._load(Memory.ACC_8BIT), 1),
            (self._load_many_rows, 0.2),
            (self._gemm, 5),
            (self._alu, 5),
            (self._repeat, 3),
            (self._repeat_several, 1),
            (self._iterate_long, 0.02),
            (self._store, 4),
            (lambda: self.emit(empty_instruction(self.config, self.chance), []), 1),
        ]
        room = min(len(window) for window in self.windows(self.config.acc))
        if self.config.requantize and room >= 2 * isa.REQUANTIZE_PARAMETERS:
            makers.append((self._requantize, 4))
        if self.config.lookup:
            makers.append((self._look_up, 4))
        if self.config.multiply_add:
            makers.append((self._multiply_add, 4))
        if self.config.wgt_4bit:
            makers.append((lambda: self._load(Memory.WGT_4BIT), 4))
        if self.config.pad_value:
            makers.append((lambda: self.emit(random_set_padding(self.chance), []), 2))
        if self.config.forward:
            makers.append((self._forward, 4))
        return makers

    # Loads and stores.

    def _load(self, memory: Memory) -> None:
        window = self.window(self.config.memory(isa.filled_by(memory)))
        geometry = self.config.memory(memory)
        most = self.data.size // geometry.element_bytes
        load = Load(memory=memory, **random_rows(self.chance, len(window), most, padded=True))
        reach = end_in_dram(load)
        if self.chance.random() < 0.2 and memory is not Memory.ACC:
            # From the results of stores, if an element of this memory fits there.
            size = geometry.element_bytes
            first, last = -(-self.results.start // size), self.results.stop // size - reach
            at = self.chance.randrange(first, last) if last > first else 0
        else:
            at = self.data_index(geometry, reach)
        base = window.start + self.chance.randrange(len(window) - load.elements + 1)
        self.load(replace(load, sram_base=base, dram_base=at))

    def _load_many_rows(self) -> None:
        """Load hundreds of short rows, as many as the scratchpad holds."""
        loaded = isa.loaded_memories(self.config.extensions)
        memory = self.chance.choice([item for item in loaded if item is not Memory.UOP])
        target = self.config.memory(isa.filled_by(memory))
        geometry = self.config.memory(memory)
        available = self.data.size // geometry.element_bytes
        load = Load(memory=memory, **many_rows(self.chance, target.depth, available))
        base = self.chance.randrange(target.depth - load.elements + 1)
        at = self.data_index(geometry, end_in_dram(load))
        self.load(replace(load, sram_base=base, dram_base=at))

    def _store(self) -> None:
        window = self.window(self.config.acc)
        size = self.config.out.element_bytes
        first, last = self.results.start // size, self.results.stop // size
        store = Store(**random_rows(self.chance, len(window), last - first, padded=False))
        self.store(
            replace(
                store,
                sram_base=window.start + self.chance.randrange(len(window) - store.elements + 1),
                dram_base=self.chance.randrange(first, last - end_in_dram(store) + 1),
            )
        )

    def _forward(self) -> None:
        source, target = self.window(self.config.acc), self.window(self.config.inp)
        forward = Forward(**random_rows(self.chance, len(target), len(source), padded=True))
        last = source.stop - forward.source_end
        first = self.chance.randrange(source.start, last + 1)
        padding = self.chance.randrange(-(1 << 15), 1 << 15)
        room = len(target) - forward.elements
        self.forward(
            replace(
                forward,
                sram_base=target.start + self.chance.randrange(room + 1),
                dram_base=isa.forward_base(first, padding),
            )
        )

    # GEMM and ALU.

    def _destinations(
        self, loops: dict[str, int], count: int
    ) -> tuple[range, Elements, dict[str, int]]:
        """The destination window of ``count`` micro-ops, their ``dst`` fields, and the loop
        factors.

        Sometimes every other iteration is half a scratchpad away, in the other bank.
        """
        windows = self.windows(self.config.acc)
        if len(windows) > 2 and self.chance.random() < 0.15:
            loops["iter_in"] = 2
            dst, fields = random_operand(self.chance, "dst", range(WINDOW // 2), loops, count)
            return windows[1], dst, fields | {"dst_factor_in": self.config.acc.depth // 2}
        window = self.chance.choice(windows)
        return window, *random_operand(self.chance, "dst", window, loops, count)

    def _gemm(self) -> None:
        loops, count = random_loops(self.chance), self._uop_count()
        used, dst, fields = self._destinations(loops, count)
        uops = {"dst": dst}
        reset = int(self.chance.random() < 0.15)
        low = used.start == 0
        kind: type[Gemm] = Gemm
        if self.config.overwrite and not reset and self.chance.random() < 0.3:
            kind = Multiply
        room = len(self.windows(self.config.inp)[0]) >= self.config.taps
        if self.config.depthwise and room and not reset and self.chance.random() < 0.3:
            kind = Depthwise
            fields["overwrite"] = int(self.chance.random() < 0.3)
        for name, memory in (("src", self.config.inp), ("wgt", self.config.wgt)):
            window = self.window(memory)
            low &= window.start == 0
            if kind is Depthwise and name == "src":
                window = window[: len(window) - self.config.taps + 1]
            uops[name], factors = random_operand(self.chance, name, window, loops, count)
            fields |= factors
            if reset:
                uops[name] = self._anything(name, count)  # not read
        self.kernel(
            lambda **place: kind(reset=reset, **loops, **fields, **place), uops, may_pad=low
        )

    def _alu(self) -> None:
        loops, count = random_loops(self.chance), self._uop_count()
        used, dst, fields = self._destinations(loops, count)
        window = self.window(self.config.acc)
        src, factors = random_operand(self.chance, "src", window, loops, count)
        fields |= factors
        immediate = self.chance.random() < 0.5
        if immediate:
            src = self._anything("src", count)
        elif self.chance.random() < 0.3:
            src, factors = chained_operand(self.chance, dst, fields)
            fields |= factors
        operation = self.chance.choice((*isa.BASE_ALU_OPS, AluOp.ADD, AluOp.ADD, AluOp.SHR))
        value = random_immediate(self.chance)
        self.kernel(
            lambda **place: Alu(
                alu_opcode=operation,
                use_immediate=int(immediate),
                immediate=value,
                **loops,
                **fields,
                **place,
            ),
            {"dst": dst, "src": src, "wgt": self._anything("wgt", count)},
            may_pad=used.start == window.start == 0,
        )

    def _iterate_long(self) -> None:
        """Emit one micro-op with the maximum iterations of a loop."""
        long = self.chance.choice(("iter_out", "iter_in"))
        loops = {"iter_out": 1, "iter_in": 1, long: _MAX_ITERATIONS}
        window = self.window(self.config.acc)
        dst = np.array([self.chance.choice(window)])
        kind = self.chance.choice(({"alu_opcode": AluOp.ADD}, {"alu_opcode": AluOp.SHR}))
        self.kernel(
            lambda **place: Alu(
                use_immediate=1, immediate=self.chance.randint(-3, 3), **kind, **loops, **place
            ),
            {"dst": dst, "src": np.array([0]), "wgt": np.array([0])},
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
        self._with_table(AluOp.REQUANTIZE, table, loops, table.start + size * which, factors)

    def _look_up(self) -> None:
        chance, size = self.chance, self.config.table_elements
        window = self.window(self.config.acc)
        if size >= len(window):
            return
        # Any bytes are a valid table, including a table that was overwritten since its last use.
        if self._lookups and chance.random() < 0.6:
            table = chance.choice(self._lookups)
        else:
            table = random_table(chance, window, size)
            self._lookups.append(table)
        loops, begins = random_loops(chance), range(table.start, table.stop - size + 1)
        src, factors = random_operand(chance, "src", begins, loops, self._uop_count())
        self._with_table(AluOp.LOOKUP, table, loops, src, factors)
        if chance.random() < 0.4:
            self._change_table(table)

    def _change_table(self, table: range) -> None:
        """Overwrite a few elements of the table of the latest LOOKUP, then repeat that LOOKUP."""
        kernel = self.kernels[-1]
        count = min(self.chance.randint(1, 3), len(table))
        first = self.chance.randrange(table.start, table.stop - count + 1)
        self.fill(Memory.ACC, range(first, first + count))
        self.emit(kernel.instruction, kernel.accesses)

    def _multiply_add(self) -> None:
        chance, windows = self.chance, self.windows(self.config.acc)
        factor = chance.choice(chance.choice(windows))
        # An instruction may not overwrite its own factor.
        free = [part for window in windows if (part := outside(window, range(factor, factor + 1)))]
        loops, count = random_loops(chance), self._uop_count()
        dst, fields = random_operand(chance, "dst", chance.choice(free), loops, count)
        src, sources = random_operand(chance, "src", chance.choice(windows), loops, count)
        if chance.random() < 0.3:
            src, sources = chained_operand(chance, dst, fields)
        self.kernel(
            lambda **place: Alu(
                alu_opcode=AluOp.MULTIPLY_ADD,
                immediate=isa.factor_immediate(factor),
                **loops,
                **fields,
                **sources,
                **place,
            ),
            {"dst": dst, "src": src, "wgt": self._anything("wgt", count)},
        )

    def _with_table(
        self,
        operation: AluOp,
        table: range,
        loops: dict[str, int],
        src: Elements,
        factors: dict[str, int],
    ) -> None:
        """Emit an operation whose second operand is in ``table``, at elements ``src``."""
        chance, count = self.chance, src.size
        # An instruction may not overwrite its own parameters.
        window = outside(self.window(self.config.acc), table)
        dst, fields = random_operand(chance, "dst", window, loops, count)
        value = chance.randrange(-(1 << 15), 1 << 15)
        self.kernel(
            lambda **place: Alu(
                alu_opcode=operation, immediate=value, **loops, **fields, **factors, **place
            ),
            {"dst": dst, "src": src, "wgt": self._anything("wgt", count)},
        )

    def _load_parameters(self) -> None:
        window, size = self.window(self.config.acc), isa.REQUANTIZE_PARAMETERS
        sets = self.chance.randint(1, min(3, len(window) // (2 * size)))
        first = self.chance.randrange(PARAMETER_SETS - sets + 1)
        base = window.start + self.chance.randrange(len(window) - size * sets + 1)
        self.load(
            Load(
                memory=Memory.ACC,
                sram_base=base,
                dram_base=size * first,
                x_size=size * sets,
                y_size=1,
            )
        )
        self.tables.append(range(base, base + size * sets, size))

    def _anything(self, name: str, count: int) -> Elements:
        """Random values for an ignored field ``name`` of ``count`` micro-ops."""
        top = 1 << isa.instruction_set(self.config).uop_layout[name].width
        return np.array([self.chance.randrange(top) for _ in range(count)])

    def _uop_count(self) -> int:
        most = min(len(window) for window in self.windows(self.config.uop))
        return min(self.chance.choice((1, 1, 2, 3, 4, 6, 9)), most)

    def _repeat_several(self) -> None:
        """Repeat kernels back to back, so that their units overlap or wait for each other."""
        for _ in range(self.chance.randint(2, 6)):
            self._repeat()

    def _repeat(self) -> None:
        """Emit an instruction on micro-ops that are still in their scratchpad."""
        if not self.kernels:
            self._gemm()
            return
        kernel = self.chance.choice(self.kernels)
        instruction = kernel.instruction
        match instruction:
            case Multiply() | Depthwise():
                pass
            case Gemm() if not instruction.reset and self.chance.random() < 0.2:
                instruction = replace(instruction, reset=1)
            case Alu() if self.chance.random() < 0.5 or not self._has_parameters(kernel):
                instruction = replace(instruction, alu_opcode=self.chance.choice(isa.BASE_ALU_OPS))
        self.emit(instruction, kernel.accesses)

    def _has_parameters(self, kernel: LoadedKernel) -> bool:
        """Whether ``kernel``, if it is a REQUANTIZE, still has parameters at all of its sources."""
        assert isinstance(kernel.instruction, Alu)
        if kernel.instruction.alu_opcode != AluOp.REQUANTIZE:
            return True
        return all(
            any(int(first) in table for table in self.tables)
            for first in kernel.accesses[1].elements
        )
