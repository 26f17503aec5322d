"""Dependence tokens, from what each instruction reads and writes.

The instructions of the loop nest are followed in program order. One that touches scratchpad
elements which a neighbouring module has used in a conflicting way pops a token that the latest such
instruction of that module pushes, unless an earlier token implies it already. Modules work in
order, so tokens are popped in the order in which they are pushed, and none is redundant. The
iterations in which a statement pushes or pops one become a condition on its loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import TOKEN_QUEUES, Memory, Module, TokenQueue
from amaranth_vta.sw.compiler.emit.host_code import HostCode
from amaranth_vta.sw.compiler.emit.uop_kernel import UopKernel
from amaranth_vta.sw.compiler.nest.ir import (
    Dma,
    For,
    Kernel,
    LoopNest,
    LoweringError,
    Stmt,
    Token,
    rebuild,
    seq,
    walk,
)
from amaranth_vta.sw.compiler.nest.scopes import scratchpad
from amaranth_vta.sw.compiler.te.expr import Const

from .support.conditions import Flags, condition

# Each scratchpad with the module that writes it and the one that reads it.
_SHARED = (
    ("inp", Module.LOAD, Module.COMPUTE),
    ("wgt", Module.LOAD, Module.COMPUTE),
    ("acc", Module.COMPUTE, Module.STORE),
)
_Latest = npt.NDArray[np.int64]
_LOADED = {Memory.INP: "inp", Memory.WGT: "wgt", Memory.ACC: "acc", Memory.ACC_8BIT: "acc"}


def insert_tokens(nest: LoopNest, config: Config) -> LoopNest:
    """``nest`` with a push or a pop wherever one is needed."""
    transfers = [part for part in walk(nest.body) if isinstance(part, Dma)]
    stored = {part.dram for part in transfers if not part.is_load}
    for part in transfers:
        if part.is_load and part.dram in stored:
            raise LoweringError(
                f"{part.label.stage} reads {part.dram.name}, which the same function stores; no "
                "token passes from store to load, so these must be two functions"
            )
    code = HostCode(nest, marks=True)
    follower = _Follower(config)
    code.compile(follower.kernel)(follower, *nest.args)
    tokens = _Tokens(follower, code.statements)
    return replace(nest, body=tokens.visit(nest.body))


class _Follower:
    """Stands in for the runtime and finds which instruction needs a token of which other."""

    def __init__(self, config: Config) -> None:
        # For each instruction: its statement, and how many that statement has made before it.
        self.instructions: list[tuple[int, int]] = []
        self.counts: dict[int, int] = {}
        self.statement = 0
        # By queue, the instruction that pushes and the one that pops, in order.
        self.tokens: dict[TokenQueue, list[tuple[int, int]]] = {queue: [] for queue in TOKEN_QUEUES}
        # By scratchpad and whether it is written: the latest instruction that did so to each
        # element, the module that does the opposite, and its latest instruction.
        self.users: dict[tuple[str, bool], tuple[_Latest, Module, _Latest]] = {}
        for scope, writer, reader in _SHARED:
            depth = scratchpad(config, scope).depth
            wrote, read = (np.full(depth, -1, np.int64) for _ in range(2))
            self.users[scope, True] = wrote, reader, read
            self.users[scope, False] = read, writer, wrote

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
            own, other, of_other = self.users[scope, writes]
            # The reduction itself: most slices are short, and ndarray.max takes as long again.
            latest = int(_latest_of(of_other[begin:end], initial=-1))
            if latest > needed.get(other, -1):
                needed[other] = latest
            own[begin:end] = number
        for producer, instruction in needed.items():
            known = self.tokens[producer, module]
            if instruction > (known[-1][0] if known else -1):
                known.append((instruction, number))


_latest_of = np.maximum.reduce


class _Tokens:
    """Where each statement pushes and pops tokens."""

    def __init__(
        self,
        follower: _Follower,
        statements: Sequence[tuple[Dma | Kernel, tuple[For, ...]]],
    ) -> None:
        self.loops = dict(statements)
        numbers = {number: stmt for number, (stmt, _) in enumerate(statements)}
        self.flags: dict[tuple[Stmt, str, TokenQueue], Flags] = {}
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
                when = condition(flags, [loop.var for loop in self.loops[stmt]])
                always = isinstance(when, Const)
                label = stmt.uop.label if isinstance(stmt, Kernel) else stmt.label
                tokens.append(Token(action, *queue, None if always else when, label))
        return tokens
