"""Parses a loop nest from text written by `amaranth_vta.sw.compiler.nest.printer`."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TypeVar

from amaranth_vta.hw.isa import AluOp, Memory, Module
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Expr, Var

from .ir import (
    Allocate,
    Assign,
    Dma,
    Element,
    For,
    Kernel,
    Label,
    LoopNest,
    NestBuffer,
    NestUop,
    Region,
    Seq,
    Stmt,
    Token,
    UopLoop,
    WaitForAlu,
    seq,
)
from .parse_expressions import ExpressionParser, ParseError, as_const, called, keywords

__all__ = ["ParseError", "parse"]

_SCOPES = ("dram", "inp", "wgt", "acc")
_REGIONS = ("dma_copy", "alu", "gemm")
_LOOPS = {"range": "serial", "unroll": "unroll", "cthread": "cthread"}
# Scope that a transfer of each memory loads or stores.
_TRANSFERRED = {
    Memory.INP: "inp",
    Memory.WGT: "wgt",
    Memory.WGT_4BIT: "wgt",
    Memory.ACC: "acc",
    Memory.ACC_8BIT: "acc",
    Memory.OUT: "acc",
}
# Number of positional arguments of each runtime call that moves data.
_TRANSFERS = {"load_buffer_2d": 2, "store_buffer_2d": 3, "forward_buffer_2d": 1}
_SIZES = ("x_size", "y_size", "x_stride")
_PADS = tuple(f"{axis}_pad_{side}" for axis in "xy" for side in ("before", "after"))
# Attributes of a buffer in an allocation.
_FIELDS = (
    *("rolling", "ahead", "copies", "bank", "base", "pitch", "pair"),
    *("carried", "period", "slots", "stagger", "parts"),
)
_Member = TypeVar("_Member", bound=Enum)


def parse(text: str) -> LoopNest:
    """Parse a loop nest; comments are ignored.

    Raises `ParseError`, with the line number.
    """
    before, zero, _ = text.partition("\0")
    if zero:
        line = before.count("\n") + 1
        raise ParseError(f"line {line}: a character is 0")
    try:
        definitions = ast.parse(text).body
        if not definitions or not isinstance(definitions[0], ast.FunctionDef):
            line = definitions[0].lineno if definitions else 1
            raise ParseError(f"line {line}: a loop nest begins with `def name(…):`")
        for other in definitions[1:]:
            raise ParseError(f"line {other.lineno}: text after the end of the loop nest")
        return _Parser().function(definitions[0])
    except SyntaxError as error:
        raise ParseError(f"line {error.lineno or 1}: {error.msg}") from None
    except (RecursionError, MemoryError):  # Python's parser raises MemoryError
        raise ParseError("its loops or expressions are nested too deeply") from None


class _Parser(ExpressionParser):
    def __init__(self) -> None:
        super().__init__()
        self.extents: dict[Var, int] = {}

    def function(self, definition: ast.FunctionDef) -> LoopNest:
        args = []
        for arg in definition.args.args:
            if not isinstance(arg.annotation, ast.Subscript):
                raise self.error(arg, f"the argument {arg.arg} has no dtype and shape")
            dtype, shape = self.dtype(arg.annotation.value), self.shape(arg.annotation.slice)
            buffer = NestBuffer(self.unnumbered(arg.arg), shape, dtype, "dram")
            self.define(arg, arg.arg, buffer)
            args.append(buffer)
        return LoopNest(definition.name, args, self.block(definition.body))

    def block(self, nodes: Sequence[ast.stmt]) -> Stmt:
        """Parse statements in sequence; names defined in the block go out of scope at its end."""
        outside = dict(self.usable)
        parts: list[Stmt] = []
        for position, node in enumerate(nodes):
            if isinstance(node, ast.Assign) and called(node.value) == "allocate":
                buffer = self.allocation(node)
                rest = nodes[position + 1 :]
                parts.append(Allocate(buffer, self.block(rest) if rest else Seq([])))
                break
            if not isinstance(node, ast.Pass):
                parts.append(self.stmt(node))
        self.usable = outside
        return seq(*parts)

    def allocation(self, node: ast.Assign) -> NestBuffer:
        call = node.value
        assert isinstance(call, ast.Call)
        if len(call.args) != 3:
            raise self.error(node, "allocate takes a scope, a dtype and a shape")
        named = self.named(call, optional=_FIELDS)
        name, scope = self.word(node.targets[0]), self.word(call.args[0])
        if scope not in _SCOPES:
            raise self.error(node, f"{scope} is not one of the scopes {', '.join(_SCOPES)}")
        buffer = NestBuffer(
            self.unnumbered(name), self.shape(call.args[2]), self.dtype(call.args[1]), scope
        )
        for key, value in named.items():
            number = self.extent(value) if key == "copies" else self.number(value)
            setattr(buffer, key, bool(number) if key == "rolling" else number)
        self.define(node, name, buffer)
        return buffer

    def stmt(self, node: ast.stmt) -> Stmt:
        match node:
            case ast.For():
                return self.loop(node)
            case ast.With():
                return self.region(node)
            case ast.Assign():
                return self.assignment(node)
            case ast.If(body=[inner], orelse=[]):
                token = self.stmt(inner)
                if not isinstance(token, Token):
                    raise self.error(node, "only tokens are conditional")
                token.when = self.expr(node.test)
                return token
            case ast.Expr(value=ast.Call() as call):
                return self.call(call)
        raise self.error(node, f"{_first_line(node)} is not a statement of the loop nest")

    def loop(self, node: ast.For) -> For:
        outside = dict(self.usable)
        var, extent = self.loop_head(node)
        body = self.block(node.body)
        self.usable = outside
        return For(var, extent, body, Label("text", var.name), _LOOPS[called(node.iter)])

    def loop_head(self, node: ast.For) -> tuple[Var, int]:
        """The variable of a loop, which is now in scope, and its extent."""
        name = self.word(node.target)
        if called(node.iter) not in _LOOPS or not isinstance(node.iter, ast.Call) or node.orelse:
            raise self.error(node, f"a loop is over one of {', '.join(_LOOPS)}")
        if len(node.iter.args) != 1:
            raise self.error(node, "a loop begins at 0: its one argument is its extent")
        extent = self.extent(node.iter.args[0])
        # A pass that splits a loop in two produces two loops with the same name and extent.
        before = self.given.get(name)
        again = isinstance(before, Var) and self.extents.get(before) == extent
        var = before if again and isinstance(before, Var) else Var(self.unnumbered(name))
        self.extents[var] = extent
        self.define(node, name, var)
        return var, extent

    def region(self, node: ast.With) -> Stmt:
        kind = called(node.items[0].context_expr) if len(node.items) == 1 else ""
        if kind == "lifetime":
            return self.block(node.body)
        if kind in ("push_gemm", "push_alu"):
            return self.kernel(node)
        if kind not in _REGIONS:
            raise self.error(node, f"{_first_line(node)} is not a statement of the loop nest")
        return Region(kind, self.block(node.body))

    def kernel(self, node: ast.With) -> Kernel:
        head = node.items[0].context_expr
        assert isinstance(head, ast.Call)
        independent = bool(self.named(head, optional=("independent",)))
        outside = dict(self.usable)
        loops: list[UopLoop] = []
        unrolled: list[For] = []
        body: ast.stmt = node
        while isinstance(body, ast.With | ast.For):
            if isinstance(body, ast.For):
                var, extent = self.loop_head(body)
                unrolled.append(For(var, extent, Seq([]), Label("text", var.name)))
            elif body is not node:
                loops.append(self.uop_loop(body))
            if len(body.body) != 1:
                raise self.error(body, "an instruction has one micro-op within its loops")
            body = body.body[0]
        uop = self.stmt(body)
        if not isinstance(uop, NestUop) or (uop.alu is None) != (called(head) == "push_gemm"):
            raise self.error(body, f"{called(head)} has no such micro-op")
        self.usable = outside
        return Kernel(tuple(loops), tuple(unrolled), uop, independent)

    def uop_loop(self, node: ast.With) -> UopLoop:
        call = node.items[0].context_expr
        if not isinstance(call, ast.Call) or called(call) != "uop_loop" or len(call.args) != 1:
            raise self.error(node, f"{_first_line(node)} is not a loop of an instruction")
        factors = self.named(call, ("dst", "src", "wgt"))
        dst, src, wgt = (self.number(factors[name]) for name in ("dst", "src", "wgt"))
        return UopLoop(self.extent(call.args[0]), dst, src, wgt)

    def assignment(self, node: ast.Assign) -> Assign:
        target = self.expr(node.targets[0])
        if not isinstance(target, Access) or len(node.targets) > 1:
            raise self.error(node, f"{_first_line(node)} does not assign one element of a buffer")
        value = as_const(self.expr(node.value, target.dtype))
        if value.dtype != target.dtype:
            raise self.error(node, f"{target} is {target.dtype}, its value {value.dtype}")
        return Assign(target.source, target.indices, value, Label(target.source.name))

    # Calls of the runtime.

    def call(self, node: ast.Call) -> Stmt:
        name = called(node)
        counts = {"dep_push": 2, "dep_pop": 2, **_TRANSFERS}
        if len(node.args) != counts.get(name, 0):
            name = ""
        match name:
            case "dep_push" | "dep_pop":
                source, target = (self.member(Module, arg) for arg in node.args)
                return Token(name.removeprefix("dep_"), source, target)
            case "wait_for_alu":
                return WaitForAlu()
            case "uop_push":
                return self.uop(node)
            case "load_buffer_2d" | "store_buffer_2d":
                return self.transfer(node)
            case "forward_buffer_2d":
                return self.forward(node)
        raise self.error(node, f"{ast.unparse(node)} is not a call of the runtime")

    def transfer(self, node: ast.Call) -> Dma:
        is_load = called(node) == "load_buffer_2d"
        if is_load:
            named = self.named(node, (*_SIZES, "sram_index", "memory"), (*_PADS, "pad_value"))
            memory = self.member(Memory, named["memory"])
            place, dram = self.element(named["sram_index"]), self.buffer(node.args[0])
        else:
            named, memory = self.named(node, _SIZES), Memory.OUT
            place, dram = self.element(node.args[0]), self.buffer(node.args[1])
        sram, index = place
        if sram.scope != _TRANSFERRED.get(memory) or dram.scope != "dram":
            raise self.error(
                node,
                f"{memory.name} is not a transfer between {dram.name} in {dram.scope} and "
                f"{sram.name} in {sram.scope}",
            )
        return Dma(
            memory,
            dram,
            self.expr(node.args[-1]),
            sram,
            index,
            self.expr(named["x_size"]),
            self.expr(named["y_size"]),
            self.number(named["x_stride"]),
            Label(sram.name if is_load else dram.name),
            *self.padding(named),
        )

    def forward(self, node: ast.Call) -> Dma:
        named = self.named(node, (*_SIZES, "sram_index"), (*_PADS, "pad_value"))
        (source, offset), (target, index) = map(self.element, (node.args[0], named["sram_index"]))
        if (source.scope, target.scope) != ("acc", "inp"):
            raise self.error(
                node, f"{source.name} in {source.scope} is not forwarded to {target.scope}"
            )
        return Dma(
            Memory.INP,
            source,
            offset,
            target,
            index,
            self.expr(named["x_size"]),
            self.expr(named["y_size"]),
            self.number(named["x_stride"]),
            Label(target.name),
            *self.padding(named),
        )

    def padding(
        self, named: Mapping[str, ast.expr]
    ) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr], int]:
        """Columns and rows of padding before and after, and their value."""
        x_before, x_after, y_before, y_after = (
            self.expr(named[key]) if key in named else Affine({}) for key in _PADS
        )
        value = self.number(named["pad_value"]) if "pad_value" in named else 0
        return (x_before, x_after), (y_before, y_after), value

    def uop(self, node: ast.Call) -> NestUop:
        options = ("src", "wgt", "op", "immediate", "reset", "overwrite", "depthwise")
        named = self.named(node, ("dst",), options)
        products, flags = {"src", "wgt"}, {"overwrite", "depthwise"}
        given = named.keys() - {"dst"}
        expected = [products, {"reset"}]
        if products <= given:
            given -= flags
        operation = self.member(AluOp, named["op"]) if "op" in named else None
        if operation is AluOp.MULTIPLY_ADD:
            expected = [{"op", "src", "wgt"}]
        elif operation is not None:
            expected = [{"op", "src"}, {"op", "immediate"}]
        if given not in expected:
            raise self.error(node, f"{ast.unparse(node)} is not a micro-op of the machine")
        sources = {"src": "inp", "wgt": "wgt"}
        if operation is not None:
            sources = dict.fromkeys(sources, "acc")
        scopes = {"dst": "acc", **sources}
        elements: dict[str, Element] = {}
        for name in scopes.keys() & named.keys():
            buffer, index = self.element(named[name])
            if buffer.scope != scopes[name]:
                raise self.error(node, f"{name} is in {scopes[name]}, not in {buffer.scope}")
            if not isinstance(index, Affine):
                raise self.error(node, f"the index {index} of {name} is not affine")
            elements[name] = Element(buffer, index)
        return NestUop(
            elements["dst"],
            Label(elements["dst"].buffer.name),
            elements.get("src"),
            elements.get("wgt"),
            "reset" in named,
            "overwrite" in named,
            "depthwise" in named,
            operation,
            self.number(named["immediate"]) if "immediate" in named else None,
        )

    def named(
        self, call: ast.Call, needed: Sequence[str] = (), optional: Sequence[str] = ()
    ) -> dict[str, ast.expr]:
        """The keyword arguments of ``call``; raises `ParseError` if one is missing or unknown."""
        found = keywords(call)
        for name in needed:
            if name not in found:
                raise self.error(call, f"{called(call)} has no {name}")
        for name in found:
            if name not in (*needed, *optional):
                raise self.error(call, f"{called(call)} does not take {name}")
        return found

    def member(self, kind: type[_Member], node: ast.expr) -> _Member:
        name = self.word(node)
        if name not in kind.__members__:
            names = ", ".join(kind.__members__)
            raise self.error(node, f"{name} is not one of {names}")
        return kind[name]


def _first_line(node: ast.stmt) -> str:
    return ast.unparse(node).splitlines()[0]
