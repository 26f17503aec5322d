"""Interleaves virtual threads: moves the loop over threads inward, around each statement.

Every thread has its own copy of the buffers that are allocated within its loop. Loads of one thread
are then issued between computations of another, and tokens let them overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.nest.ir import (
    Allocate,
    Assign,
    For,
    LoopNest,
    LoweringError,
    NestBuffer,
    Seq,
    Stmt,
    copied,
    seq,
    walk,
)
from amaranth_vta.sw.compiler.nest.ir import rebuild as rebuild_stmt
from amaranth_vta.sw.compiler.te.expr import Access, Affine


def interleave_threads(nest: LoopNest, _: Config) -> LoopNest:
    """``nest`` without loops of the kind cthread."""
    return replace(nest, body=_visit(nest.body))


def _visit(stmt: Stmt) -> Stmt:
    stmt = rebuild_stmt(stmt, _visit)
    if isinstance(stmt, For) and stmt.kind == "cthread":
        return _Thread(stmt).sink(stmt.body)
    return stmt


def _is_one_stage(stmt: Stmt) -> bool:
    """Whether ``stmt`` is one loop nest that fills one buffer."""
    parts = list(walk(stmt))
    return (
        not isinstance(stmt, Seq)
        and not any(isinstance(part, Allocate) for part in parts)
        and len({part.buffer for part in parts if isinstance(part, Assign)}) == 1
    )


class _Thread:
    def __init__(self, loop: For) -> None:
        self.loop = loop
        # Per buffer of one thread, the buffer with a copy for each thread.
        self.shared: dict[NestBuffer, NestBuffer] = {}

    def sink(self, stmt: Stmt) -> Stmt:
        if _is_one_stage(stmt):
            return self._around(stmt)
        match stmt:
            case Seq():
                return seq(*map(self.sink, stmt.body))
            case For():
                return replace(stmt, body=self.sink(stmt.body))
            case Allocate():
                old = stmt.buffer
                if old.scope == "dram":
                    raise LoweringError(
                        f"{old.name} is in dram; a virtual thread cannot have its own"
                    )
                if old.rolling:
                    raise LoweringError(
                        f"{old.name} is stored at an axis within a virtual thread; its iterations "
                        "cannot be interleaved"
                    )
                new = replace(old, shape=(self.loop.extent, *old.shape))
                self.shared[old] = new
                return Allocate(new, self.sink(stmt.body))
        raise LoweringError(f"{type(stmt).__name__} within a virtual thread")

    def _around(self, stmt: Stmt) -> Stmt:
        """The statement once per thread, unrolled into separate instructions."""
        return seq(*(self._of_thread(stmt, thread) for thread in range(self.loop.extent)))

    def _of_thread(self, stmt: Stmt, thread: int) -> Stmt:
        def part_of(buffer: NestBuffer) -> Callable[[Access], Access]:
            return lambda access: Access(buffer, (Affine({}, thread), *access.indices))

        parts = {old: part_of(new) for old, new in self.shared.items()}
        return copied(stmt, {self.loop.var: Affine({}, thread)}, parts)
