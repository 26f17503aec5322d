"""Generates the host code of a lowered loop nest: Python that calls the runtime.

Loops, sizes and indices are evaluated when the code runs; each GEMM or ALU instruction is a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import repeat
from math import prod
from types import CodeType
from typing import Any

import numpy as np

from amaranth_vta.hw.isa import Memory, Module
from amaranth_vta.sw.compiler.nest.ir import (
    Allocate,
    Dma,
    For,
    Kernel,
    LoopNest,
    LoweringError,
    NestBuffer,
    Seq,
    Stmt,
    Token,
    WaitForAlu,
)
from amaranth_vta.sw.compiler.nest.printer import Names
from amaranth_vta.sw.compiler.te.expr import (
    Affine,
    AllOf,
    AnyOf,
    Binary,
    Compare,
    Const,
    Expr,
    Select,
    Var,
)

from .issued import first_turn, issued_by
from .uop_kernel import RuntimeCalls, UopKernel


class HostCode:
    """The host code of a loop nest: ``source`` as text, and the kernels that it issues.

    Raises `LoweringError` for a nest that is not fully lowered.
    """

    def __init__(self, nest: LoopNest, marks: bool = False) -> None:
        self.nest = nest
        # If set, the code calls `at` with the number of each machine statement before the
        # statement.
        self.marks = marks
        self.kernels: list[UopKernel] = []
        # The machine statements, each with the loops around it.
        self.statements: list[tuple[Dma | Kernel, tuple[For, ...]]] = []
        # The first turn of the rolling buffers allocated around the current statement.
        self._turns: dict[NestBuffer, Affine] = {}
        self._name = Names(
            ["rt", "min", "max", "range", *Memory.__members__, *Module.__members__]
        ).of
        self._lines: list[str] = []
        args = [self._name(arg, arg.name) for arg in nest.args]
        self.name = self._name(nest, nest.name)
        self._lines.append(f"def {self.name}({', '.join(['rt', *args])}):")
        self._write(nest.body, ())
        if len(self._lines) == 1:
            self._lines.append("    pass")
        self.source = "\n".join(self._lines) + "\n"

    def compile(self, issue: Callable[[UopKernel], Any]) -> Callable[..., None]:
        """Compile to a Python function of a runtime and the arguments' buffers. For each
        instruction it calls ``issue(kernel)`` with the runtime and the first elements of dst, src
        and wgt.
        """
        names: dict[str, Any] = {**Memory.__members__, **Module.__members__}
        for kernel in self.kernels:
            names[self._name(kernel, "")] = issue(kernel)
        exec(self._compiled, names)
        return names[self.name]

    @cached_property
    def _compiled(self) -> CodeType:
        return compile(self.source, f"<{self.name}>", "exec")

    def _line(self, depth: int, text: str) -> None:
        self._lines.append("    " * (depth + 1) + text)

    def _write(self, stmt: Stmt, loops: tuple[For, ...]) -> None:
        depth = len(loops)
        match stmt:
            case Seq():
                for part in stmt.body:
                    self._write(part, loops)
            case For():
                self._line(
                    depth, f"for {self._name(stmt.var, stmt.var.name)} in range({stmt.extent}):"
                )
                before = len(self._lines)
                self._write(stmt.body, (*loops, stmt))
                if len(self._lines) == before:
                    self._line(depth + 1, "pass")
            case Allocate():
                self._line(
                    depth,
                    f"{self._name(stmt.buffer, stmt.buffer.name)} = {self._base(stmt, loops)}",
                )
                self._write(stmt.body, loops)
            case Dma():
                self._mark(stmt, loops)
                self._line(depth, self._dma(stmt))
            case Kernel():
                self._mark(stmt, loops)
                self._line(depth, self._kernel(stmt))
            case WaitForAlu():
                self._line(depth, "rt.wait_for_alu()")
            case Token():
                call = f"rt.dep_{stmt.action}({stmt.source.name}, {stmt.target.name})"
                if stmt.when is not None:
                    self._line(depth, f"if {self._expr(stmt.when)}:")
                    call = "    " + call
                self._line(depth, call)
            case _:
                raise LoweringError(f"{type(stmt).__name__} is not an instruction of the machine")

    def _mark(self, stmt: Dma | Kernel, loops: tuple[For, ...]) -> None:
        if self.marks:
            self._line(len(loops), f"rt.at({len(self.statements)})")
        self.statements.append((stmt, loops))

    def _base(self, stmt: Allocate, loops: tuple[For, ...]) -> str:
        buffer = stmt.buffer
        assert buffer.base is not None
        turn = first_turn(buffer, loops)
        if buffer.rolling:
            self._turns[buffer] = turn
            return str(tuple(map(buffer.copy_begins, range(buffer.places))))
        if buffer.copies == 1 or not loops:
            return str(buffer.base)
        copy = f"({self._expr(turn)}) % {buffer.copies}"
        if buffer.pair:
            return f"{tuple(map(buffer.copy_begins, range(buffer.copies)))}[{copy}]"
        return f"{buffer.base} + {buffer.pitch} * ({copy})"

    def _dma(self, stmt: Dma) -> str:
        sram, pads = self._element(stmt.sram, stmt.index), self._pads(stmt)
        shape = f"{self._expr(stmt.x_size)}, {self._expr(stmt.y_size)}, {stmt.x_stride}"
        pad_value = f", pad_value={stmt.pad_value}" if stmt.pad_value else ""
        if stmt.forwards:
            source = self._element(stmt.dram, stmt.offset)
            return f"rt.forward_buffer_2d({source}, {shape}, {pads}, sram_index={sram}{pad_value})"
        dram, offset = self._name(stmt.dram, stmt.dram.name), self._expr(stmt.offset)
        if not stmt.is_load:
            return f"rt.store_buffer_2d({sram}, {dram}, {offset}, {shape})"
        return (
            f"rt.load_buffer_2d({dram}, {offset}, {shape}, {pads}, "
            f"sram_index={sram}, memory={stmt.memory.name}{pad_value})"
        )

    def _pads(self, stmt: Dma) -> str:
        pads = (stmt.x_pad[0], stmt.y_pad[0], stmt.x_pad[1], stmt.y_pad[1])
        return ", ".join(map(self._expr, pads))

    def _kernel(self, stmt: Kernel) -> str:
        inner = {loop.var: Affine({}) for loop in stmt.unrolled}
        operands = stmt.uop.operands()
        starts = [
            self._element(operands[name].buffer, operands[name].index.replace(inner))
            if name in operands
            else "0"
            for name in ("dst", "src", "wgt")
        ]
        kernel = UopKernel(stmt)
        name = self._name(kernel, f"kernel_{len(self.kernels)}")
        self.kernels.append(kernel)
        return f"{name}(rt, {', '.join(starts)})"

    def _element(self, buffer: NestBuffer, index: Expr) -> str:
        name = self._name(buffer, buffer.name)
        if buffer.rolling:
            form = Affine.of(index)
            assert form is not None
            turn, index = _divided(form, buffer.copy_elements)
            if buffer.turns % buffer.places:
                turn = turn.plus(self._turns[buffer])
            name = f"{name}[({self._expr(turn)}) % {buffer.places}]"
        text = self._expr(index)
        return name if text == "0" else f"{name} + {text}"

    def _expr(self, value: Expr) -> str:
        match value:
            case Const():
                return str(value.value)
            case Var():
                return self._name(value, value.name)
            case Affine():
                named = {Var(self._name(v, v.name)): f for v, f in value.terms.items()}
                return str(Affine(named, value.const))
            case Binary() if value.op in ("min", "max"):
                return f"{value.op}({self._expr(value.left)}, {self._expr(value.right)})"
            case Binary() | Compare():
                return f"({self._expr(value.left)}) {value.op} ({self._expr(value.right)})"
            case AllOf() | AnyOf():
                joint = " and " if isinstance(value, AllOf) else " or "
                return "(" + joint.join(map(self._expr, value.conditions)) + ")"
            case Select():
                condition, true, false = map(self._expr, (value.condition, value.true, value.false))
                return f"({true} if {condition} else {false})"
        raise LoweringError(f"{value} cannot be computed on the host")


def _divided(form: Affine, by: int) -> tuple[Affine, Affine]:
    """Split element ``form`` of a rolling buffer, whose copies have ``by`` elements, into the turn
    and the element within the copy. Loops over turns step by whole copies.
    """
    whole = {var: factor // by for var, factor in form.terms.items() if not factor % by}
    turn = Affine(whole, form.const // by)
    return turn, form.plus(turn, -by)


class KernelLoader:
    """Loads the micro-ops of all kernels that the host code issues, before the first is used."""

    def __init__(self, code: HostCode) -> None:
        kernels = iter(code.kernels)
        first: dict[tuple[UopKernel, int, int, int], int] = {}
        for issued in issued_by(code.nest):
            if isinstance(issued.statement, Kernel):
                starts = [starts.tolist() for starts in issued.starts(issued.statement)]
                for call in zip(repeat(next(kernels)), *starts, issued.numbers.tolist()):
                    first.setdefault(call[:4], call[4])
        self._issued = sorted(first, key=first.__getitem__)

    def __call__(self, runtime: RuntimeCalls) -> None:
        runtime.load_kernels(
            (kernel.mode, *kernel.call(runtime, *start)) for kernel, *start in self._issued
        )


def issue_to_runtime(kernel: UopKernel) -> Callable[..., None]:
    """The ``issue`` argument of `HostCode.compile` that issues kernels to the runtime."""
    return kernel.issue


def argument_bytes(shape: Sequence[int], dtype: str) -> int:
    """Bytes of an argument's buffer; four-bit elements are packed two per byte."""
    bits = {"int4": 4, "uint4": 4}.get(dtype) or np.dtype(dtype).itemsize * 8
    return -(-prod(shape) * bits // 8)
