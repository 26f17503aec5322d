"""Move ALU operations that read carried rows to the start of an iteration.

Copies of a rolling buffer alternate between the accumulator banks, so data carried over from the
previous iteration is in the bank in which GEMM computes the next iteration. GEMM uses the bank's
only read port, except during its first products, which overwrite. Carried data is ready when the
iteration starts; reading it first, while GEMM overwrites, avoids a stall.
"""

from __future__ import annotations

from dataclasses import replace

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.nest.ir import (
    For,
    LoopNest,
    Region,
    Seq,
    Stmt,
    assigns,
    read_buffers,
    reads,
    rebuild,
    seq,
    walk,
    written_buffers,
)
from amaranth_vta.sw.compiler.te.expr import Affine


def read_carried_first(nest: LoopNest, config: Config) -> LoopNest:
    """Where GEMM and the ALU overlap, move ALU operations that read only data of the previous
    iteration before independent ALU operations of their own iteration.
    """
    return replace(nest, body=_visit(nest.body)) if config.overlap else nest


def _visit(stmt: Stmt) -> Stmt:
    stmt = rebuild(stmt, _visit)
    if not isinstance(stmt, Seq):
        return stmt
    parts: list[Stmt] = []
    for part in stmt.body:
        place, turn = len(parts), _turn(part)
        if turn is not None and _reads_only(part, turn.plus(Affine({}, -1))):
            while place and _commute(parts[place - 1], part, turn):
                place -= 1
        parts.insert(place, part)
    return stmt if parts == stmt.body else seq(*parts)


def _turn(stmt: Stmt) -> Affine | None:
    """The turn that ``stmt`` writes, if it is an ALU operation on rolling buffers; else None."""
    if not isinstance(stmt, Region) or stmt.kind != "alu":
        return None
    turns = [
        Affine.of(assign.indices[0]) if assign.buffer.rolling else None for assign in assigns(stmt)
    ]
    turn, *others = turns or [None]
    if turn is None or not all(other is not None and other.same(turn) for other in others):
        return None
    # Loops within the operation do not determine its iteration.
    within = {part.var for part in walk(stmt) if isinstance(part, For)}
    return turn if within.isdisjoint(turn.terms) else None


def _reads_only(stmt: Stmt, turn: Affine) -> bool:
    """Whether ``stmt`` reads rolling buffers that it does not write, all of them in iteration
    ``turn``.
    """
    own = written_buffers(stmt)
    read = [
        Affine.of(access.indices[0])
        for access in reads(stmt)
        if access.source.rolling and access.source not in own
    ]
    return bool(read) and all(form is not None and form.same(turn) for form in read)


def _commute(first: Stmt, second: Stmt, turn: Affine) -> bool:
    """Whether ``second`` can be moved before ``first``. It reads data of the previous iteration,
    ``turn``, which operations of its own iteration do not write.
    """
    own = _turn(first)
    if own is None or not own.same(turn):
        return False
    return written_buffers(second).isdisjoint(written_buffers(first) | read_buffers(first))
