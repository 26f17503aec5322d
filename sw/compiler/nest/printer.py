"""Prints loop nests as text in a subset of Python's grammar, which `parse` reads back."""

from __future__ import annotations

from collections.abc import Iterable
from keyword import iskeyword

from amaranth_vta.hw.isa import Memory
from amaranth_vta.sw.compiler.te.expr import (
    Access,
    Affine,
    AllOf,
    AnyOf,
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    Parametrized,
    Select,
    Var,
)

from .ir import (
    Allocate,
    Assign,
    Dma,
    Element,
    For,
    Kernel,
    Label,
    LoopNest,
    NestUop,
    Region,
    Seq,
    Stmt,
    Token,
    WaitForAlu,
    walk,
)


def to_text(nest: LoopNest, labels: bool = False) -> str:
    """``nest`` as text; with ``labels`` each line shows its stage, axis and source line."""
    printer = _Printer(labels)
    args = ", ".join(
        f"{printer.name(arg, arg.name)}: {arg.dtype}{list(arg.shape)}" for arg in nest.args
    )
    printer.lines.append((f"def {Names().of(nest, nest.name)}({args}):", ""))
    printer.write(nest.body, 1)
    return printer.text()


def body_text(nest: LoopNest, labels: bool = False) -> str:
    """The body of ``nest`` alone, as text."""
    printer = _Printer(labels)
    for arg in nest.args:
        printer.name(arg, arg.name)
    printer.write(nest.body, 0)
    return printer.text()


class _Printer:
    def __init__(self, labels: bool) -> None:
        self.labels = labels
        self.lines: list[tuple[str, str]] = []
        self.name = Names().of

    def text(self) -> str:
        if not self.labels:
            return "\n".join(line for line, _ in self.lines)
        width = min(max((len(line) for line, _ in self.lines), default=0), 100)
        return "\n".join(
            f"{line:{width}}  # {label}" if label else line for line, label in self.lines
        )

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
                more = ", rolling=1" if buffer.rolling else ""
                more += f", ahead={buffer.ahead}" if buffer.ahead else ""
                more += f", copies={buffer.copies}" if buffer.copies > 1 else ""
                more += f", bank={buffer.bank}" if buffer.bank is not None else ""
                pitch = buffer.pitch and (buffer.copies > 1 or buffer.rolling)
                more += f", base={buffer.base}" if buffer.base is not None else ""
                more += f", pitch={buffer.pitch}" if pitch else ""
                more += f", pair={buffer.pair}" if buffer.pair else ""
                for key in ("carried", "period", "slots"):
                    more += f", {key}={value}" if (value := getattr(buffer, key)) else ""
                if buffer.parts > 1:
                    more += f", stagger={buffer.stagger}, parts={buffer.parts}"
                self.line(
                    depth,
                    f"{self.name(buffer, buffer.name)} = allocate({buffer.scope}, "
                    f"{buffer.dtype}, {list(buffer.shape)}{more})",
                    Label(buffer.name, "", buffer.origin),
                )
                self.write(stmt.body, depth)
            case Region():
                labels = (part.label for part in walk(stmt) if isinstance(part, Assign))
                self.line(depth, f"with {stmt.kind}():", next(labels, None))
                self.write(stmt.body, depth + 1)
            case Assign():
                target = self.expr(Access(stmt.buffer, stmt.indices))
                self.line(depth, f"{target} = {self.expr(stmt.value)}", stmt.label)
            case Dma():
                self.dma(stmt, depth)
            case NestUop():
                self.line(depth, self.uop(stmt), stmt.label)
            case Kernel():
                self.kernel(stmt, depth)
            case WaitForAlu():
                self.line(depth, "wait_for_alu()", stmt.label)
            case Token():
                call = f"dep_{stmt.action}({stmt.source.name}, {stmt.target.name})"
                if stmt.when is None:
                    self.line(depth, call, stmt.label)
                else:
                    self.line(depth, f"if {self.expr(stmt.when)}:", stmt.label)
                    self.line(depth + 1, call, stmt.label)

    def line(self, depth: int, text: str, label: Label | None = None) -> None:
        self.lines.append(("    " * depth + text, str(label) if label else ""))

    def dma(self, stmt: Dma, depth: int) -> None:
        dram = f"{self.name(stmt.dram, stmt.dram.name)}, {self.expr(stmt.offset)}"
        sram = self.element(Element(stmt.sram, Affine({})), stmt.index)
        size = (
            f"x_size={self.expr(stmt.x_size)}, y_size={self.expr(stmt.y_size)}, "
            f"x_stride={stmt.x_stride}"
        )
        if stmt.memory is Memory.OUT:
            self.line(depth, f"store_buffer_2d({sram}, {dram}, {size})", stmt.label)
            return
        pads = ""
        for name, pad in (("x_pad", stmt.x_pad), ("y_pad", stmt.y_pad)):
            for side, value in zip(("before", "after"), pad, strict=True):
                form = Affine.of(value)
                if form is None or form.terms or form.const:
                    pads += f", {name}_{side}={self.expr(value)}"
        if stmt.pad_value:
            pads += f", pad_value={stmt.pad_value}"
        call = f"load_buffer_2d({dram}, {size}{pads}, sram_index={sram}, memory={stmt.memory.name})"
        if stmt.forwards:
            source = self.element(Element(stmt.dram, Affine({})), stmt.offset)
            call = f"forward_buffer_2d({source}, {size}{pads}, sram_index={sram})"
        self.line(depth, call, stmt.label)

    def element(self, operand: Element, index: Expr | None = None) -> str:
        text = self.expr(operand.index if index is None else index)
        name = self.name(operand.buffer, operand.buffer.name)
        return name if text == "0" else f"{name} + {text}"

    def uop(self, stmt: NestUop) -> str:
        named = [f"{name}={self.element(op)}" for name, op in stmt.operands().items()]
        if stmt.alu is not None:
            named.append(f"op={stmt.alu.name}")
        if stmt.immediate is not None:
            named.append(f"immediate={stmt.immediate}")
        if stmt.reset:
            named.append("reset=1")
        if stmt.overwrite:
            named.append("overwrite=1")
        if stmt.taps:
            named.append("depthwise=1")
        return f"uop_push({', '.join(named)})"

    def kernel(self, stmt: Kernel, depth: int) -> None:
        kind = "gemm" if stmt.uop.alu is None else "alu"
        independent = "independent=1" if stmt.independent else ""
        self.line(depth, f"with push_{kind}({independent}):", stmt.uop.label)
        for loop in stmt.loops:
            depth += 1
            factors = f"dst={loop.dst}, src={loop.src}, wgt={loop.wgt}"
            self.line(depth, f"with uop_loop({loop.extent}, {factors}):", loop.label)
        for unrolled in stmt.unrolled:
            depth += 1
            var = self.name(unrolled.var, unrolled.var.name)
            self.line(depth, f"for {var} in range({unrolled.extent}):", unrolled.label)
        self.line(depth + 1, self.uop(stmt.uop), stmt.uop.label)

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
            case Parametrized():
                operands = (value.value, *value.parameters)
                return f"{value.name}({', '.join(map(self.expr, operands))})"
            case Select():
                parts = (value.condition, value.true, value.false)
                return f"if_then_else({', '.join(map(self.expr, parts))})"
        return str(value)

    def inner(self, value: Expr) -> str:
        text = self.expr(value)
        calls = Cast | Select | Parametrized | AllOf | AnyOf
        simple = isinstance(value, Const | Var | Access | calls) or (
            isinstance(value, Binary) and value.op in ("min", "max")
        )
        if isinstance(value, Affine):
            simple = " " not in text and text[0] != "-"
        return text if simple else f"({text})"


class Names:
    """Assigns unique identifiers to the objects in printed Python, other than ``reserved``."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._taken = set(reserved)
        # Keyed by id; keeps the objects alive, so that ids stay unique.
        self._names: dict[int, tuple[str, object]] = {}

    def of(self, thing: object, wish: str) -> str:
        """The name of ``thing``: ``wish`` as an identifier, numbered if it is taken."""
        if id(thing) not in self._names:
            base = "".join(c if c.isalnum() or c == "_" else "_" for c in wish)
            if not base.isidentifier() or iskeyword(base):
                base = f"_{base}"
            chosen, number = base, 1
            while chosen in self._taken:
                chosen, number = f"{base}_{number}", number + 1
            self._taken.add(chosen)
            self._names[id(thing)] = chosen, thing
        return self._names[id(thing)][0]
