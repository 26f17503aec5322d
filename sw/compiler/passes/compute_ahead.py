"""Computes stages one iteration ahead of what reads them.

In a loop whose iterations make a buffer and then read it, the machine would wait between the two.
Here each iteration makes what the next one reads before it reads what the one before has made, also
where the next iteration is the first of another loop nest, or is in the next iteration of a loop
further out. The buffers of these loops then outlive iterations: they become rolling, with one turn
for each time that they were allocated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

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
    children,
    copied,
    rebuild,
    seq,
    walk,
)
from amaranth_vta.sw.compiler.te.expr import Access, Affine
from amaranth_vta.sw.compiler.te.traverse import accesses

# By buffer, how to access the rolling buffer in its place.
_Renamed = dict[NestBuffer, Callable[[Access], Access]]
# By the name of a buffer, the turns of the rolling buffer before a statement.
_Turns = Mapping[str, Affine]


def compute_ahead(nest: LoopNest, _: Config) -> LoopNest:
    """``nest`` with the buffers that are ``ahead`` filled one iteration earlier.

    Raises `LoweringError` if one of them has a single copy.
    """
    return replace(nest, body=_visit(nest.body))


def _visit(stmt: Stmt) -> Stmt:
    """``stmt`` with the outermost loop, or sequence of loops, around what is ahead changed."""
    parts = [part for part in children(stmt) if _has_ahead(part)]
    if parts and (isinstance(stmt, For) or len(parts) > 1):
        return _Iterations().moved(stmt)
    return rebuild(stmt, _visit)


def _has_ahead(stmt: Stmt) -> bool:
    return any(isinstance(part, Allocate) and part.buffer.ahead for part in walk(stmt))


@dataclass
class _Iteration:
    """The statements that make what is ahead, and the others."""

    makers: Stmt
    others: Stmt

    def first(self) -> Stmt:
        """What makes what is ahead in the first iteration."""
        return copied(self.makers, {}, {})

    def shifted(self, following: Stmt) -> Stmt:
        """All iterations, each of which makes what is ahead in the next one; the last one does what
        is ``following``."""
        return seq(following, copied(self.others, {}, {}))


@dataclass
class _Loop:
    loop: For
    body: _Tree

    def first(self) -> Stmt:
        return copied(self.body.first(), {self.loop.var: Affine({})}, {})

    def shifted(self, following: Stmt) -> Stmt:
        var, last = self.loop.var, self.loop.extent - 1
        end = copied(self.body.shifted(following), {var: Affine({}, last)}, {})
        if not last:
            return end
        to_next = copied(self.body.first(), {var: Affine({var: 1}, 1)}, {})
        steady = replace(self.loop, extent=last, body=self.body.shifted(to_next))
        return seq(copied(steady, {}, {}), end)


@dataclass
class _Row:
    """``parts`` in sequence, each behind a statement for its first iteration; ``rest`` comes after
    them."""

    parts: list[tuple[Stmt, _Tree]]
    rest: Stmt

    def first(self) -> Stmt:
        before, part = self.parts[0]
        return seq(copied(before, {}, {}), part.first())

    def shifted(self, following: Stmt) -> Stmt:
        parts = [part for _, part in self.parts]
        nexts = [_Row([item], Seq([])).first() for item in self.parts[1:]]
        done = [part.shifted(then) for part, then in zip(parts, [*nexts, following], strict=True)]
        return seq(*done, copied(self.rest, {}, {}))


_Tree = _Iteration | _Loop | _Row


class _Iterations:
    """The iterations of nested and successive loops, and the rolling buffers that they share."""

    def __init__(self) -> None:
        self._rolling: dict[str, NestBuffer] = {}
        self._scalars: Counter[str] = Counter()

    def moved(self, stmt: Stmt) -> Stmt:
        tree = self._tree(stmt, {}, {})
        counts = _allocations(stmt)
        for name, buffer in self._rolling.items():
            buffer.shape = (counts[name], self._scalars[name])
        result = seq(tree.first(), tree.shifted(Seq([])))
        for buffer in reversed(self._rolling.values()):
            result = Allocate(buffer, result)
        return result

    def _tree(self, stmt: Stmt, renamed: _Renamed, turns: _Turns) -> _Tree:
        if _in_iteration(stmt):
            return self._iteration(stmt, renamed, turns)
        if isinstance(stmt, Allocate):
            return self._tree(stmt.body, self._renaming(stmt.buffer, renamed, turns), turns)
        if isinstance(stmt, For):
            steps = _allocations(stmt.body)
            within = {
                name: turns.get(name, Affine({})).plus(Affine({stmt.var: step}))
                for name, step in steps.items()
            }
            return _Loop(stmt, self._tree(stmt.body, renamed, within))
        row, before = _Row([], Seq([])), list[Stmt]()
        for part in children(stmt):
            if _has_ahead(part):
                row.parts.append((seq(*before), self._tree(part, renamed, turns)))
                before = []
            else:
                before.append(copied(part, {}, renamed))
            turns = _after(part, turns)
        row.rest = seq(*before)
        return row

    def _iteration(self, stmt: Stmt, renamed: _Renamed, turns: _Turns) -> _Iteration:
        ahead = set[NestBuffer]()

        def gather(part: Stmt, renamed: _Renamed) -> list[Stmt]:
            match part:
                case Allocate():
                    renamed = self._renaming(part.buffer, renamed, turns)
                    if part.buffer.ahead:
                        ahead.add(self._rolling[part.buffer.name])
                    return gather(part.body, renamed)
                case Seq():
                    return [item for child in part.body for item in gather(child, renamed)]
            return [copied(part, {}, renamed)]

        parts = gather(stmt, renamed)
        makers, others = list[Stmt](), list[Stmt]()
        for part in reversed(parts):
            assigns = [item for item in walk(part) if isinstance(item, Assign)]
            if ahead.isdisjoint(assign.buffer for assign in assigns):
                others.append(part)
                continue
            makers.append(part)
            read = {access.source for assign in assigns for access in accesses(assign.value)}
            ahead |= {source for source in read if source in self._rolling.values()}
        return _Iteration(seq(*reversed(makers)), seq(*reversed(others)))

    def _renaming(self, old: NestBuffer, renamed: _Renamed, turns: _Turns) -> _Renamed:
        """``renamed`` with the rolling buffer in the place of ``old``, in its present turn."""
        if old.ahead and old.copies < 2:
            raise LoweringError(
                f"{old.name} is computed ahead; double_buffer keeps the copy that is read"
            )
        new = self._rolling.setdefault(old.name, replace(old, rolling=True, ahead=False))
        new.copies = max(new.copies, old.copies)
        self._scalars[old.name] = max(self._scalars[old.name], old.scalars)
        return renamed | {old: partial(_in_turn, old, new, turns.get(old.name, Affine({})))}


def _in_turn(old: NestBuffer, new: NestBuffer, turn: Affine, access: Access) -> Access:
    """``access`` to ``old`` as one to ``new``, whose turns are flat."""
    place = old.flat(access.indices)
    if place is None:
        raise LoweringError(f"{access} is read ahead at an index that is not affine")
    return Access(new, (turn, place))


def _in_iteration(stmt: Stmt) -> bool:
    """Whether what is ahead is allocated in ``stmt`` once, outside of its loops."""
    match stmt:
        case Allocate():
            return stmt.buffer.ahead or _in_iteration(stmt.body)
        case Seq():
            parts = [part for part in stmt.body if _has_ahead(part)]
            return len(parts) == 1 and _in_iteration(parts[0])
    return False


def _after(stmt: Stmt, turns: _Turns) -> _Turns:
    """The turns after ``stmt``, with ``turns`` before it."""
    counts = _allocations(stmt)
    return dict(turns) | {
        name: turns.get(name, Affine({})).plus(Affine({}, count)) for name, count in counts.items()
    }


def _allocations(stmt: Stmt) -> Counter[str]:
    """How often each buffer is allocated in ``stmt``, by name."""
    found = Counter[str]()
    for part in children(stmt):
        found += _allocations(part)
    if isinstance(stmt, For):
        found = Counter({name: count * stmt.extent for name, count in found.items()})
    if isinstance(stmt, Allocate):
        found[stmt.buffer.name] += 1
    return found
