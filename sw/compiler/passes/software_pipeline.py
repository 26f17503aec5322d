"""Software-pipeline loops: compute stages iterations ahead of their consumers.

In a loop whose iterations produce a buffer and then consume it, the machine would stall between the
two. This pass makes each iteration produce data for a later iteration, then consume data that an
earlier iteration produced, also across loop nests and across iterations of an enclosing loop. The
buffers become rolling buffers, with one turn per former allocation. The operations on a buffer that
a loop has filled can be staggered: divided into parts that follow in iterations of the next loop.

With a distance of more than one iteration between the first and the last statement, turns are
counted from the iteration that writes: two double-buffered buffers in alternating banks that are
written in the same iteration are then in the same bank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import takewhile

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.nest.ir import (
    Allocate,
    For,
    LoopNest,
    LoweringError,
    NestBuffer,
    Region,
    Seq,
    Stmt,
    allocations,
    children,
    copied,
    read_buffers,
    rebuild,
    seq,
    walk,
    written_buffers,
)
from amaranth_vta.sw.compiler.te.expr import Access, Affine

from .support.divided import divided
from .support.iterations import Delayed, IteratedLoop, Iteration, IterationSequence, Leads, Tree

# Per buffer, a function that rewrites an access to the rolling buffer that replaces it.
_Renamed = dict[NestBuffer, Callable[[Access], Access]]
# Per buffer name, the turn of the rolling buffer at a statement.
_Turns = Mapping[str, Affine]


def software_pipeline(nest: LoopNest, _: Config) -> LoopNest:
    """Software-pipeline ``nest``: fill each buffer that is ``ahead`` that many iterations earlier.

    Raises `LoweringError` if a buffer has too few copies.
    """
    return replace(nest, body=_visit(nest.body))


def _visit(stmt: Stmt) -> Stmt:
    """Rewrite the outermost loop, or sequence of loops, around pipelined stages in ``stmt``."""
    parts = [part for part in children(stmt) if _has_ahead(part)]
    if not parts:
        return stmt
    keeps = isinstance(stmt, Allocate) and _is_kept_ahead(stmt.buffer)
    if isinstance(stmt, For) or len(parts) > 1 or keeps:
        return _Iterations().pipelined(stmt)
    return rebuild(stmt, _visit)


def _has_ahead(stmt: Stmt) -> bool:
    return any(part.buffer.ahead > 0 for part in allocations(stmt))


def _is_kept_ahead(buffer: NestBuffer) -> bool:
    """Whether ``buffer`` already is a rolling buffer, and loops fill it ahead of their readers."""
    return buffer.rolling and buffer.ahead > 0


# Order of instructions in an iteration.
_LOADS, _PRODUCTS, _OPERATIONS, _STORES = range(4)


class _Order:
    """Orders the statements of an iteration. ``leads`` has, per rolling buffer, the number of
    iterations by which it is written ahead.

    With a distance of one iteration, statements that are ahead come first. With more, statements
    are grouped by kind, oldest operands first, so that each unit has the work of a whole iteration
    without waiting for the others. If the product with the greatest lead has more than two copies
    of its results, products are in the opposite order: it can then overwrite a copy that was read
    long ago, and the other operands have more time to arrive.
    """

    def __init__(self, leads: Mapping[NestBuffer, int]) -> None:
        self._leads = leads

    @property
    def most(self) -> int:
        """The maximum lead."""
        return max(self._leads.values())

    def __call__(self, leads: Leads, rest: Stmt) -> Stmt:
        """All statements of an iteration, then ``rest``. Loads and products at the beginning of
        ``rest`` are moved before the iteration's ALU operations.
        """
        if self.most > 1:
            leads, rest = _with_products(leads, rest)
        return seq(self._of(leads), rest)

    def _of(self, leads: Leads) -> Stmt:
        parts = [(at, part) for at in sorted(leads, reverse=True) for part in _parts(leads[at])]
        kinds = [_kind(part) for _, part in parts]
        in_turn = all(
            kind is not None and (at != before or kind >= (last or 0))
            for (before, _), last, (at, _), kind in zip(
                [(-1, None), *parts], [0, *kinds], parts, kinds, strict=False
            )
        )
        if self.most > 1 and in_turn:
            reverse = any(
                kind == _PRODUCTS and at == self.most and _has_spare_copies(part)
                for (at, part), kind in zip(parts, kinds, strict=True)
            )

            def place(number: int) -> tuple[int, int, int]:
                (at, part), kind = parts[number], kinds[number]
                assert kind is not None
                if reverse and kind == _PRODUCTS:
                    return kind, -at, 0
                return kind, -self._age(at, part), at

            parts = [parts[number] for number in sorted(range(len(parts)), key=place)]
        return seq(*(part for _, part in parts))

    def _age(self, lead: int, part: Stmt) -> int:
        """Iterations since the most recent operand of ``part`` was written."""
        ages = [
            self._leads[source] - lead for source in read_buffers(part) if source in self._leads
        ]
        return min(ages, default=0)

    def require_copies(self, leads: Leads) -> None:
        """Raises `LoweringError` if a buffer's copy would be overwritten before its last read."""
        order = list(walk(self._of(leads)))
        for buffer, lead in self._leads.items():
            writes, reads = [], [(lead, -1)]
            for at, part in ((item, part) for item in leads for part in _parts(leads[item])):
                place = order.index(part)
                if buffer in written_buffers(part):
                    writes.append(place)
                elif buffer in read_buffers(part):
                    reads.append((at, place))
            least = min(at for at, _ in reads)
            last = max(place for at, place in reads if at == least)
            needed = lead - least + (min(writes, default=0) < last)
            if buffer.copies < needed:
                raise LoweringError(
                    f"{buffer.name} is computed ahead, which takes {needed} copies: use "
                    f"double_buffer"
                )


def _with_products(leads: Leads, rest: Stmt) -> tuple[Leads, Stmt]:
    """``leads`` with the loads and products at the beginning of ``rest``, and the remainder of
    ``rest``. Both are unchanged if the new order could change a result.
    """
    own, others = _parts(leads.get(0, Seq([]))), _parts(rest)
    moved = list(takewhile(lambda part: _kind(part) in (_LOADS, _PRODUCTS), others))
    passed = [part for lead in leads.values() for part in _parts(lead)]
    if not moved or any(_kind(part) is None or _conflict(part, moved) for part in passed):
        return leads, rest
    joined = sorted([*own, *moved], key=lambda part: _kind(part) or 0)
    return {**leads, 0: seq(*joined)}, seq(*others[len(moved) :])


def _conflict(part: Stmt, others: list[Stmt]) -> bool:
    """Whether the order of ``part`` and ``others`` matters."""
    return any(
        written_buffers(first) & (read_buffers(second) | written_buffers(second))
        for other in others
        for first, second in ((part, other), (other, part))
    )


def _has_spare_copies(stmt: Stmt) -> bool:
    return all(buffer.copies > 2 for buffer in written_buffers(stmt))


def _parts(stmt: Stmt) -> list[Stmt]:
    return stmt.body if isinstance(stmt, Seq) else [stmt]


def _kind(stmt: Stmt) -> int | None:
    """The kind of ``stmt``, as a number in issue order; None if it has several."""
    kinds = {_kind_of(part) for part in walk(stmt) if isinstance(part, Region)}
    return kinds.pop() if len(kinds) == 1 else None


def _kind_of(region: Region) -> int:
    if region.kind != "dma_copy":
        return _OPERATIONS if region.kind == "alu" else _PRODUCTS
    results = any(source.scope == "acc" for source in read_buffers(region))
    return _STORES if results else _LOADS


class _Iterations:
    """The iterations of nested and successive loops, and the rolling buffers that they share."""

    def __init__(self) -> None:
        self._rolling: dict[str, NestBuffer] = {}
        self._scalars: Counter[str] = Counter()
        # Per rolling buffer, the number of iterations by which it is written ahead.
        self._leads: dict[NestBuffer, int] = {}
        # Of buffers that were rolling before, the number of iterations ahead of their readers.
        self._kept: dict[NestBuffer, int] = {}
        self._found: list[Iteration] = []
        # Staggered rolling buffers with their originals, and all buffers that their readers access.
        self._staggered: dict[NestBuffer, NestBuffer] = {}
        self._read_late: set[NestBuffer] = set()

    def pipelined(self, stmt: Stmt) -> Stmt:
        tree = self._tree(stmt, {}, {})
        counts, order = _allocations(stmt), _Order(self._leads)
        for iteration in self._found:
            order.require_copies(iteration.leads)
            self._require_copies_for_late_readers(iteration)
        for lead in range(1, order.most + 1):
            tree = IterationSequence([Iteration(tree.first(lead)), tree.shifted(lead, {})])
        tree, delayed = tree.settled()
        result = tree.in_order(order, seq(*(item.stmt for item in delayed)))
        later = self._leads if order.most > 1 else {}
        for name, buffer in self._rolling.items():
            buffer.shape = (counts[name] + later.get(buffer, 0), self._scalars[name])
        result = copied(result, {}, {item: partial(_later, by) for item, by in later.items()})
        for buffer in reversed(self._rolling.values()):
            result = Allocate(buffer, result)
        return result

    def _tree(self, stmt: Stmt, renamed: _Renamed, turns: _Turns) -> Tree:
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
            return IteratedLoop(stmt, self._tree(stmt.body, renamed, within))
        row, others = IterationSequence([]), list[Stmt]()
        for part in children(stmt):
            if _has_ahead(part):
                row.before.append(seq(*others))
                row.parts.append(self._tree(part, renamed, turns))
                others = []
            else:
                others += self._flat(part, renamed, turns)
            turns = _after(part, turns)
        row.rest, row.delayed = self._divided(others)
        return row

    def _divided(self, stmts: list[Stmt]) -> tuple[Stmt, list[Delayed]]:
        """Divide the statements that follow a loop into parts, beginning with the first reader of a
        staggered buffer. Returns the statements that remain, and the delayed parts.
        """
        for number, stmt in enumerate(stmts):
            for buffer in read_buffers(stmt) & self._staggered.keys():
                old, late = self._staggered[buffer], stmts[number:]
                accessed = (read_buffers(item) | written_buffers(item) for item in late)
                self._read_late.update(*accessed)
                first, *parts = divided(late, old.parts, buffer.name)
                delayed = [Delayed(old.stagger * n, part) for n, part in enumerate(parts, 1)]
                return seq(*stmts[:number], first), delayed
        return seq(*stmts), []

    def _require_copies_for_late_readers(self, iteration: Iteration) -> None:
        for part in iteration.leads.values():
            for buffer in written_buffers(part) & self._read_late:
                if buffer.copies < 2:
                    raise LoweringError(
                        f"{buffer.name} is read by staggered operations while the next loop fills "
                        "it, which takes 2 copies: use double_buffer"
                    )

    def _flat(self, stmt: Stmt, renamed: _Renamed, turns: _Turns) -> list[Stmt]:
        """The statements of ``stmt``, with allocations outside of its loops turned into rolling
        buffers.
        """
        match stmt:
            case Allocate():
                return self._flat(stmt.body, self._renaming(stmt.buffer, renamed, turns), turns)
            case Seq():
                return [item for part in stmt.body for item in self._flat(part, renamed, turns)]
        return [copied(stmt, {}, renamed)]

    def _iteration(self, stmt: Stmt, renamed: _Renamed, turns: _Turns) -> Iteration:
        parts, leads = self._flat(stmt, renamed, turns), dict[int, list[Stmt]]()
        buffers = [part.buffer for part in _same_iteration(stmt)]
        ahead = {self._rolling[buffer.name]: buffer.ahead for buffer in buffers}
        filled = {buffer for part in parts for buffer in written_buffers(part)}
        ahead |= {buffer: by for buffer, by in self._kept.items() if buffer in filled}
        # Each buffer is written its own distance ahead of its earliest reader.
        written = dict(ahead)
        for part in reversed(parts):
            own = written_buffers(part) & written.keys()
            lead = max((written[buffer] for buffer in own), default=0)
            leads.setdefault(lead, []).append(part)
            for buffer in (read_buffers(part) & written.keys()) - own:
                written[buffer] = max(written[buffer], lead + ahead[buffer])
        for buffer, lead in written.items():
            self._leads[buffer] = max(lead, self._leads.get(buffer, 0))
        found = Iteration({lead: seq(*reversed(made)) for lead, made in leads.items()})
        self._found.append(found)
        return found

    def _renaming(self, old: NestBuffer, renamed: _Renamed, turns: _Turns) -> _Renamed:
        """``renamed``, extended to replace ``old`` by the rolling buffer in its current turn."""
        new = self._rolling.setdefault(old.name, replace(old, rolling=True, ahead=0, parts=1))
        new.copies = max(new.copies, old.copies)
        if old.parts > 1:
            self._staggered[new] = old
        new.carried, new.period = max(new.carried, old.carried), max(new.period, old.period)
        scalars = old.strides[0] if old.rolling else old.scalars
        self._scalars[old.name] = max(self._scalars[old.name], scalars)
        if _is_kept_ahead(old):
            self._kept[new] = old.ahead
        return renamed | {old: partial(_in_turn, old, new, turns.get(old.name, Affine({})))}


def _in_turn(old: NestBuffer, new: NestBuffer, turn: Affine, access: Access) -> Access:
    """``access`` to ``old`` rewritten to ``new``, whose turns are flattened."""
    place = old.flat(access.indices)
    own = Affine.of(access.indices[0]) if old.rolling else Affine({})
    if place is None or own is None:
        raise LoweringError(f"{access} is read ahead at an index that is not affine")
    if old.rolling:
        place = place.plus(own, -old.strides[0])
    return Access(new, (turn.plus(own), place))


def _later(by: int, access: Access) -> Access:
    """``access`` to a rolling buffer, shifted ``by`` turns later."""
    turn = Affine.of(access.indices[0])
    assert turn is not None
    return Access(access.source, (turn.plus(Affine({}, by)), *access.indices[1:]))


def _in_iteration(stmt: Stmt) -> bool:
    """Whether ``stmt`` allocates pipelined buffers exactly once, outside of its loops."""
    match stmt:
        case Allocate():
            own = bool(stmt.buffer.ahead) and not stmt.buffer.rolling
            return own or _in_iteration(stmt.body)
        case Seq():
            parts = [part for part in stmt.body if _has_ahead(part)]
            return len(parts) == 1 and _in_iteration(parts[0])
    return False


def _same_iteration(stmt: Stmt) -> Iterator[Allocate]:
    """The allocations in ``stmt`` outside of its loops."""
    if isinstance(stmt, Allocate):
        yield stmt
    for part in () if isinstance(stmt, For | Region) else children(stmt):
        yield from _same_iteration(part)


def _after(stmt: Stmt, turns: _Turns) -> _Turns:
    """The turns after ``stmt``, given the turns before it."""
    counts = _allocations(stmt)
    return dict(turns) | {
        name: turns.get(name, Affine({})).plus(Affine({}, count)) for name, count in counts.items()
    }


def _allocations(stmt: Stmt) -> Counter[str]:
    """Number of allocations of each buffer in ``stmt``, by name."""
    found = Counter[str]()
    within = [(stmt, 1)]
    while within:
        part, times = within.pop()
        if not allocations(part):
            continue
        if isinstance(part, For):
            times *= part.extent
        if isinstance(part, Allocate):
            found[part.buffer.name] += times * (part.buffer.shape[0] if part.buffer.rolling else 1)
        within += [(inner, times) for inner in children(part)]
    return found
