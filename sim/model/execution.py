"""Effects of single instructions on scratchpads and memory.

`amaranth_vta.sim.model.machine` handles tokens and the order between modules.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.registers import COUNTERS
from amaranth_vta.hw.tiles import TileMemory
from amaranth_vta.sw.runtime.device import Limits, end_in_dram, limit_of

from .arithmetic import Indices, alu, gemm, look_up, multiply, multiply_add, requantize
from .observers.observer import Observer
from .scratchpad import Bytes, Scratchpad, initial_bytes, pack_tiles, unpack_tiles

# Micro-ops computed at once; more would only use memory.
_CHUNK = 1 << 14
_COUNTED = [counter.name for counter in COUNTERS if not counter.time]


class ExecutionFault(Exception):
    """An instruction that cannot be executed and has written nothing."""

    def __init__(self, cause: isa.Cause) -> None:
        super().__init__(cause.name.lower())
        self.cause = cause


@dataclass
class Executor:
    """Scratchpads, which keep their contents between runs, and memory shared with the device.

    ``memory`` is a 1-D uint8 array that begins at address ``origin``. ``observers`` see every read
    and write; see `Device.set_limits` for ``limits``. ``counters`` has the time-independent ones
    among `registers.COUNTERS`. ``seed`` determines the initial contents of
    scratchpads.
    """

    config: Config
    memory: Bytes
    seed: int = 0
    observers: Sequence[Observer] = ()
    counters: dict[str, int] = field(default_factory=dict)
    deadline: float | None = None
    origin: int = 0
    limits: Limits = field(default_factory=dict)

    def __post_init__(self) -> None:
        contents = initial_bytes(self.config, self.seed)
        self.uop = Scratchpad(self.config.uop, contents["uop"])
        self.inp = Scratchpad(self.config.inp, contents["inp"])
        self.wgt = Scratchpad(self.config.wgt, contents["wgt"])
        self.acc = Scratchpad(self.config.acc, contents["acc"])
        self.begin()

    def begin(self) -> None:
        """Begin a run: clear counters and padding values; keep scratchpads and limits."""
        self._padding = dict.fromkeys(isa.Padding, 0)
        self.counters = dict.fromkeys(_COUNTED, 0)

    def execute(self, index: int, instruction: isa.Instruction) -> None:
        """Execute the legal ``instruction``, number ``index`` of its stream.

        Raises `ExecutionFault`; its cause is ``timeout`` once ``deadline``, a time of
        `time.monotonic`, has passed.
        """
        try:
            self._execute(index, instruction)
        except ExecutionFault:
            self._report_partial_writes(index, instruction)
            raise

    def _execute(self, index: int, instruction: isa.Instruction) -> None:
        match instruction:
            case isa.Load() | isa.SetPadding():
                of_load = isa.module_of(instruction) is isa.Module.LOAD
                kind = "load" if of_load else "compute_load"
                if isinstance(instruction, isa.SetPadding):
                    self._padding[isa.Padding(instruction.memory)] = instruction.value
                else:
                    self._load(index, instruction)
            case isa.Store():
                kind = "store"
                self._store(index, instruction)
            case isa.Forward():
                kind = "store"
                self._forward(index, instruction)
            case isa.Gemm():
                kind = "gemm"
                self._gemm(index, instruction)
            case isa.Alu():
                kind = "alu"
                self._alu(index, instruction)
            case _:
                return
        self.counters[f"{kind}_instructions"] += 1

    def _load(self, index: int, load: isa.Load) -> None:
        scratchpad = self._scratchpad(isa.Memory(load.memory))
        if load.elements == 0:
            return
        _require(load.sram_base + load.elements <= scratchpad.memory.depth)
        rows = load.y_pad_0 + load.y_size + load.y_pad_1
        target = scratchpad.memory
        block = np.full(
            (rows, load.row_elements, target.rows, target.columns),
            self._padding_scalar(load),
            scratchpad.tiles.dtype,
        )
        if load.y_size:
            geometry = self.config.memory(isa.Memory(load.memory))
            data = self._rows_in_memory(load, geometry)
            self._report_transfer(index, load, geometry)
            last_row, last_column = load.y_pad_0 + load.y_size, load.x_pad_0 + load.x_size
            block[load.y_pad_0 : last_row, load.x_pad_0 : last_column] = unpack_tiles(
                data, geometry
            )
            name = isa.counted_as(isa.Memory(load.memory)).name.lower()
            self.counters[f"{name}_elements"] += load.x_size * load.y_size
        written = slice(load.sram_base, load.sram_base + load.elements)
        scratchpad.tiles[written] = block.reshape(-1, target.rows, target.columns)
        for observer in self.observers:
            observer.write(index, target.name, np.arange(written.start, written.stop))

    def _padding_scalar(self, load: isa.Load) -> int:
        """The padding value, truncated to the width of the scratchpad's scalars."""
        padding = isa.padding_of(isa.Memory(load.memory))
        if padding is None:
            return 0
        sign = 1 << self._scratchpad(isa.Memory(load.memory)).memory.scalar_width - 1
        return (self._padding[padding] & 2 * sign - 1 ^ sign) - sign

    def _store(self, index: int, store: isa.Store) -> None:
        if store.elements == 0:
            return
        _require(store.sram_base + store.elements <= self.config.acc.depth)
        rows = self._rows_in_memory(store, self.config.out)
        read = slice(store.sram_base, store.sram_base + store.elements)
        for observer in self.observers:
            observer.read(index, "ACC", np.arange(read.start, read.stop))
        self._report_transfer(index, store, self.config.out)
        data = pack_tiles(self.acc.tiles[read], self.config.out).reshape(rows.shape)
        # In order, since rows may overlap.
        for row, values in zip(rows, data, strict=True):
            row[:] = values
        self.counters["out_elements"] += store.elements

    def _forward(self, index: int, forward: isa.Forward) -> None:
        if forward.elements == 0:
            return
        _require(forward.sram_base + forward.elements <= self.config.inp.depth)
        written = np.arange(forward.elements) + forward.sram_base
        target = self.config.inp
        sign = 1 << target.scalar_width - 1
        rows = forward.y_pad_0 + forward.y_size + forward.y_pad_1
        block = np.full(
            (rows, forward.row_elements, target.rows, target.columns),
            (forward.padding & 2 * sign - 1 ^ sign) - sign,
            self.inp.tiles.dtype,
        )
        if forward.y_size:
            _require(forward.source_end <= self.config.acc.depth)
            first = forward.source + np.arange(forward.y_size)[:, np.newaxis] * forward.x_stride
            read = first + np.arange(forward.x_size)
            for observer in self.observers:
                observer.read(index, "ACC", read.reshape(-1))
            data = pack_tiles(self.acc.tiles[read.reshape(-1)], self.config.out)
            last_row = forward.y_pad_0 + forward.y_size
            last_column = forward.x_pad_0 + forward.x_size
            block[forward.y_pad_0 : last_row, forward.x_pad_0 : last_column] = unpack_tiles(
                data.reshape(*read.shape, target.element_bytes), target
            )
        self.inp.tiles[written] = block.reshape(-1, target.rows, target.columns)
        for observer in self.observers:
            observer.write(index, target.name, written)

    def _gemm(self, index: int, instruction: isa.Gemm) -> None:
        if instruction.uops == 0:
            return
        dst, src, wgt = self._uops(index, instruction)
        self._check_range(instruction, dst, "dst", self.acc)
        taps = self.config.taps if isinstance(instruction, isa.Depthwise) else 1
        if not instruction.reset:
            self._check_range(instruction, src, "src", self.inp, taps)
            self._check_range(instruction, wgt, "wgt", self.wgt)
        for offset in self._offsets(instruction, dst.size):
            targets = offset("dst", dst)
            if instruction.reset:
                self._report_uops(index, targets)
                self.acc.tiles[targets] = 0
            else:
                inputs, weights = offset("src", src), offset("wgt", wgt)
                read = {} if instruction.overwrites else {"ACC": targets}
                if isinstance(instruction, isa.Depthwise):
                    inputs = inputs[:, np.newaxis] + np.arange(taps)
                self._report_uops(index, targets, **read, INP=inputs.reshape(-1), WGT=weights)
                compute = multiply if instruction.overwrites else gemm
                compute(self.acc.tiles, targets, self.inp.tiles[inputs], self.wgt.tiles[weights])
                self.counters["gemm_uops"] += targets.size

    def _alu(self, index: int, instruction: isa.Alu) -> None:
        if instruction.uops == 0:
            return
        operation = isa.AluOp(instruction.alu_opcode)
        read_at_once = self.config.alu_sources(operation)
        dst, src, _ = self._uops(index, instruction)
        self._check_range(instruction, dst, "dst", self.acc)
        if not instruction.use_immediate:
            self._check_range(instruction, src, "src", self.acc, read_at_once)
        factor = instruction.factor
        if factor is not None:
            _require(factor < self.config.acc.depth)
        for offset in self._offsets(instruction, dst.size):
            targets = offset("dst", dst)
            self.counters["alu_uops"] += targets.size
            sources = None if instruction.use_immediate else offset("src", src)
            # Each micro-op reads its destination before writing it, so observers see reads before
            # writes. A product with 0 does not depend on the destination.
            clears = operation is isa.AluOp.MUL and sources is None and instruction.immediate == 0
            read = [targets[:0] if clears else targets]
            if sources is not None:
                read += [sources + at for at in range(read_at_once)]
            if factor is not None:
                read.append(np.array([factor]))
            self._report_uops(index, targets, ACC=np.concatenate(read))
            if operation in isa.BASE_ALU_OPS:
                alu(self.acc.tiles, operation, targets, sources, instruction.immediate)
                continue
            assert sources is not None
            # An instruction of MULTIPLY_ADD may write its own sources, but not its factor.
            kept = read[1:] if factor is None else read[2:]
            for observer in self.observers:
                observer.keep(index, np.concatenate(kept))
            if factor is not None:
                multiply_add(self.acc.tiles, targets, sources, factor)
                continue
            if operation is isa.AluOp.REQUANTIZE:
                twice = bool(self.config.round_twice)
                requantize(self.acc.tiles, targets, sources, rounds_twice=twice)
            else:
                look_up(self.acc.tiles, targets, sources)

    def _scratchpad(self, memory: isa.Memory) -> Scratchpad:
        match isa.filled_by(memory):
            case isa.Memory.UOP:
                return self.uop
            case isa.Memory.INP:
                return self.inp
            case isa.Memory.WGT:
                return self.wgt
        return self.acc

    def _rows_in_memory(self, transfer: isa.Load | isa.Store, geometry: TileMemory) -> Bytes:
        """A view (y_size, x_size, element_bytes) of memory; its rows may overlap."""
        size = geometry.element_bytes
        first, end = (at * size - self.origin for at in (transfer.dram_base, end_in_dram(transfer)))
        if first < 0 or end > self.memory.size or leaves_bounds(transfer, self.limits):
            raise ExecutionFault(isa.Cause.BUS_ERROR)
        return np.lib.stride_tricks.as_strided(
            self.memory[first:],
            (transfer.y_size, transfer.x_size, size),
            (transfer.x_stride * size, size, 1),
        )

    def _uops(
        self, index: int, instruction: isa.Gemm | isa.Alu
    ) -> tuple[Indices, Indices, Indices]:
        """Fields dst, src and wgt of the instruction's micro-ops."""
        _require(instruction.uop_end <= self.config.uop.depth)
        selected = np.arange(instruction.uop_begin, instruction.uop_end)
        for observer in self.observers:
            observer.read(index, "UOP", selected)
        bits = self.uop.tiles[selected, 0, 0].astype(np.int64)
        layout = isa.instruction_set(self.config).uop_layout
        dst, src, wgt = (
            bits >> layout[name].offset & (1 << layout[name].width) - 1
            for name in ("dst", "src", "wgt")
        )
        return dst, src, wgt

    def _check_range(
        self,
        instruction: isa.Gemm | isa.Alu,
        fields: Indices,
        name: str,
        scratchpad: Scratchpad,
        elements: int = 1,
    ) -> None:
        """Raise `ExecutionFault` if one of ``elements`` consecutive elements exceeds the depth."""
        # Factors are not negative, so the last iteration has the highest indices.
        furthest = (
            int(fields.max())
            + (elements - 1)
            + (instruction.iter_out - 1) * getattr(instruction, f"{name}_factor_out")
            + (instruction.iter_in - 1) * getattr(instruction, f"{name}_factor_in")
        )
        _require(furthest < scratchpad.memory.depth)

    def _offsets(self, instruction: isa.Gemm | isa.Alu, uops: int) -> Iterator[_Offset]:
        """Iterations of both loops, in order and in chunks."""
        step = max(1, _CHUNK // uops)
        for start in range(0, instruction.iter_out * instruction.iter_in, step):
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise ExecutionFault(isa.Cause.TIMEOUT)
            end = min(start + step, instruction.iter_out * instruction.iter_in)
            outer, inner = np.divmod(np.arange(start, end), instruction.iter_in)
            yield _Offset(instruction, outer, inner)

    def _report_uops(self, index: int, written: Indices, **read: Indices) -> None:
        for observer in self.observers:
            for memory, elements in read.items():
                observer.read(index, memory, elements)
            observer.write(index, "ACC", written)

    def _report_partial_writes(self, index: int, instruction: isa.Instruction) -> None:
        """Report the writes that a faulty instruction would have made: another device may have made
        any part of them before it detected the fault.
        """
        if not self.observers:
            return
        if isinstance(instruction, isa.Load | isa.Store) and leaves_bounds(
            instruction, self.limits
        ):
            return
        memory, elements = "ACC", np.empty(0, np.int64)
        match instruction:
            case isa.Load():
                scratchpad = self._scratchpad(isa.Memory(instruction.memory)).memory
                if instruction.sram_base + instruction.elements <= scratchpad.depth:
                    memory = scratchpad.name
                    elements = np.arange(instruction.elements) + instruction.sram_base
            case isa.Forward() if (
                instruction.sram_base + instruction.elements <= self.config.inp.depth
            ):
                memory, elements = "INP", np.arange(instruction.elements) + instruction.sram_base
            case isa.Store() if instruction.elements <= self.config.acc.depth:
                memory, elements = "DRAM", self._transferred_bytes(instruction, self.config.out)
                elements = elements[(elements >= 0) & (elements < self.memory.size)]
            case isa.Gemm() | isa.Alu() if instruction.uop_begin < self.config.uop.depth:
                end = min(instruction.uop_end, self.config.uop.depth)
                dst, _, _ = self._uops(index, replace(instruction, uop_end=end))
                for offset in self._offsets(instruction, dst.size):
                    elements = np.union1d(elements, offset("dst", dst))
                elements = elements[elements < self.config.acc.depth]
        for observer in self.observers:
            observer.write(index, memory, elements)

    def _transferred_bytes(self, transfer: isa.Load | isa.Store, geometry: TileMemory) -> Indices:
        """Bytes of memory that a transfer reads or writes, in order."""
        size = geometry.element_bytes
        rows = (transfer.dram_base + np.arange(transfer.y_size) * transfer.x_stride) * size
        first = rows[:, np.newaxis] - self.origin
        return (first + np.arange(transfer.x_size * size)).reshape(-1)

    def _report_transfer(
        self, index: int, transfer: isa.Load | isa.Store, geometry: TileMemory
    ) -> None:
        if not self.observers:
            return
        transferred = self._transferred_bytes(transfer, geometry)
        for observer in self.observers:
            if isinstance(transfer, isa.Load):
                observer.read(index, "DRAM", transferred)
            else:
                observer.write(index, "DRAM", transferred)


@dataclass(frozen=True)
class _Offset:
    """A chunk of iterations of the two loops around the micro-ops."""

    instruction: isa.Gemm | isa.Alu
    outer: Indices
    inner: Indices

    def __call__(self, name: str, fields: Indices) -> Indices:
        """Index of each micro-op in each iteration, in execution order."""
        offset = self.outer * getattr(
            self.instruction, f"{name}_factor_out"
        ) + self.inner * getattr(self.instruction, f"{name}_factor_in")
        return (offset[:, np.newaxis] + fields).reshape(-1)


def leaves_bounds(transfer: isa.Load | isa.Store, limits: Limits) -> bool:
    """Whether ``transfer`` would access an element at or beyond the limit of its memory."""
    limit = limit_of(limits, isa.Memory(transfer.memory))
    accesses = transfer.x_size > 0 and transfer.y_size > 0
    return accesses and 0 < limit < end_in_dram(transfer)


def _require(in_range: bool) -> None:
    if not in_range:
        raise ExecutionFault(isa.Cause.INDEX_OUT_OF_RANGE)
