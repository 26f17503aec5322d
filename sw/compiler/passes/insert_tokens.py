"""Insert dependence tokens between conflicting instructions of different modules.

An instruction that conflicts with an earlier one of a neighbouring module on a scratchpad element
pops a token, which the latest such instruction pushes, unless an earlier token implies it. Modules
execute in order, so tokens are popped in the order of their pushes, and none is redundant. A
statement that pushes or pops only in some iterations gets a condition on its loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import LOADED_BY_LOAD, Module, TokenQueue, filled_by
from amaranth_vta.sw.compiler.emit.issued import Issued, Numbers, issued_by
from amaranth_vta.sw.compiler.emit.uop_kernel import UopKernel
from amaranth_vta.sw.compiler.nest.ir import (
    Dma,
    Kernel,
    LoopNest,
    LoweringError,
    Stmt,
    Token,
    rebuild,
    seq,
    walk,
)
from amaranth_vta.sw.compiler.te.expr import Const

from .support.conditions import Flags, condition
from .support.hazards import ElementAccesses, needed_tokens


def insert_tokens(nest: LoopNest, config: Config) -> LoopNest:
    """Insert the required pushes and pops into ``nest``. Raises `LoweringError` if it loads data
    that it stores.
    """
    transfers = [part for part in walk(nest.body) if isinstance(part, Dma)]
    stored = {part.dram for part in transfers if not (part.is_load or part.forwards)}
    for part in transfers:
        if part.is_load and part.dram in stored:
            raise LoweringError(
                f"{part.label.stage} reads {part.dram.name}, which the same function stores; no "
                "token passes from store to load, so these must be two functions"
            )
    issued = issued_by(nest)
    tokens = _Tokens(issued, needed_tokens(list(_accesses(issued))))
    return replace(nest, body=tokens.visit(nest.body))


def _accesses(issued: Sequence[Issued]) -> Iterator[ElementAccesses]:
    """The accesses of instructions to each scratchpad that two modules share."""
    for item in issued:
        if isinstance(item.statement, Kernel):
            yield from _kernel_accesses(item, item.statement)
        else:
            yield from _transfer_accesses(item, item.statement)


def _kernel_accesses(issued: Issued, stmt: Kernel) -> Iterator[ElementAccesses]:
    kernel, operands = UopKernel(stmt), stmt.uop.operands()
    for name, start in zip(("dst", "src", "wgt"), issued.starts(stmt), strict=True):
        scope, writes = operands[name].buffer.scope if name in operands else "acc", name == "dst"
        # For accumulators only a kernel's writes conflict with another module.
        if writes or scope != "acc":
            low, high = kernel.span(name)
            end = start + high + 1
            yield ElementAccesses(issued.numbers, Module.COMPUTE, scope, writes, start + low, end)


def _transfer_accesses(issued: Issued, stmt: Dma) -> Iterator[ElementAccesses]:
    begin = issued.elements(stmt.sram, stmt.index)
    width, height = issued.values(stmt.x_size), issued.values(stmt.y_size)
    if not stmt.is_load:
        first, end = begin, begin + width * height
        if stmt.forwards:
            first = issued.elements(stmt.dram, stmt.offset)
            end = first + (height - 1) * stmt.x_stride + width
        yield ElementAccesses(issued.numbers, Module.STORE, "acc", False, first, end)
        if not stmt.forwards:
            return
    (left, right), (above, below) = (map(issued.values, pad) for pad in (stmt.x_pad, stmt.y_pad))
    end = begin + (above + height + below) * (left + width + right)
    filled = filled_by(stmt.memory)
    module = Module.LOAD if filled in LOADED_BY_LOAD else Module.COMPUTE
    if stmt.forwards:
        module = Module.STORE
    yield ElementAccesses(issued.numbers, module, filled.name.lower(), True, begin, end)


class _Tokens:
    """Inserts statements that push and pop ``tokens``, which map each queue to the pushing and the
    popping instructions.
    """

    def __init__(
        self, issued: Sequence[Issued], tokens: Mapping[TokenQueue, tuple[Numbers, Numbers]]
    ) -> None:
        self.loops = {item.statement: item.loops for item in issued}
        self.flags: dict[tuple[Stmt, str, TokenQueue], Flags] = {}
        count = sum(len(item.numbers) for item in issued)
        for queue, numbers in tokens.items():
            for action, chosen in zip(("push", "pop"), numbers, strict=True):
                flagged = np.zeros(count, np.bool_)
                flagged[chosen] = True
                for item in issued:
                    flags = flagged[item.numbers]
                    if flags.any():
                        shape = [loop.extent for loop in item.loops]
                        self.flags[item.statement, action, queue] = flags.reshape(shape)
        self.queues = list(tokens)

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
