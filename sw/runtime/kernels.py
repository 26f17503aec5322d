"""Micro-op kernels: GEMM and ALU instructions from loops and micro-ops.

A kernel is the content of one `push_gemm` or `push_alu`: up to two loops around a list of micro-
ops. It becomes one instruction, or several where the loops exceed their fields or the micro-ops
exceed the micro-op buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

Indices = int | npt.NDArray[np.integer]
_ITERATIONS = (1 << isa.ITERATION_WIDTH) - 1
_LOADED_AT_ONCE = (1 << isa.SIZE_WIDTH) - 1
_IMMEDIATES = range(-1 << isa.IMMEDIATE_WIDTH - 1, 1 << isa.IMMEDIATE_WIDTH - 1)


class CommandError(ValueError):
    """The machine cannot execute a runtime call; the message says why."""


class UopMode(IntEnum):
    """The unit that executes a kernel; values as in VTA's published runtime calls."""

    GEMM = 0
    ALU = 1


@dataclass(frozen=True)
class Piece:
    """One instruction: its bits without the micro-op range, and its micro-ops (uint32)."""

    bits: int
    uops: npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Loop:
    """``extent`` iterations, each moving the indices (dst, src, wgt) by ``factors``."""

    extent: int
    factors: tuple[int, int, int]


@dataclass(frozen=True)
class KernelOperation:
    """The operation that all micro-ops of a kernel share.

    With ``overwrite``, GEMM micro-ops overwrite accumulators instead of adding to them; those of a
    ``depthwise`` kernel multiply several taps of each channel. ``independent`` claims that the
    kernel touches no accumulator used by the other unit's instructions in flight.
    """

    mode: UopMode
    reset: int = 0
    alu_opcode: int = 0
    use_immediate: int = 0
    immediate: int = 0
    overwrite: int = 0
    independent: int = 0
    depthwise: int = 0


@dataclass
class KernelBuilder:
    """Records the runtime calls of one kernel; `pieces` compiles them to instructions."""

    config: Config
    mode: UopMode
    operation: KernelOperation | None = None
    loops: list[Loop] = field(default_factory=list)
    open_loops: int = 0
    dst: list[int] = field(default_factory=list)
    src: list[int] = field(default_factory=list)
    wgt: list[int] = field(default_factory=list)

    def loop_begin(self, extent: int, dst: int, src: int, wgt: int) -> None:
        if self.dst or self.open_loops < len(self.loops):
            raise CommandError("the loops of a micro-op kernel must enclose all its micro-ops")
        if len(self.loops) == 2:
            raise CommandError("a micro-op kernel has at most two loops; unroll the others")
        if min(extent, dst, src, wgt) < 0:
            raise CommandError(
                f"a loop of {extent} iterations with factors {dst}, {src}, {wgt}: none can be "
                "negative"
            )
        self.loops.append(Loop(int(extent), (int(dst), int(src), int(wgt))))
        self.open_loops += 1

    def loop_end(self) -> None:
        if not self.open_loops:
            raise CommandError("uop_loop_end without uop_loop_begin")
        self.open_loops -= 1

    def push(self, operation: KernelOperation, dst: Indices, src: Indices, wgt: Indices) -> None:
        if operation != self.operation:
            self._begin(operation)
        if self.open_loops < len(self.loops):
            raise CommandError("a micro-op after the end of a loop; all must be in the innermost")
        if isinstance(dst, int) and isinstance(src, int) and isinstance(wgt, int):
            self.dst.append(dst)
            self.src.append(src)
            self.wgt.append(wgt)
        else:
            arrays = tuple(np.atleast_1d(item) for item in (dst, src, wgt))
            if len({array.shape for array in arrays}) > 1:
                arrays = np.broadcast_arrays(*arrays)
            for indices, array in zip((self.dst, self.src, self.wgt), arrays, strict=True):
                indices.extend(array.tolist())

    def _alu_opcodes(self) -> tuple[isa.AluOp, ...]:
        return isa.BASE_ALU_OPS + isa.extended_alu_ops(self.config.extensions)

    def _begin(self, operation: KernelOperation) -> None:
        if operation.mode != self.mode:
            kernel = f"push_{self.mode.name.lower()}"
            raise CommandError(f"uop_push of mode {operation.mode.name} in a kernel of {kernel}")
        if self.operation is not None:
            raise CommandError(
                f"a kernel with two operations, {self.operation} and {operation}; all micro-ops "
                f"of a kernel have the same operation"
            )
        if operation.mode is UopMode.ALU and operation.alu_opcode not in self._alu_opcodes():
            raise CommandError(f"{operation.alu_opcode} is not an ALU opcode")
        for name, extension in (
            ("depthwise", "depthwise"),
            ("overwrite", "depthwise" if operation.depthwise else "overwrite"),
            ("independent", "overlap"),
        ):
            if getattr(operation, name) and extension not in self.config.extensions:
                raise CommandError(f"{name} needs a machine with the extension {extension}")
        if operation.overwrite and (operation.mode is UopMode.ALU or operation.reset):
            raise CommandError("overwrite is for GEMM micro-ops without reset")
        if operation.depthwise and (operation.mode is UopMode.ALU or operation.reset):
            raise CommandError("depthwise is for GEMM micro-ops without reset")
        if operation.use_immediate and operation.alu_opcode not in isa.BASE_ALU_OPS:
            raise CommandError(f"{isa.AluOp(operation.alu_opcode).name} has no immediate")
        if operation.use_immediate and operation.immediate not in _IMMEDIATES:
            raise CommandError(
                f"immediate {operation.immediate} is not within {_IMMEDIATES.start} to "
                f"{_IMMEDIATES.stop - 1}, the {isa.IMMEDIATE_WIDTH} bits of an ALU instruction"
            )
        self.operation = operation

    def pieces(self) -> list[Piece]:
        """The instructions in order; empty if there is nothing to do."""
        if self.open_loops:
            raise CommandError(f"{self.open_loops} uop_loop_begin without uop_loop_end")
        if self.operation is None or not self.dst or any(not loop.extent for loop in self.loops):
            return []
        operation = self._with_factor(self.operation)
        uops = np.array([self.dst, self.src, self.wgt], np.int64)
        # Unused indices are cleared, so that kernels that differ only in these are deduplicated.
        used = np.array(
            [1, operation.mode is UopMode.ALU and not operation.use_immediate, 0]
            if operation.mode is UopMode.ALU or operation.reset
            else [1, 1, 1]
        )
        uops *= used[:, None]
        loops = [Loop(loop.extent, _masked(loop.factors, used)) for loop in self.loops]
        self._check_range(uops, loops, used)
        instructions = isa.instruction_set(self.config)
        return [
            Piece(_encoded(instructions, operation, tuple(rest)), self._encode_uops(part))
            for part, rest in self._split(uops, loops)
        ]

    def _with_factor(self, operation: KernelOperation) -> KernelOperation:
        """``operation``; for a MULTIPLY_ADD, with the accumulators that ``wgt`` selects as its
        factor.
        """
        if operation.mode is UopMode.GEMM or operation.alu_opcode != isa.AluOp.MULTIPLY_ADD:
            return operation
        first = self.wgt[0]
        if any(index != first for index in self.wgt) or any(loop.factors[2] for loop in self.loops):
            raise CommandError("the micro-ops of a MULTIPLY_ADD must have the same factor, wgt")
        if not 0 <= first < self.config.acc.depth:
            raise CommandError(
                f"a micro-op kernel multiplies by ACC {first}; the scratchpad has 0 to "
                f"{self.config.acc.depth - 1}"
            )
        return replace(operation, immediate=isa.factor_immediate(first))

    def _check_range(
        self, uops: npt.NDArray[np.int64], loops: list[Loop], used: npt.NDArray[np.int_]
    ) -> None:
        source = self.config.acc if self.mode is UopMode.ALU else self.config.inp
        memories = (self.config.acc, source, self.config.wgt)
        for row, memory in enumerate(memories):
            if used[row]:
                reach = sum((loop.extent - 1) * loop.factors[row] for loop in loops)
                if row == 1 and self.mode is UopMode.ALU:
                    assert self.operation is not None
                    operation = isa.AluOp(self.operation.alu_opcode)
                    reach += self.config.alu_sources(operation) - 1
                elif row == 1 and self.operation is not None and self.operation.depthwise:
                    reach += self.config.taps - 1
                low, high = int(uops[row].min()), int(uops[row].max()) + reach
                if low < 0 or high >= memory.depth:
                    raise CommandError(
                        f"a micro-op kernel reaches {memory.name} {low} to {high}; the scratchpad "
                        f"has 0 to {memory.depth - 1}"
                    )

    def _split(
        self, uops: npt.NDArray[np.int64], loops: list[Loop]
    ) -> Iterator[tuple[npt.NDArray[np.int64], list[Loop]]]:
        """Split a kernel into micro-ops and loops of instructions with the same effect.

        Micro-ops are reordered only where that has no effect: accumulators that are added to,
        reset, or combined with an immediate do not depend on other accumulators that the kernel
        writes. ALU operations on two accumulators, and overwriting micro-ops, keep their order.
        """
        most = min(self.config.uop.depth, _LOADED_AT_ONCE)
        if not loops:
            for at in range(0, uops.shape[1], most):
                yield uops[:, at : at + most], []
            return
        outer, inner = loops[0], loops[1:]
        assert self.operation is not None
        combines = self.mode is UopMode.ALU and not self.operation.use_immediate
        ordered = self.operation.overwrite or combines
        factors = np.array(outer.factors)[:, None]
        if ordered and (uops.shape[1] > most or any(item.extent > _ITERATIONS for item in inner)):
            for iteration in range(outer.extent):
                yield from self._split(uops + iteration * factors, inner)
            return
        for at in range(0, outer.extent, _ITERATIONS):
            extent = min(_ITERATIONS, outer.extent - at)
            for part, rest in self._split(uops + at * factors, inner):
                yield part, [Loop(extent, outer.factors), *rest]

    def _encode_uops(self, uops: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        layout = isa.instruction_set(self.config).uop_layout
        dst, src, wgt = (
            row << layout[name].offset
            for row, name in zip(uops, ("dst", "src", "wgt"), strict=True)
        )
        return (dst | src | wgt).astype(np.uint32)


@lru_cache(1 << 14)
def _encoded(
    instructions: isa.InstructionSet, operation: KernelOperation, loops: tuple[Loop, ...]
) -> int:
    """The bits of an instruction without the micro-op range; cached, since most kernels differ only
    in that range.
    """
    # Absent or unit loops are encoded as extent 1, factor 0.
    once = Loop(1, (0, 0, 0))
    real = [loop if loop.extent > 1 else once for loop in loops]
    outer, inner = [once] * (2 - len(real)) + real
    common = {
        "uop_end": 0,
        "iter_out": outer.extent,
        "iter_in": inner.extent,
        "dst_factor_out": outer.factors[0],
        "dst_factor_in": inner.factors[0],
        "src_factor_out": outer.factors[1],
        "src_factor_in": inner.factors[1],
        "independent": operation.independent,
    }
    instruction: isa.Instruction
    if operation.mode is UopMode.ALU:
        instruction = isa.Alu(
            **common,
            alu_opcode=operation.alu_opcode,
            use_immediate=operation.use_immediate,
            immediate=operation.immediate,
        )
    else:
        common |= {"wgt_factor_out": outer.factors[2], "wgt_factor_in": inner.factors[2]}
        if operation.depthwise:
            instruction = isa.Depthwise(**common, overwrite=operation.overwrite)
        else:
            kind = isa.Multiply if operation.overwrite else isa.Gemm
            instruction = kind(**common, reset=operation.reset)
    return instructions.encode(instruction)


def _masked(factors: tuple[int, int, int], used: npt.NDArray[np.int_]) -> tuple[int, int, int]:
    dst, src, wgt = (factor if keep else 0 for factor, keep in zip(factors, used, strict=True))
    return dst, src, wgt
