"""Interprets loop nests after any pass, element by element, to check the passes.

Each pass must preserve the results of a nest. The interpreter is written for clarity; only
expressions, which are evaluated often, are compiled to closures.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import AluOp
from amaranth_vta.sw.compiler.te.dtypes import fold, wrap
from amaranth_vta.sw.compiler.te.expr import (
    Access,
    Affine,
    AllOf,
    AnyOf,
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    Lookup,
    Requantize,
    Select,
    Var,
)
from amaranth_vta.sw.compiler.te.requantization import requantized
from amaranth_vta.sw.compiler.te.tables import looked_up

from .ir import (
    Allocate,
    Assign,
    Dma,
    Element,
    For,
    Kernel,
    LoopNest,
    NestBuffer,
    NestUop,
    Region,
    Seq,
    Stmt,
    Token,
    WaitForAlu,
    walk,
)
from .scopes import scope_dtype, scratchpad, tile_scalars

_ALU = {
    AluOp.ADD: "+",
    AluOp.MUL: "*",
    AluOp.SHR: ">>",
    AluOp.MIN: "min",
    AluOp.MAX: "max",
    # Only the addition; the multiplication comes first.
    AluOp.MULTIPLY_ADD: "+",
}

_COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


# The scalars of a buffer, and an index into them.
_Place = tuple[list[Any], int]


class InterpretError(ValueError):
    """A statement reads uninitialized elements or out of bounds."""


def interpret(nest: LoopNest, config: Config, arrays: Sequence[npt.NDArray[Any]]) -> None:
    """Run ``nest`` on ``arrays``, one per argument, and write the outputs into them.

    Raises `InterpretError`.
    """
    _Interpreter(config).run(nest, arrays)


class _Interpreter:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.vars: dict[Var, int] = {}
        # Per loop variable, the most iterations of its loops.
        self.extents: dict[Var, int] = {}
        # Per buffer, the list that holds its scalars (None where never written) and its first index
        # there.
        self.places: dict[NestBuffer, _Place] = {}
        self.scratchpads: dict[str, list[Any]] = {}
        # How often each allocation has been entered, which selects its copy.
        self.turns: dict[Allocate, int] = {}
        self.functions: dict[Expr, Callable[[], int]] = {}
        self.targets: dict[Assign, Callable[[], _Place]] = {}

    def run(self, nest: LoopNest, arrays: Sequence[npt.NDArray[Any]]) -> None:
        for buffer, array in zip(nest.args, arrays, strict=True):
            self.places[buffer] = (array.reshape(-1).tolist(), 0)
        for part in walk(nest.body):
            loops = part.unrolled if isinstance(part, Kernel) else (part,)
            for loop in loops:
                if isinstance(loop, For):
                    self.extents[loop.var] = max(loop.extent, self.extents.get(loop.var, 0))
        self.stmt(nest.body)
        for buffer, array in zip(nest.args, arrays, strict=True):
            array[...] = np.array(self.places[buffer][0], array.dtype).reshape(array.shape)

    def stmt(self, stmt: Stmt) -> None:
        match stmt:
            case Seq():
                for part in stmt.body:
                    self.stmt(part)
            case For():
                for iteration in range(stmt.extent):
                    self.vars[stmt.var] = iteration
                    self.stmt(stmt.body)
            case Allocate():
                self.places[stmt.buffer] = self.allocate(stmt)
                self.stmt(stmt.body)
            case Region():
                self.stmt(stmt.body)
            case Assign():
                if stmt not in self.targets:
                    self.targets[stmt] = self.element(stmt.buffer, stmt.indices)
                value = self.value(stmt.value)
                scalars, index = self.targets[stmt]()
                scalars[index] = value
            case Dma():
                self.dma(stmt)
            case NestUop():
                self.uop(stmt)
            case Kernel():
                self.kernel(stmt)
            case Token() | WaitForAlu():
                pass

    def allocate(self, stmt: Allocate) -> _Place:
        buffer = stmt.buffer
        if buffer.base is None:
            return [None] * buffer.scalars, 0
        depth, tile = scratchpad(self.config, buffer.scope).depth, self.tile(buffer)
        scalars = self.scratchpads.setdefault(buffer.scope, [None] * (depth * tile))
        if buffer.rolling:
            return scalars, 0
        turn = self.turns.get(stmt, 0)
        self.turns[stmt] = turn + 1
        return scalars, buffer.copy_begins(turn) * tile

    def tile(self, buffer: NestBuffer) -> int:
        return tile_scalars(self.config, buffer.scope)

    # Scalars.

    def value(self, value: Expr) -> int:
        return self.function(value)()

    def function(self, value: Expr) -> Callable[[], int]:
        """A callable that evaluates ``value`` with the current variables and buffer contents."""
        if value not in self.functions:
            self.functions[value] = self.evaluator(value)
        return self.functions[value]

    def evaluator(self, value: Expr) -> Callable[[], int]:
        match value:
            case Affine():
                return self.affine(value.const, list(value.terms.items()))
            case Var():
                return lambda: self.vars[value]
            case Const():
                constant = value.value
                return lambda: constant
            case Access():
                return self.access(value)
            case Cast():
                inner, dtype = self.function(value.value), value.dtype
                return lambda: wrap(inner(), dtype)
            case Select():
                parts = (value.condition, value.true, value.false)
                condition, true, false = map(self.function, parts)
                return lambda: true() if condition() else false()
            case Requantize():
                operands = [self.function(part) for part in (value.value, *value.parameters)]
                return lambda: _requantized(*[part() for part in operands])
            case Lookup():
                index, table = self.function(value.value), self.table(value)
                return lambda: int(looked_up(np.array(index()), table()))
            case AllOf():
                conditions = [self.function(part) for part in value.conditions]
                return lambda: int(all(part() for part in conditions))
            case AnyOf():
                conditions = [self.function(part) for part in value.conditions]
                return lambda: int(any(part() for part in conditions))
            case Binary():
                left, right = self.function(value.left), self.function(value.right)
                op, dtype = value.op, value.dtype
                return lambda: fold(op, left(), right(), dtype)
            case Compare():
                left, right = self.function(value.left), self.function(value.right)
                compare = _COMPARE[value.op]
                return lambda: int(compare(left(), right()))
        raise InterpretError(f"{value} has no value")

    def affine(self, const: int, terms: list[tuple[Var, int]]) -> Callable[[], int]:
        variables = self.vars
        match terms:  # almost all indices have at most two
            case []:
                return lambda: const
            case [(var, 1)] if not const:
                return lambda: variables[var]
            case [(var, factor)]:
                return lambda: const + factor * variables[var]
            case [(var, factor), (other, times)]:
                return lambda: const + factor * variables[var] + times * variables[other]

        def total() -> int:
            result = const
            for var, factor in terms:
                result += factor * variables[var]
            return result

        return total

    def access(self, value: Access) -> Callable[[], int]:
        element = self.element(value.source, value.indices)

        def scalar() -> int:
            scalars, index = element()
            if scalars[index] is None:
                raise InterpretError(f"{value} was never written, at {self.vars}")
            return int(scalars[index])

        return scalar

    def element(self, buffer: NestBuffer, indices: Sequence[Expr]) -> Callable[[], _Place]:
        """A callable that returns the scalars of ``buffer`` and the place at ``indices``."""
        places = self.places
        flat = self.flat_index(buffer, indices)
        if flat is not None:

            def within() -> _Place:
                scalars, begin = places[buffer]
                return scalars, begin + flat()

            return within
        functions = map(self.function, indices)
        dimensions = list(zip(functions, buffer.strides, buffer.shape, strict=True))

        def place() -> _Place:
            scalars, index = places[buffer]
            for function, stride, extent in dimensions:
                at = function()
                if not 0 <= at < extent:
                    raise InterpretError(f"index {at} of {buffer.name}{list(buffer.shape)}")
                index += at * stride
            return scalars, index

        return place

    def flat_index(self, buffer: NestBuffer, indices: Sequence[Expr]) -> Callable[[], int] | None:
        """A callable that returns the row-major position of ``indices``, which is faster than to
        check each index; None unless all are in bounds in every iteration.
        """
        total = Affine({})
        for index, stride, extent in zip(indices, buffer.strides, buffer.shape, strict=True):
            form = Affine.of(index)
            if form is None:
                return None
            last = [factor * (self.extents[var] - 1) for var, factor in form.terms.items()]
            low = form.const + sum(min(0, part) for part in last)
            high = form.const + sum(max(0, part) for part in last)
            if low < 0 or high >= extent:
                return None
            total = total.plus(form, stride)
        return self.affine(total.const, list(total.terms.items()))

    def table(self, value: Lookup) -> Callable[[], npt.NDArray[Any]]:
        """A callable that returns the scalars of the table tiles of ``value``."""
        size = tile_scalars(self.config, "acc")
        elements = []
        for part in value.parameters:
            assert isinstance(part, Access)
            elements.append(self.element(part.source, part.indices))

        def scalars() -> npt.NDArray[Any]:
            found: list[int] = []
            for element in elements:
                tiles, at = element()
                found += tiles[at - at % size :][:size]
            return np.array(found, value.dtype)

        return scalars

    # Tiles.

    def tiles(self, buffer: NestBuffer, index: int, tile: int) -> tuple[list[Any], slice]:
        scalars, begin = self.places[buffer]
        if buffer.rolling and buffer.base is not None:
            turn, within = divmod(index, buffer.copy_elements)
            index = buffer.copy_begins(turn) + within
        at = begin + index * tile
        if at < 0 or at + tile > len(scalars):
            raise InterpretError(f"element {index} of {buffer.name}{list(buffer.shape)}")
        return scalars, slice(at, at + tile)

    def dma(self, stmt: Dma) -> None:
        tile, at = self.tile(stmt.sram), self.value(stmt.index)
        x_size, y_size = self.value(stmt.x_size), self.value(stmt.y_size)
        x_before, x_after = map(self.value, stmt.x_pad)
        y_before, y_after = map(self.value, stmt.y_pad)
        offset = self.value(stmt.offset)
        low_bits = stmt.dram.dtype
        for y in range(-y_before, y_size + y_after):
            for x in range(-x_before, x_size + x_after):
                target, there = self.tiles(stmt.sram, at, tile)
                at += 1
                if not (0 <= y < y_size and 0 <= x < x_size):
                    target[there] = [stmt.pad_value] * tile
                    continue
                source, here = self.tiles(stmt.dram, offset + y * stmt.x_stride + x, tile)
                if stmt.is_load:
                    target[there] = source[here]
                elif stmt.forwards:
                    if None in source[here]:
                        raise InterpretError(f"{stmt.dram.name} is forwarded but was never written")
                    target[there] = [wrap(value, stmt.sram.dtype) for value in source[here]]
                elif None in target[there]:
                    raise InterpretError(f"{stmt.sram.name} is stored but was never written")
                else:
                    source[here] = [wrap(value, low_bits) for value in target[there]]

    def kernel(self, stmt: Kernel) -> None:
        extents = [loop.extent for loop in stmt.loops] + [loop.extent for loop in stmt.unrolled]
        for point in np.ndindex(*extents):
            for loop, value in zip(stmt.unrolled, point[len(stmt.loops) :], strict=True):
                self.vars[loop.var] = value
            added = {
                name: sum(
                    value * getattr(loop, name)
                    for loop, value in zip(stmt.loops, point, strict=False)
                )
                for name in ("dst", "src", "wgt")
            }
            self.uop(stmt.uop, added)

    def uop(self, uop: NestUop, added: dict[str, int] | None = None) -> None:
        added = added or {}
        dtype = scope_dtype(self.config, "acc")
        target, there = self.operand(uop.dst, added.get("dst", 0))
        if uop.reset or (uop.alu is AluOp.MUL and uop.immediate == 0):
            target[there] = [0] * self.tile(uop.dst.buffer)
            return
        old = [0] * self.tile(uop.dst.buffer)
        if not uop.overwrite:
            old = self.read(uop.dst, added.get("dst", 0))
        if uop.alu in (AluOp.REQUANTIZE, AluOp.LOOKUP):
            assert uop.src is not None
            tiles = [
                self.read(uop.src, added.get("src", 0) + at)
                for at in range(self.config.alu_sources(uop.alu))
            ]
            values, second = np.array(old, dtype), np.array(tiles, dtype)
            looks_up = uop.alu is AluOp.LOOKUP
            made = looked_up(values, second.ravel()) if looks_up else requantized(values, *second)
            target[there] = made.tolist()
            return
        if uop.alu is not None:
            right = [uop.immediate or 0] * len(old)
            if uop.src is not None:
                right = self.read(uop.src, added.get("src", 0))
            if uop.wgt is not None:
                factors = self.read(uop.wgt, added.get("wgt", 0))
                old = [fold("*", a, b, dtype) for a, b in zip(old, factors, strict=True)]
            target[there] = [
                fold(_ALU[uop.alu], a, b, dtype) for a, b in zip(old, right, strict=True)
            ]
            return
        assert uop.src is not None
        assert uop.wgt is not None
        shape = (self.config.batch, self.config.block_in)
        inp = np.array(self.read(uop.src, added.get("src", 0))).reshape(shape)
        wgt = np.array(self.read(uop.wgt, added.get("wgt", 0))).reshape(-1, shape[1])
        # (outputs, inputs, rows): the inputs that each output reads.
        taken = np.repeat(inp.T[np.newaxis], wgt.shape[0], axis=0)
        for tap in range(self.config.taps if uop.taps else 0):
            tile = self.read(uop.src, added.get("src", 0) + tap)
            pairs = np.array(tile).reshape(shape[0], -1, 2).transpose(1, 2, 0)
            own = np.arange(wgt.shape[0]) // 2 % len(pairs)
            taken[:, 2 * tap : 2 * tap + 2] = pairs[own]
        total = np.array(old).reshape(shape[0], -1) + np.einsum("oi,oib->bo", wgt, taken)
        target[there] = [wrap(value, dtype) for value in total.reshape(-1).tolist()]

    def operand(self, operand: Element, added: int) -> tuple[list[Any], slice]:
        index = self.value(operand.index) + added
        return self.tiles(operand.buffer, index, self.tile(operand.buffer))

    def read(self, operand: Element, added: int) -> list[Any]:
        scalars, here = self.operand(operand, added)
        if None in scalars[here]:
            raise InterpretError(f"{operand.buffer.name} is read but was never written")
        return scalars[here]


# The same scalars recur after each pass.
@lru_cache(1 << 16)
def _requantized(*operands: int) -> int:
    return int(requantized(*(np.array(operand, np.int32) for operand in operands)))
