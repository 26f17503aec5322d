"""The loop-nest form of a function, from plain loops down to calls of the runtime, and its text.

A `Function` holds a tree of statements. Passes replace statements of the first kinds (`Assign`
within a `Region`) by those of the machine (`Dma`, `Uop`, `Kernel`, `Token`); loops, allocations
and sequences stay what they are. Every loop begins at 0 and has a constant extent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Union

from amaranth_vta.hw.isa import AluOp, Memory, Module

from .expr import (
    Access,
    Affine,
    AllOf,
    AnyOf,
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    Interval,
    Origin,
    Requantize,
    Select,
    Var,
)
from .expr import rebuild as rebuild_expression

Stmt = Union[
    "Seq", "For", "Allocate", "Region", "Assign", "Dma", "Uop", "Kernel", "WaitForAlu", "Token"
]


class LoweringError(ValueError):
    """What the compiler or the machine cannot do, and why."""


@dataclass(eq=False)
class Buffer:
    """Dense storage of ``shape`` scalars, row-major, in DRAM or in a scratchpad.

    ``copies`` of it are used in turn. ``base`` is its first element in the scratchpad, ``pitch``
    the elements from one copy to the next, once it has been allocated.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str
    origin: Origin | None = None
    copies: int = 1
    base: int | None = None
    pitch: int = 0

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(prod(self.shape[d + 1 :]) for d in range(len(self.shape)))

    @property
    def scalars(self) -> int:
        return prod(self.shape)

    def flat(self, indices: Sequence[Expr]) -> Affine | None:
        """The scalar that ``indices`` select, counted from the first; None if an index is not
        affine."""
        result = Affine({})
        for index, stride in zip(indices, self.strides, strict=True):
            form = Affine.of(index)
            if form is None:
                return None
            result = result.plus(form, stride)
        return result


@dataclass(frozen=True)
class Label:
    """What a line stands for: a stage, where it matters one of its axes, and their source."""

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

    buffer: Buffer
    body: Stmt


@dataclass(eq=False)
class Region:
    """AllOf of ``body`` is to become ``kind``: dma_copy, alu or gemm. The body is of one stage."""

    kind: str
    body: Stmt


@dataclass(eq=False)
class Assign:
    """``buffer[indices] = value``. ``reduces`` tells an update of a reduction."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    label: Label
    reduces: bool = False


@dataclass(eq=False)
class Dma:
    """A LOAD or a STORE; sizes, stride, pads, ``offset`` and ``index`` count elements.

    Rows of ``x_size`` from element ``offset`` of ``dram``, ``x_stride`` apart; in ``sram`` from
    element ``index`` on, one after the other with the padding. A load where one of its sizes
    is zero is padding alone.
    """

    memory: Memory
    dram: Buffer
    offset: Expr
    sram: Buffer
    index: Expr
    x_size: Expr
    y_size: Expr
    x_stride: int
    label: Label
    x_pad: tuple[Expr, Expr] = (Affine({}), Affine({}))
    y_pad: tuple[Expr, Expr] = (Affine({}), Affine({}))

    @property
    def is_load(self) -> bool:
        return self.memory is not Memory.OUT


@dataclass(frozen=True, eq=False)
class Operand:
    """Element ``index`` of the scratchpad buffer ``buffer``."""

    buffer: Buffer
    index: Affine


@dataclass(eq=False)
class Uop:
    """One micro-op: GEMM (``alu`` is None), with ``reset`` a clearing one, with ``overwrite`` one
    that does not add, or an ALU operation of ``dst`` and either ``src`` or ``immediate``."""

    dst: Operand
    label: Label
    src: Operand | None = None
    wgt: Operand | None = None
    reset: bool = False
    overwrite: bool = False
    alu: AluOp | None = None
    immediate: int | None = None

    def operands(self) -> dict[str, Operand]:
        named = {"dst": self.dst, "src": self.src, "wgt": self.wgt}
        return {name: operand for name, operand in named.items() if operand is not None}


@dataclass(frozen=True)
class UopLoop:
    """A loop of the instruction itself, and what an iteration adds to each index."""

    extent: int
    dst: int
    src: int
    wgt: int


@dataclass(eq=False)
class Kernel:
    """One GEMM or ALU instruction: its two loops around the micro-ops that ``unrolled`` loops
    (outermost first) make of ``uop``. ``independent`` tells the machine that it touches no
    accumulator that the ALU, or GEMM, may still be at."""

    loops: tuple[UopLoop, ...]
    unrolled: tuple[For, ...]
    uop: Uop
    independent: bool = False

    @property
    def uops(self) -> int:
        return prod(loop.extent for loop in self.unrolled)


@dataclass(eq=False)
class WaitForAlu:
    """What GEMM does later, independent or not, begins after what the ALU has to do by now."""


@dataclass(eq=False)
class Token:
    """A push (by ``source``, after its last instruction) or a pop (by ``target``, before its
    next) of the queue from ``source`` to ``target``, where ``when`` holds."""

    action: str
    source: Module
    target: Module
    when: Expr | None = None


@dataclass(eq=False)
class Function:
    """A loop nest with its arguments."""

    name: str
    args: list[Buffer]
    body: Stmt

    def __str__(self) -> str:
        return to_text(self)


def seq(*parts: Stmt) -> Stmt:
    """``parts`` one after the other, without sequences within sequences."""
    flat: list[Stmt] = []
    for part in parts:
        flat += part.body if isinstance(part, Seq) else [part]
    return flat[0] if len(flat) == 1 else Seq(flat)


def is_empty(stmt: Stmt) -> bool:
    return isinstance(stmt, Seq) and not stmt.body


def children(stmt: Stmt) -> list[Stmt]:
    match stmt:
        case Seq():
            return stmt.body
        case For() | Allocate() | Region():
            return [stmt.body]
    return []


def rebuild(stmt: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """``stmt`` with ``change`` applied to the statements directly within it."""
    match stmt:
        case Seq():
            return seq(*map(change, stmt.body))
        case For() | Allocate() | Region():
            return replace(stmt, body=change(stmt.body))
    return stmt


def walk(stmt: Stmt) -> Iterator[Stmt]:
    """``stmt`` and all statements within it, in program order."""
    yield stmt
    for child in children(stmt):
        yield from walk(child)


def map_expressions(stmt: Stmt, change: Callable[[Expr], Expr]) -> Stmt:
    """``stmt`` with ``change`` applied to the indices and values of its assignments."""
    if isinstance(stmt, Assign):
        indices = tuple(map(change, stmt.indices))
        return replace(stmt, indices=indices, value=change(stmt.value))
    return rebuild(stmt, lambda child: map_expressions(child, change))


def copied(
    stmt: Stmt, values: Mapping[Var, Affine], buffers: Mapping[Buffer, Callable[[Access], Access]]
) -> Stmt:
    """A copy of ``stmt``, as it is before any instruction is made, with loops and allocations of
    its own, variables replaced by ``values``, and reads and writes of ``buffers`` changed."""
    names, targets = dict(values), dict(buffers)

    def expression(value: Expr) -> Expr:
        match value:
            case Var():
                return names.get(value, value)
            case Affine():
                return value.replace(names)
        value = rebuild_expression(value, expression)
        if isinstance(value, Access) and value.source in targets:
            return targets[value.source](value)
        return value

    def statement(part: Stmt) -> Stmt:
        match part:
            case For():
                var = Var(part.var.name)
                names[part.var] = Affine({var: 1})
                return replace(part, var=var, body=statement(part.body))
            case Allocate():
                new = replace(part.buffer)
                targets[part.buffer] = lambda access: Access(new, access.indices)
                return Allocate(new, statement(part.body))
            case Assign():
                target = expression(Access(part.buffer, part.indices))
                assert isinstance(target, Access)
                value = expression(part.value)
                return replace(part, buffer=target.source, indices=target.indices, value=value)
        return rebuild(part, statement)

    return statement(stmt)


def loop_ranges(stmt: Stmt) -> dict[Var, Interval]:
    """What the variables of all loops in ``stmt`` can be."""
    ranges: dict[Var, Interval] = {}
    for part in walk(stmt):
        if isinstance(part, For):
            ranges[part.var] = (0, part.extent - 1)
        if isinstance(part, Kernel):
            ranges.update({loop.var: (0, loop.extent - 1) for loop in part.unrolled})
    return ranges


# Text. It is a subset of Python's grammar, so that it can be read back.


def to_text(function: Function, labels: bool = False) -> str:
    """The function as text, with ``labels`` the stage, axis and source line at each line."""
    printer = _Printer(labels)
    args = ", ".join(
        f"{printer.name(arg, arg.name)}: {arg.dtype}{list(arg.shape)}" for arg in function.args
    )
    printer.lines.append((f"def {function.name}({args}):", ""))
    printer.write(function.body, 1)
    return printer.text()


def body_text(function: Function, labels: bool = False) -> str:
    """The body of the function alone, as text."""
    printer = _Printer(labels)
    for arg in function.args:
        printer.name(arg, arg.name)
    printer.write(function.body, 0)
    return printer.text()


class _Printer:
    def __init__(self, labels: bool) -> None:
        self.labels = labels
        self.lines: list[tuple[str, str]] = []
        self.names: dict[int, str] = {}
        self.taken: set[str] = set()
        # Keeps what `names` knows by identity alive.
        self.known: list[object] = []

    def text(self) -> str:
        if not self.labels:
            return "\n".join(line for line, _ in self.lines)
        width = min(max((len(line) for line, _ in self.lines), default=0), 100)
        return "\n".join(
            f"{line:{width}}  # {label}" if label else line for line, label in self.lines
        )

    def name(self, thing: object, wish: str) -> str:
        if id(thing) not in self.names:
            base = "".join(c if c.isalnum() or c == "_" else "_" for c in wish) or "x"
            chosen, number = base, 1
            while chosen in self.taken:
                chosen, number = f"{base}_{number}", number + 1
            self.taken.add(chosen)
            self.names[id(thing)] = chosen
            self.known.append(thing)
        return self.names[id(thing)]

    def write(self, stmt: Stmt, depth: int) -> None:
        match stmt:
            case Seq():
                if not stmt.body:
                    self.line(depth, "pass")
                for position, part in enumerate(stmt.body):
                    if isinstance(part, Allocate) and position + 1 < len(stmt.body):
                        self.line(depth, "with lifetime():")
                        self.write(part, depth + 1)
                    else:
                        self.write(part, depth)
            case For():
                kind = "range" if stmt.kind == "serial" else stmt.kind
                var = self.name(stmt.var, stmt.var.name)
                self.line(depth, f"for {var} in {kind}({stmt.extent}):", stmt.label)
                self.write(stmt.body, depth + 1)
            case Allocate():
                buffer = stmt.buffer
                more = f", copies={buffer.copies}" if buffer.copies > 1 else ""
                more += f", base={buffer.base}" if buffer.base is not None else ""
                more += f", pitch={buffer.pitch}" if buffer.copies > 1 and buffer.pitch else ""
                self.line(
                    depth,
                    f"{self.name(buffer, buffer.name)} = allocate({buffer.scope}, "
                    f"{buffer.dtype}, {list(buffer.shape)}{more})",
                    Label(buffer.name, "", buffer.origin),
                )
                self.write(stmt.body, depth)
            case Region():
                self.line(depth, f"with {stmt.kind}():")
                self.write(stmt.body, depth + 1)
            case Assign():
                target = self.expr(Access(stmt.buffer, stmt.indices))
                self.line(depth, f"{target} = {self.expr(stmt.value)}", stmt.label)
            case Dma():
                self.dma(stmt, depth)
            case Uop():
                self.line(depth, self.uop(stmt), stmt.label)
            case Kernel():
                self.kernel(stmt, depth)
            case WaitForAlu():
                self.line(depth, "wait_for_alu()")
            case Token():
                call = f"dep_{stmt.action}({stmt.source.name}, {stmt.target.name})"
                if stmt.when is None:
                    self.line(depth, call)
                else:
                    self.line(depth, f"if {self.expr(stmt.when)}:")
                    self.line(depth + 1, call)

    def line(self, depth: int, text: str, label: Label | None = None) -> None:
        self.lines.append(("    " * depth + text, str(label) if label else ""))

    def dma(self, stmt: Dma, depth: int) -> None:
        dram = f"{self.name(stmt.dram, stmt.dram.name)}, {self.expr(stmt.offset)}"
        sram = self.element(Operand(stmt.sram, Affine({})), stmt.index)
        size = (
            f"x_size={self.expr(stmt.x_size)}, y_size={self.expr(stmt.y_size)}, "
            f"x_stride={stmt.x_stride}"
        )
        if not stmt.is_load:
            self.line(depth, f"store_buffer_2d({sram}, {dram}, {size})", stmt.label)
            return
        pads = ""
        for name, pad in (("x_pad", stmt.x_pad), ("y_pad", stmt.y_pad)):
            for side, value in zip(("before", "after"), pad, strict=True):
                form = Affine.of(value)
                if form is None or form.terms or form.const:
                    pads += f", {name}_{side}={self.expr(value)}"
        self.line(
            depth,
            f"load_buffer_2d({dram}, {size}{pads}, sram_index={sram}, memory={stmt.memory.name})",
            stmt.label,
        )

    def element(self, operand: Operand, index: Expr | None = None) -> str:
        text = self.expr(operand.index if index is None else index)
        name = self.name(operand.buffer, operand.buffer.name)
        return name if text == "0" else f"{name} + {text}"

    def uop(self, stmt: Uop) -> str:
        named = [f"{name}={self.element(op)}" for name, op in stmt.operands().items()]
        if stmt.alu is not None:
            named.append(f"op={stmt.alu.name}")
        if stmt.immediate is not None:
            named.append(f"immediate={stmt.immediate}")
        if stmt.reset:
            named.append("reset=1")
        if stmt.overwrite:
            named.append("overwrite=1")
        return f"uop_push({', '.join(named)})"

    def kernel(self, stmt: Kernel, depth: int) -> None:
        kind = "gemm" if stmt.uop.alu is None else "alu"
        independent = "independent=1" if stmt.independent else ""
        self.line(depth, f"with push_{kind}({independent}):", stmt.uop.label)
        for loop in stmt.loops:
            depth += 1
            factors = f"dst={loop.dst}, src={loop.src}, wgt={loop.wgt}"
            self.line(depth, f"with uop_loop({loop.extent}, {factors}):")
        for unrolled in stmt.unrolled:
            depth += 1
            var = self.name(unrolled.var, unrolled.var.name)
            self.line(depth, f"for {var} in range({unrolled.extent}):", unrolled.label)
        self.line(depth + 1, self.uop(stmt.uop))

    def expr(self, value: Expr) -> str:
        match value:
            case Affine():
                named = {Var(self.name(v, v.name)): f for v, f in value.terms.items()}
                return str(Affine(named, value.const))
            case Var():
                return self.name(value, value.name)
            case Const():
                return str(value.value)
            case Access():
                indices = ", ".join(map(self.expr, value.indices))
                return f"{self.name(value.source, value.source.name)}[{indices}]"
            case Binary() if value.op in ("min", "max"):
                return f"{value.op}({self.expr(value.left)}, {self.expr(value.right)})"
            case Binary() | Compare():
                return f"{self.inner(value.left)} {value.op} {self.inner(value.right)}"
            case AnyOf():
                return f"any({', '.join(map(self.expr, value.conditions))})"
            case AllOf():
                return f"all({', '.join(map(self.expr, value.conditions))})"
            case Cast():
                return f"{value.dtype}({self.expr(value.value)})"
            case Requantize():
                operands = (value.value, *value.parameters)
                return f"requantize({', '.join(map(self.expr, operands))})"
            case Select():
                parts = (value.condition, value.true, value.false)
                return f"if_then_else({', '.join(map(self.expr, parts))})"
        return str(value)

    def inner(self, value: Expr) -> str:
        text = self.expr(value)
        calls = Cast | Select | Requantize | AllOf | AnyOf
        simple = isinstance(value, Const | Var | Access | calls) or (
            isinstance(value, Binary) and value.op in ("min", "max")
        )
        if isinstance(value, Affine):
            simple = " " not in text and text[0] != "-"
        return text if simple else f"({text})"
