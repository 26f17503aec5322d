"""Dependence tokens, from what each instruction reads and writes.

The instructions of the function are followed in program order. One that touches scratchpad
elements that a neighbouring module has used in a way that conflicts takes a token which that
module's latest such instruction gives, unless an earlier token has told it as much. Modules work
in order, so tokens are taken in the order in which they are given, and none is redundant. In
which iterations a statement gives or takes one is then told as a condition on its loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Memory, Module
from amaranth_vta.sw.compiler.emit import HostCode, UopKernel
from amaranth_vta.sw.compiler.expr import Affine, AllOf, AnyOf, Binary, Compare, Const, Expr, Var
from amaranth_vta.sw.compiler.ir import (
    Dma,
    For,
    Function,
    Kernel,
    LoweringError,
    Stmt,
    Token,
    rebuild,
    seq,
    walk,
)
from amaranth_vta.sw.compiler.machine import scratchpad

Flags = npt.NDArray[np.bool_]
_LOADED = {Memory.INP: "inp", Memory.WGT: "wgt", Memory.ACC: "acc", Memory.ACC_8BIT: "acc"}


def insert_tokens(function: Function, config: Config) -> Function:
    """``function`` with a push or a pop wherever one is needed."""
    transfers = [part for part in walk(function.body) if isinstance(part, Dma)]
    stored = {part.dram for part in transfers if not part.is_load}
    for part in transfers:
        if part.is_load and part.dram in stored:
            raise LoweringError(
                f"{part.label.stage} reads {part.dram.name}, which the same function stores; no "
                "token passes from store to load, so these must be two functions"
            )
    code = HostCode(function, config, marks=True)
    follower = _Follower(config)
    code.compile(follower.kernel)(follower, *function.args)
    tokens = _Tokens(follower, code.statements)
    return replace(function, body=tokens.visit(function.body))


class _Follower:
    """Stands in for the runtime and notes which instruction needs a token of which other."""

    def __init__(self, config: Config) -> None:
        # For each instruction: its statement and the how manieth of it.
        self.instructions: list[tuple[int, int]] = []
        self.counts: dict[int, int] = {}
        self.statement = 0
        # (giver, taker) -> (instruction that gives, instruction that takes), in order.
        self.tokens: dict[tuple[Module, Module], list[tuple[int, int]]] = {
            (Module.LOAD, Module.COMPUTE): [],
            (Module.COMPUTE, Module.LOAD): [],
            (Module.COMPUTE, Module.STORE): [],
            (Module.STORE, Module.COMPUTE): [],
        }
        # The latest instruction of the module that wrote, or read, each element.
        self.latest: dict[tuple[Module, str, bool], npt.NDArray[np.int64]] = {}
        for scope, writer, reader in (
            ("inp", Module.LOAD, Module.COMPUTE),
            ("wgt", Module.LOAD, Module.COMPUTE),
            ("acc", Module.COMPUTE, Module.STORE),
        ):
            for module, writes in ((writer, True), (reader, False)):
                depth = scratchpad(config, scope).depth
                self.latest[module, scope, writes] = np.full(depth, -1, np.int64)

    def at(self, statement: int) -> None:
        self.statement = statement

    def load_buffer_2d(self, *call: Any) -> None:
        x_size, y_size = call[2:4]
        x_before, y_before, x_after, y_after, index, memory = call[5:11]
        elements = (y_before + y_size + y_after) * (x_before + x_size + x_after)
        module = Module.LOAD if memory in (Memory.INP, Memory.WGT) else Module.COMPUTE
        self.instruction(module, [(_LOADED[memory], True, index, index + elements)])

    def store_buffer_2d(self, *call: int) -> None:
        index, _, _, x_size, y_size, _ = call
        self.instruction(Module.STORE, [("acc", False, index, index + x_size * y_size)])

    def wait_for_alu(self) -> None:
        pass  # touches nothing

    def kernel(self, kernel: UopKernel) -> Any:
        uop = kernel.uop
        scopes = {"dst": ("acc", True)}
        if uop.src is not None and uop.alu is None:
            scopes["src"] = ("inp", False)
        if uop.wgt is not None:
            scopes["wgt"] = ("wgt", False)
        spans = [(name, *scope, *kernel.span(name)) for name, scope in scopes.items()]

        def issue(_: Any, dst: int, src: int, wgt: int) -> None:
            start = {"dst": dst, "src": src, "wgt": wgt}
            self.instruction(
                Module.COMPUTE,
                [
                    (scope, writes, start[name] + low, start[name] + high + 1)
                    for name, scope, writes, low, high in spans
                ],
            )

        return issue

    def instruction(self, module: Module, touched: Sequence[tuple[str, bool, int, int]]) -> None:
        """One instruction, with the scratchpad, whether it writes, and the elements that it
        touches."""
        number = len(self.instructions)
        count = self.counts.get(self.statement, 0)
        self.instructions.append((self.statement, count))
        self.counts[self.statement] = count + 1
        needed: dict[Module, int] = {}
        for scope, writes, begin, end in touched:
            other = _OTHER[module, scope]
            before = self.latest[other, scope, not writes][begin:end]
            if before.size:
                needed[other] = max(needed.get(other, -1), int(before.max()))
            self.latest[module, scope, writes][begin:end] = number
        for giver, instruction in needed.items():
            known = self.tokens[giver, module]
            if instruction > (known[-1][0] if known else -1):
                known.append((instruction, number))


_OTHER = {
    (Module.LOAD, "inp"): Module.COMPUTE,
    (Module.LOAD, "wgt"): Module.COMPUTE,
    (Module.COMPUTE, "inp"): Module.LOAD,
    (Module.COMPUTE, "wgt"): Module.LOAD,
    (Module.COMPUTE, "acc"): Module.STORE,
    (Module.STORE, "acc"): Module.COMPUTE,
}


class _Tokens:
    """Where each statement gives and takes tokens."""

    def __init__(
        self,
        follower: _Follower,
        statements: Sequence[tuple[Dma | Kernel, tuple[For, ...]]],
    ) -> None:
        self.loops = dict(statements)
        numbers = {number: stmt for number, (stmt, _) in enumerate(statements)}
        self.flags: dict[tuple[Stmt, str, tuple[Module, Module]], Flags] = {}
        for queue, pairs in follower.tokens.items():
            for action, position in (("push", 0), ("pop", 1)):
                for pair in pairs:
                    statement, count = follower.instructions[pair[position]]
                    stmt = numbers[statement]
                    key = (stmt, action, queue)
                    if key not in self.flags:
                        shape = [loop.extent for loop in self.loops[stmt]]
                        self.flags[key] = np.zeros(shape, np.bool_)
                    self.flags[key].reshape(-1)[count] = True
        self.queues = list(follower.tokens)

    def visit(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Dma | Kernel):
            return seq(*self.around(stmt, "pop"), stmt, *self.around(stmt, "push"))
        return rebuild(stmt, self.visit)

    def around(self, stmt: Dma | Kernel, action: str) -> list[Stmt]:
        tokens: list[Stmt] = []
        for queue in self.queues:
            flags = self.flags.get((stmt, action, queue))
            if flags is not None:
                when = describe(flags, [loop.var for loop in self.loops[stmt]])
                always = isinstance(when, Const)
                tokens.append(Token(action, *queue, None if always else when))
        return tokens


def describe(flags: Flags, loops: Sequence[Var]) -> Expr:
    """A condition on ``loops``, one a dimension of ``flags``, that holds where they are true."""
    if flags.all() or not flags.any():
        return Const(int(flags.all()), "bool")
    for axis in range(flags.ndim):
        first = flags.take([0], axis)
        if (flags == first).all():
            rest = [var for position, var in enumerate(loops) if position != axis]
            return describe(first.squeeze(axis), rest)
    if flags.ndim == 1:
        return _describe_row(flags, loops[0])
    for form in (_corner, _turning_point):
        found = form(flags, loops)
        if found is not None:
            return found
    return _describe_slices(flags, loops)


def _describe_row(flags: Flags, loop: Var) -> Expr:
    for period in range(2, min(len(flags) // 2, 8) + 1):
        turn = np.arange(len(flags)) % period
        for rest in range(period):
            if (flags == (turn == rest)).all():
                return Compare(
                    "==", Binary("%", loop, Const(period, "int32")), Const(rest, "int32")
                )
    edges = [0, *(np.flatnonzero(flags[1:] != flags[:-1]) + 1).tolist(), len(flags)]
    runs = [
        _between(loop, begin, end, len(flags)) for begin, end in pairwise(edges) if flags[begin]
    ]
    return runs[0] if len(runs) == 1 else AnyOf(runs)


def _between(loop: Var, begin: int, end: int, extent: int) -> Expr:
    low, high = Affine({loop: 1}) >= begin, Affine({loop: 1}) < end
    if begin == 0:
        return high
    if end == extent:
        return low
    return loop == begin if end == begin + 1 else AllOf([low, high])


def _corner(flags: Flags, loops: Sequence[Var]) -> Expr | None:
    """For flags that differ in one corner from all others: the distance from there is the sum of
    those along each loop."""
    odd = flags if np.count_nonzero(flags) == 1 else ~flags
    if np.count_nonzero(odd) != 1:
        return None
    distance = Affine({})
    for position, loop, extent in zip(np.argwhere(odd)[0], loops, flags.shape, strict=True):
        if position == 0:
            distance = distance.plus(Affine({loop: 1}))
        elif position == extent - 1:
            distance = distance.plus(Affine({loop: -1}, extent - 1))
        else:
            return None
    return distance == 0 if odd is flags else distance > 0


def _turning_point(flags: Flags, loops: Sequence[Var]) -> Expr | None:
    """For flags that change once in the course of all iterations: how many have gone by."""
    changes = np.flatnonzero(np.diff(flags.reshape(-1))) + 1
    if len(changes) != 1:
        return None
    count = Affine({})
    for loop, extent in zip(loops, flags.shape, strict=True):
        count = count.times(extent).plus(Affine({loop: 1}))
    turn = int(changes[0])
    return count < turn if flags.reshape(-1)[0] else count >= turn


def _describe_slices(flags: Flags, loops: Sequence[Var]) -> Expr:
    """Along the loop with the fewest runs of equal slices, one condition a run."""
    best: list[tuple[int, int]] | None = None
    chosen = 0
    for axis in range(flags.ndim):
        slices = np.moveaxis(flags, axis, 0).reshape(flags.shape[axis], -1)
        changes = (slices[1:] != slices[:-1]).any(axis=1)
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), flags.shape[axis]]
        if best is None or len(edges) - 1 < len(best):
            best, chosen = list(pairwise(edges)), axis
    assert best is not None
    rest = [var for position, var in enumerate(loops) if position != chosen]
    parts: list[Expr] = []
    for begin, end in best:
        inner = describe(flags.take([begin], chosen).squeeze(chosen), rest)
        here = _between(loops[chosen], begin, end, flags.shape[chosen])
        if isinstance(inner, Const):
            parts += [here] if inner.value else []
        else:
            parts.append(AllOf([here, inner]))
    return parts[0] if len(parts) == 1 else AnyOf(parts)
