"""The iterations of software-pipelined loops, as a tree that can be shifted and extended.

A leaf is an iteration, whose statements are grouped by lead: the number of iterations by which they
run ahead. Inner nodes are loops and sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from amaranth_vta.sw.compiler.nest.ir import For, LoweringError, Seq, Stmt, copied, seq
from amaranth_vta.sw.compiler.te.expr import Affine, Var

# Statements by lead.
Leads = Mapping[int, Stmt]
# Orders the statements of an iteration, and appends the given statement.
Order = Callable[[Leads, Stmt], Stmt]
_NOTHING = Seq([])


@dataclass
class Delayed:
    """A statement that belongs before the iteration ``iterations`` iterations later."""

    iterations: int
    stmt: Stmt

    def replaced(self, values: Mapping[Var, Affine]) -> Delayed:
        return Delayed(self.iterations, copied(self.stmt, values, {}))


@dataclass
class Iteration:
    """The statements of one iteration, per lead in program order."""

    leads: Leads

    @property
    def count(self) -> int:
        """Number of iterations."""
        return 1

    def first(self, lead: int) -> Leads:
        """The prologue: statements of the first iteration with a lead of at least ``lead``."""
        return {at: part for at, part in self.leads.items() if at >= lead}

    def shifted(self, lead: int, following: Leads) -> Tree:
        """All iterations, where statements with a lead of at least ``lead`` come from the next
        iteration, and in the last iteration from ``following``.
        """
        own = {at: part for at, part in self.leads.items() if at < lead}
        return Iteration({**own, **following})

    def replaced(self, values: Mapping[Var, Affine]) -> Tree:
        """A copy with variables replaced by ``values``."""
        return Iteration({at: copied(part, values, {}) for at, part in self.leads.items()})

    def with_inserted(self, number: int, stmt: Stmt) -> Tree:
        """The iterations, with ``stmt`` after iteration ``number``, counted from 0."""
        assert not number
        return IterationSequence([self], rest=stmt)

    def settled(self) -> tuple[Tree, list[Delayed]]:
        """The iterations with delayed statements inserted, and the statements still delayed."""
        return self, []

    def in_order(self, order: Order, rest: Stmt = _NOTHING) -> Stmt:
        """All statements, with ``rest`` at the end."""
        return order(self.leads, rest)


@dataclass
class IteratedLoop:
    """The iterations ``body`` in each iteration of ``loop``, whose own body is not used."""

    loop: For
    body: Tree

    @property
    def count(self) -> int:
        return self.loop.extent * self.body.count

    def first(self, lead: int) -> Leads:
        return self._at(self.body.first(lead), Affine({}))

    def _at(self, leads: Leads, value: Affine) -> Leads:
        values = {self.loop.var: value}
        return {at: copied(part, values, {}) for at, part in leads.items()}

    def shifted(self, lead: int, following: Leads) -> Tree:
        var, last = self.loop.var, self.loop.extent - 1
        end = self.body.shifted(lead, following).replaced({var: Affine({}, last)})
        if not last:
            return end
        to_next = self._at(self.body.first(lead), Affine({var: 1}, 1))
        steady = replace(self.loop, extent=last)
        return IterationSequence([IteratedLoop(steady, self.body.shifted(lead, to_next)), end])

    def replaced(self, values: Mapping[Var, Affine]) -> Tree:
        return IteratedLoop(self.loop, self.body.replaced(values))

    def _part(self, begin: int, end: int) -> IteratedLoop:
        """The iterations of the loop from ``begin`` to ``end`` - 1."""
        var = Var(self.loop.var.name)
        body = self.body.replaced({self.loop.var: Affine({var: 1}, begin)})
        return IteratedLoop(replace(self.loop, var=var, extent=end - begin), body)

    def with_inserted(self, number: int, stmt: Stmt) -> Tree:
        turn, within = divmod(number, self.body.count)
        body = self.body.replaced({self.loop.var: Affine({}, turn)})
        before, after = self._part(0, turn), self._part(turn + 1, self.loop.extent)
        parts = [before, body.with_inserted(within, stmt), after]
        return IterationSequence([part for part in parts if part.count])

    def settled(self) -> tuple[Tree, list[Delayed]]:
        body, delayed = self.body.settled()
        loop, last = IteratedLoop(self.loop, body), self.loop.extent - 1
        if not delayed:
            return loop, []
        # Each iteration but the first receives the delayed statements of its predecessor.
        parts, others = [body.replaced({loop.loop.var: Affine({})})], loop._part(1, last + 1)
        if others.count:
            to_this = {loop.loop.var: Affine({others.loop.var: 1})}
            moved = [item.replaced(to_this) for item in delayed]
            others.body, left = _inserted(others.body, moved)
            _require_none(left)
            parts.append(others)
        to_last = {loop.loop.var: Affine({}, last)}
        return IterationSequence(parts), [item.replaced(to_last) for item in delayed]

    def in_order(self, order: Order, rest: Stmt = _NOTHING) -> Stmt:
        if self.loop.extent == 1:
            return self.body.replaced({self.loop.var: Affine({})}).in_order(order, rest)
        return seq(replace(self.loop, body=self.body.in_order(order)), rest)


@dataclass
class IterationSequence:
    """``parts`` in sequence, then ``rest``; ``delayed`` statements are inserted later.
    The statements ``before[n]``, if given, precede the first iteration of part n.
    """

    parts: list[Tree]
    before: list[Stmt] = field(default_factory=list)
    rest: Stmt = _NOTHING
    delayed: list[Delayed] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    def _first(self, number: int, lead: int) -> Leads:
        leads = dict(self.parts[number].first(lead))
        if self.before and leads:
            most = max(leads)
            leads[most] = seq(self.before[number], leads[most])
        return leads

    def first(self, lead: int) -> Leads:
        return self._first(0, lead)

    def shifted(self, lead: int, following: Leads) -> Tree:
        nexts = [self._first(number, lead) for number in range(1, len(self.parts))]
        parts = [
            part.shifted(lead, then)
            for part, then in zip(self.parts, [*nexts, following], strict=True)
        ]
        return IterationSequence(parts, [], self.rest, self.delayed)

    def replaced(self, values: Mapping[Var, Affine]) -> Tree:
        before = [copied(item, values, {}) for item in self.before]
        parts = [part.replaced(values) for part in self.parts]
        delayed = [item.replaced(values) for item in self.delayed]
        return IterationSequence(parts, before, copied(self.rest, values, {}), delayed)

    def with_inserted(self, number: int, stmt: Stmt) -> Tree:
        parts = list(self.parts)
        for place, part in enumerate(parts):
            if number < part.count:
                parts[place] = part.with_inserted(number, stmt)
                break
            number -= part.count
        return replace(self, parts=parts)

    def settled(self) -> tuple[Tree, list[Delayed]]:
        parts, pending = list[Tree](), list[Delayed]()
        for part in self.parts:
            settled, own = part.settled()
            settled, pending = _inserted(settled, pending)
            if own:
                _require_none(pending)
            parts.append(settled)
            pending += own
        if self.delayed:
            _require_none(pending)
        return IterationSequence(parts, [], self.rest), [*pending, *self.delayed]

    def in_order(self, order: Order, rest: Stmt = _NOTHING) -> Stmt:
        assert not self.before
        assert not self.delayed
        *parts, last = self.parts
        before = [part.in_order(order) for part in parts]
        return seq(*before, last.in_order(order, seq(self.rest, rest)))


Tree = Iteration | IteratedLoop | IterationSequence


def _inserted(tree: Tree, delayed: list[Delayed]) -> tuple[Tree, list[Delayed]]:
    """``tree`` with statements inserted that belong before one of its iterations but the first, and
    the statements that are left.
    """
    count, left = tree.count, list[Delayed]()
    for item in delayed:
        if item.iterations < count:
            tree = tree.with_inserted(item.iterations - 1, item.stmt)
        else:
            left.append(replace(item, iterations=item.iterations - count))
    return tree, left


def _require_none(delayed: list[Delayed]) -> None:
    if delayed:
        raise LoweringError(
            f"a staggered part would follow {delayed[-1].iterations + 1} iterations too late: "
            "the loop that is pipelined has too few, so stagger fewer parts"
        )
