"""Loop nests as data, from plain loops down to runtime calls.

A `LoopNest` holds a tree of statements. Passes replace high-level statements (`Assign` within a
`Region`) by machine statements (`Dma`, `NestUop`, `Kernel`, `Token`); loops, allocations and
sequences remain. Every loop begins at 0 and has a constant extent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from itertools import chain
from math import prod
from operator import is_
from typing import TypeVar, Union

import numpy as np
import numpy.typing as npt

from amaranth_vta.errors import VtaError
from amaranth_vta.hw.isa import AluOp, Memory, Module
from amaranth_vta.sw.compiler.te.dtypes import Interval, dtype_interval
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Expr, Var
from amaranth_vta.sw.compiler.te.origin import Origin
from amaranth_vta.sw.compiler.te.traverse import accesses
from amaranth_vta.sw.compiler.te.traverse import rebuild as rebuild_expression

Turn = TypeVar("Turn", int, npt.NDArray[np.int64])
Found = TypeVar("Found")
Item = TypeVar("Item")
Stmt = Union[
    "Seq", "For", "Allocate", "Region", "Assign", "Dma", "NestUop", "Kernel", "WaitForAlu", "Token"
]


class LoweringError(VtaError, ValueError):
    """The compiler or the machine does not support the request; the message gives the reason."""


@dataclass(eq=False)
class NestBuffer:
    """Dense, row-major storage of ``shape`` scalars, in DRAM or in a scratchpad.

    Its ``copies`` rotate. After allocation, ``base`` is its first element in the scratchpad and
    ``pitch`` the distance between copies, in elements. Where copies alternate between two banks,
    ``pair`` is the distance between pairs of copies, otherwise 0. With ``bank``, all copies are in
    that bank. A buffer with ``ahead`` is computed that many iterations before it is read. The
    operations on a finished buffer are executed in ``parts``, ``stagger`` iterations apart.

    A turn is an iteration of the loops around the allocation. A ``rolling`` buffer outlives the
    iterations that fill it: its first dimension is the turn, and elements are counted over all
    turns, but only the latest ``copies`` turns exist. Turns continue from one allocation to the
    next.

    In a rolling buffer with ``carried``, that many scalars at the beginning of a turn are written
    ``period`` turns earlier, and outlive that many turns. After allocation, each copy has ``slots``
    places for the carried elements, which its turns use from the last one down: the other elements
    of a turn follow its carried elements, where those of earlier turns are dead. ``pair`` is then
    the number of elements of a turn.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str
    origin: Origin | None = None
    copies: int = 1
    base: int | None = None
    pitch: int = 0
    pair: int = 0
    rolling: bool = False
    bank: int | None = None
    ahead: int = 0
    stagger: int = 1
    parts: int = 1
    carried: int = 0
    period: int = 0
    slots: int = 0

    @property
    def copy_elements(self) -> int:
        """Elements of one copy of a rolling buffer after allocation."""
        return self.pair or self.pitch

    @property
    def turns(self) -> int:
        """Number of turns in an allocation."""
        return self.shape[0] if self.rolling else 1

    @property
    def places(self) -> int:
        """Number of turns after which the first elements of turns repeat."""
        return self.copies * max(self.slots, 1)

    def copy_begins(self, turn: Turn) -> Turn:
        """First element of the copy used in ``turn``, a number or an array."""
        assert self.base is not None
        copy = turn % self.copies
        if self.slots:
            slot = self.slots - 1 - turn // self.copies % self.slots
            step = self.carried * self.pair // self.strides[0]
            return self.base + self.pitch * copy + step * slot
        if not self.pair:
            return self.base + self.pitch * copy
        return self.base + self.pitch * (copy % 2) + self.pair * (copy // 2)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        return tuple(prod(self.shape[d + 1 :]) for d in range(len(self.shape)))

    @property
    def interval(self) -> Interval:
        return dtype_interval(self.dtype)

    @property
    def scalars(self) -> int:
        return prod(self.shape)

    def flat(self, indices: Sequence[Expr]) -> Affine | None:
        """The row-major position of the scalar at ``indices``; None if an index is not affine."""
        result = Affine({})
        for index, stride in zip(indices, self.strides, strict=True):
            form = Affine.of(index)
            if form is None:
                return None
            result = result.plus(form, stride)
        return result


def carried_slots(copies: int, period: int, elements: int, carried: int) -> int:
    """Number of places for ``carried`` elements in each of the ``copies`` of a rolling buffer whose
    turns have ``elements``. Carried elements are written ``period`` turns earlier, while other
    turns of the copy are live. Their places are below the live turn or, where the ring wraps
    around, above its last element.
    """
    later = (copies - 1 + period) // copies
    return later - (-elements // carried)


@dataclass(frozen=True)
class Label:
    """The origin of a line: a stage, one of its axes where relevant, and their source line."""

    stage: str
    axis: str = ""
    origin: Origin | None = None

    def __str__(self) -> str:
        name = f"{self.stage}.{self.axis}" if self.axis else self.stage
        return f"{name}, {self.origin}" if self.origin else name


@dataclass(eq=False)
class Seq:
    body: list[Stmt]


@dataclass(eq=False)
class For:
    """``var`` from 0 to ``extent`` - 1. ``kind`` is serial, unroll or cthread."""

    var: Var
    extent: int
    body: Stmt
    label: Label
    kind: str = "serial"


@dataclass(eq=False)
class Allocate:
    """``buffer`` exists within ``body``."""

    buffer: NestBuffer
    body: Stmt


@dataclass(eq=False)
class Region:
    """The ``body``, which belongs to one stage, becomes instructions of ``kind``: dma_copy, alu or
    gemm.
    """

    kind: str
    body: Stmt


@dataclass(eq=False)
class Assign:
    """``buffer[indices] = value``."""

    buffer: NestBuffer
    indices: tuple[Expr, ...]
    value: Expr
    label: Label

    @property
    def updates(self) -> bool:
        """Whether the value depends on the buffer's contents, as in a reduction."""
        return any(access.source is self.buffer for access in reads(self))


@dataclass(eq=False)
class Dma:
    """A LOAD or a STORE; sizes, stride, pads, ``offset`` and ``index`` count elements.

    It moves ``y_size`` rows of ``x_size`` elements. In ``dram`` they begin at element ``offset``,
    ``x_stride`` apart; in ``sram`` they are contiguous from element ``index``, including padding. A
    load with a size of zero is only padding. Every scalar of padding is ``pad_value``.

    If ``dram`` is a buffer of accumulators, it is a STORE that forwards results to the input
    scratchpad; the transfer is then like a LOAD of inputs, with accumulators in place of DRAM.
    """

    memory: Memory
    dram: NestBuffer
    offset: Expr
    sram: NestBuffer
    index: Expr
    x_size: Expr
    y_size: Expr
    x_stride: int
    label: Label
    x_pad: tuple[Expr, Expr] = (Affine({}), Affine({}))
    y_pad: tuple[Expr, Expr] = (Affine({}), Affine({}))
    pad_value: int = 0

    @property
    def is_load(self) -> bool:
        return self.memory is not Memory.OUT and not self.forwards

    @property
    def forwards(self) -> bool:
        return self.dram.scope != "dram"


@dataclass(frozen=True, eq=False)
class Element:
    """Element ``index`` of the scratchpad buffer ``buffer``."""

    buffer: NestBuffer
    index: Affine


@dataclass(eq=False)
class NestUop:
    """One micro-op: GEMM (``alu`` is None), or an ALU operation on ``dst`` and either ``src`` or
    ``immediate``. MULTIPLY_ADD multiplies by ``wgt``, which is in acc too. With ``reset`` GEMM
    clears ``dst``; with ``overwrite`` it overwrites ``dst`` instead of accumulating; with ``taps``
    it is DEPTHWISE, and ``src`` is the first of several elements.
    """

    dst: Element
    label: Label
    src: Element | None = None
    wgt: Element | None = None
    reset: bool = False
    overwrite: bool = False
    taps: bool = False
    alu: AluOp | None = None
    immediate: int | None = None

    def operands(self) -> dict[str, Element]:
        named = {"dst": self.dst, "src": self.src, "wgt": self.wgt}
        return {name: operand for name, operand in named.items() if operand is not None}


@dataclass(frozen=True)
class UopLoop:
    """A loop of the instruction, with the increments of the indices dst, src and wgt."""

    extent: int
    dst: int
    src: int
    wgt: int
    label: Label | None = None


@dataclass(eq=False)
class Kernel:
    """One GEMM or ALU instruction: up to two loops around its micro-ops. The micro-ops are ``uop``
    repeated by the ``unrolled`` loops, outermost first. ``independent`` claims that it touches no
    accumulator that an instruction of the other unit uses while in flight.
    """

    loops: tuple[UopLoop, ...]
    unrolled: tuple[For, ...]
    uop: NestUop
    independent: bool = False


@dataclass(eq=False)
class WaitForAlu:
    """Makes later GEMM instructions, independent or not, wait for all earlier ALU instructions."""

    label: Label | None = None


@dataclass(eq=False)
class Token:
    """A push (by ``source``, after its last instruction) or a pop (by ``target``, before its
    next) of the queue from ``source`` to ``target``, where ``when`` holds."""

    action: str
    source: Module
    target: Module
    when: Expr | None = None
    label: Label | None = None


@dataclass(eq=False)
class LoopNest:
    """A loop nest with its arguments."""

    name: str
    args: list[NestBuffer]
    body: Stmt


def seq(*parts: Stmt) -> Stmt:
    """``parts`` in sequence, with nested sequences flattened."""
    flat: list[Stmt] = []
    for part in parts:
        flat += part.body if isinstance(part, Seq) else [part]
    return flat[0] if len(flat) == 1 else Seq(flat)


def children(stmt: Stmt) -> list[Stmt]:
    match stmt:
        case For() | Allocate() | Region():
            return [stmt.body]
        case Seq():
            return stmt.body
    return []


def rebuild(stmt: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """``stmt`` with ``change`` applied to the statements directly within it; itself if nothing
    changed."""
    match stmt:
        case For() | Allocate() | Region():
            body = change(stmt.body)
            return stmt if body is stmt.body else _around(body, stmt)
        case Seq():
            parts = [change(part) for part in stmt.body]
            return stmt if all(map(is_, parts, stmt.body)) else seq(*parts)
    return stmt


def _around(body: Stmt, stmt: For | Allocate | Region) -> Stmt:
    """``stmt`` with another ``body``; faster than `replace`, as passes do this often."""
    match stmt:
        case For():
            return For(stmt.var, stmt.extent, body, stmt.label, stmt.kind)
        case Allocate():
            return Allocate(stmt.buffer, body)
    return Region(stmt.kind, body)


def walk(stmt: Stmt) -> Iterator[Stmt]:
    """``stmt`` and all statements within it, in program order."""
    within = [stmt]
    while within:
        part = within.pop()
        yield part
        within += reversed(children(part))


def _kept(find: Callable[[Stmt], Found]) -> Callable[[Stmt], Found]:
    """Memoize ``find`` in its argument, since passes replace statements and never change them."""
    name = f"_{find.__name__}"

    @wraps(find)
    def found(stmt: Stmt) -> Found:
        facts = stmt.__dict__
        if name not in facts:
            facts[name] = find(stmt)
        value: Found = facts[name]
        return value

    return found


def _joined(parts: Sequence[tuple[Item, ...]]) -> tuple[Item, ...]:
    return parts[0] if len(parts) == 1 else tuple(chain.from_iterable(parts))


def _union(parts: Sequence[frozenset[Item]]) -> frozenset[Item]:
    return parts[0] if len(parts) == 1 else frozenset[Item]().union(*parts)


@_kept
def assigns(stmt: Stmt) -> tuple[Assign, ...]:
    """The assignments in ``stmt``, in program order."""
    return (stmt,) if isinstance(stmt, Assign) else _joined([*map(assigns, children(stmt))])


@_kept
def allocations(stmt: Stmt) -> tuple[Allocate, ...]:
    """The allocations in ``stmt``, in program order."""
    inner = _joined([*map(allocations, children(stmt))])
    return (stmt, *inner) if isinstance(stmt, Allocate) else inner


@_kept
def written_buffers(stmt: Stmt) -> frozenset[NestBuffer]:
    """The buffers that ``stmt`` assigns to."""
    if isinstance(stmt, Assign):
        return frozenset([stmt.buffer])
    return _union([*map(written_buffers, children(stmt))])


@_kept
def reads(stmt: Stmt) -> tuple[Access, ...]:
    """The accesses in the values that ``stmt`` assigns."""
    if isinstance(stmt, Assign):
        return tuple(accesses(stmt.value))
    return _joined([*map(reads, children(stmt))])


@_kept
def sources(stmt: Stmt) -> frozenset[object]:
    """The buffers, and while bounds are inferred the tensors, that the values assigned by ``stmt``
    read.
    """
    if isinstance(stmt, Assign):
        return frozenset(access.source for access in reads(stmt))
    return _union([*map(sources, children(stmt))])


@_kept
def read_buffers(stmt: Stmt) -> frozenset[NestBuffer]:
    """The buffers that the values assigned by ``stmt`` read."""
    return frozenset(source for source in sources(stmt) if isinstance(source, NestBuffer))


@_kept
def instruction_count(stmt: Stmt) -> int:
    """Number of instructions that ``stmt`` issues."""
    if isinstance(stmt, Dma | Kernel):
        return 1
    times = stmt.extent if isinstance(stmt, For) else 1
    return times * sum(map(instruction_count, children(stmt)))


def map_expressions(stmt: Stmt, change: Callable[[Expr], Expr]) -> Stmt:
    """``stmt`` with ``change`` applied to the indices and values of its assignments."""
    if isinstance(stmt, Assign):
        indices, value = tuple(map(change, stmt.indices)), change(stmt.value)
        if value is stmt.value and all(map(is_, indices, stmt.indices)):
            return stmt
        return Assign(stmt.buffer, indices, value, stmt.label)
    return rebuild(stmt, lambda child: map_expressions(child, change))


def map_reads(stmt: Stmt, source: object, change: Callable[[Access], Access]) -> Stmt:
    """``stmt`` with ``change`` applied to each access to ``source`` in a value, after the accesses
    in its indices.
    """
    if source not in sources(stmt):
        return stmt
    if isinstance(stmt, Assign):
        value = _with_reads(stmt.value, source, change)
        return Assign(stmt.buffer, stmt.indices, value, stmt.label)
    return rebuild(stmt, lambda part: map_reads(part, source, change))


def _with_reads(value: Expr, source: object, change: Callable[[Access], Access]) -> Expr:
    value = rebuild_expression(value, lambda part: _with_reads(part, source, change))
    return change(value) if isinstance(value, Access) and value.source is source else value


def copied(
    stmt: Stmt,
    values: Mapping[Var, Affine],
    buffers: Mapping[NestBuffer, Callable[[Access], Access]],
) -> Stmt:
    """A copy of ``stmt`` with new loops and allocations, variables replaced by ``values``, and
    accesses to ``buffers`` rewritten. ``stmt`` must not contain instructions yet.
    """
    return _Copy(dict(values), dict(buffers)).statement(stmt)


class _Copy:
    """A copy in progress. A class, since functions that call each other are a reference cycle:
    their trees would stay in memory until the garbage collector runs.
    """

    def __init__(
        self, names: dict[Var, Affine], targets: dict[NestBuffer, Callable[[Access], Access]]
    ) -> None:
        self.names, self.targets = names, targets

    def statement(self, part: Stmt) -> Stmt:
        match part:
            case For():
                var = Var(part.var.name)
                self.names[part.var] = Affine({var: 1})
                return For(var, part.extent, self.statement(part.body), part.label, part.kind)
            case Allocate():
                new = replace(part.buffer)
                self.targets[part.buffer] = lambda access: Access(new, access.indices)
                return Allocate(new, self.statement(part.body))
            case Assign():
                target = self.expression(Access(part.buffer, part.indices))
                assert isinstance(target, Access)
                value = self.expression(part.value)
                return Assign(target.source, target.indices, value, part.label)
        return rebuild(part, self.statement)

    def expression(self, value: Expr) -> Expr:
        match value:
            case Var():
                return self.names.get(value, value)
            case Affine():
                return value.replace(self.names)
        value = rebuild_expression(value, self.expression)
        if isinstance(value, Access) and value.source in self.targets:
            return self.targets[value.source](value)
        return value


def loop_ranges(stmt: Stmt) -> dict[Var, Interval]:
    """The intervals of the variables of all loops in ``stmt``."""
    ranges: dict[Var, Interval] = {}
    for part in walk(stmt):
        if isinstance(part, For):
            ranges[part.var] = (0, part.extent - 1)
        if isinstance(part, Kernel):
            ranges.update({loop.var: (0, loop.extent - 1) for loop in part.unrolled})
    return ranges
