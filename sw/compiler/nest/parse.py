"""The loop-nest form back from its text, as `amaranth_vta.sw.compiler.nest.printer` writes it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from amaranth_vta.hw.isa import AluOp, Memory, Module
from amaranth_vta.sw.compiler.te.dtypes import dtype_interval
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
    Requantize,
    Select,
    Var,
    add,
    const,
)
from amaranth_vta.sw.compiler.te.functions import maximum, minimum

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
    Region,
    Seq,
    Stmt,
    Token,
    Uop,
    UopLoop,
    WaitForAlu,
    seq,
)


class ParseError(ValueError):
    """Text that is not a loop nest, with the number of the line."""


_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.RShift: ">>",
    ast.LShift: "<<",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}


def parse(text: str) -> LoopNest:
    """The function that ``text`` shows; raises `ParseError`."""
    try:
        (definition,) = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise ParseError(f"not one function: {error}") from None
    if not isinstance(definition, ast.FunctionDef):
        raise ParseError("not a function")
    return _Parser().function(definition)


class _Parser:
    def __init__(self) -> None:
        self.names: dict[str, Var | NestBuffer] = {}

    def function(self, definition: ast.FunctionDef) -> LoopNest:
        args = []
        for arg in definition.args.args:
            if not isinstance(arg.annotation, ast.Subscript):
                raise self.error(arg, "an argument has a dtype and a shape")
            shape = (
                tuple(ast.literal_eval(arg.annotation.slice))
                if isinstance(arg.annotation.slice, ast.Tuple)
                else (ast.literal_eval(arg.annotation.slice),)
            )
            buffer = NestBuffer(arg.arg, shape, self.word(arg.annotation.value), "dram")
            self.names[arg.arg] = buffer
            args.append(buffer)
        return LoopNest(definition.name, args, self.block(definition.body))

    def error(self, node: ast.AST, text: str) -> ParseError:
        return ParseError(f"line {getattr(node, 'lineno', '?')}: {text}")

    def word(self, node: ast.AST | None) -> str:
        if not isinstance(node, ast.Name):
            raise self.error(node or ast.Pass(), "a name is expected")
        return node.id

    # Statements.

    def block(self, nodes: Sequence[ast.stmt]) -> Stmt:
        parts: list[Stmt] = []
        for position, node in enumerate(nodes):
            if isinstance(node, ast.Assign) and _called(node.value) == "allocate":
                buffer = self.allocation(node)
                rest = nodes[position + 1 :]
                return seq(*parts, Allocate(buffer, self.block(rest) if rest else Seq([])))
            if not isinstance(node, ast.Pass):
                parts.append(self.stmt(node))
        return seq(*parts)

    def allocation(self, node: ast.Assign) -> NestBuffer:
        assert isinstance(node.value, ast.Call)
        name = self.word(node.targets[0])
        scope, dtype, shape = node.value.args
        more = {str(item.arg): ast.literal_eval(item.value) for item in node.value.keywords}
        buffer = NestBuffer(
            name, tuple(ast.literal_eval(shape)), self.word(dtype), self.word(scope), **more
        )
        self.names[name] = buffer
        return buffer

    def stmt(self, node: ast.stmt) -> Stmt:
        match node:
            case ast.For():
                return self.loop(node)
            case ast.With():
                return self.region(node)
            case ast.Assign():
                return self.assignment(node)
            case ast.If():
                (inner,) = node.body
                token = self.stmt(inner)
                if not isinstance(token, Token):
                    raise self.error(node, "only tokens are conditional")
                token.when = self.expr(node.test)
                return token
            case ast.Expr(value=ast.Call() as call):
                return self.call(call)
        raise self.error(node, f"{ast.unparse(node)} is not a statement of the loop nest")

    def loop(self, node: ast.For) -> For:
        name, kind = self.word(node.target), _called(node.iter)
        assert isinstance(node.iter, ast.Call)
        var = Var(name)
        self.names[name] = var
        extent = ast.literal_eval(node.iter.args[0])
        kind = "serial" if kind == "range" else kind
        return For(var, extent, self.block(node.body), Label("text", name), kind)

    def region(self, node: ast.With) -> Stmt:
        kind = _called(node.items[0].context_expr)
        if kind == "lifetime":
            return self.block(node.body)
        if kind in ("push_gemm", "push_alu"):
            return self.kernel(node)
        return Region(kind, self.block(node.body))

    def kernel(self, node: ast.With) -> Kernel:
        loops: list[UopLoop] = []
        unrolled: list[For] = []
        body: ast.stmt = node.body[0]
        while isinstance(body, ast.With | ast.For):
            if isinstance(body, ast.With):
                call = body.items[0].context_expr
                assert isinstance(call, ast.Call)
                factors = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
                loops.append(UopLoop(ast.literal_eval(call.args[0]), **factors))
            else:
                name = self.word(body.target)
                self.names[name] = var = Var(name)
                assert isinstance(body.iter, ast.Call)
                extent = ast.literal_eval(body.iter.args[0])
                unrolled.append(For(var, extent, Seq([]), Label("text", name)))
            body = body.body[0]
        uop = self.stmt(body)
        if not isinstance(uop, Uop):
            raise self.error(body, "a kernel pushes micro-ops")
        head = node.items[0].context_expr
        independent = isinstance(head, ast.Call) and bool(head.keywords)
        return Kernel(tuple(loops), tuple(unrolled), uop, independent)

    def assignment(self, node: ast.Assign) -> Assign:
        target = self.expr(node.targets[0])
        assert isinstance(target, Access)
        value = _as_const(self.expr(node.value, target.dtype))
        return Assign(target.source, target.indices, value, Label(target.source.name))

    def call(self, node: ast.Call) -> Stmt:
        name = _called(node)
        named = {str(item.arg): item.value for item in node.keywords}
        match name:
            case "dep_push" | "dep_pop":
                source, target = (Module[self.word(arg)] for arg in node.args)
                return Token(name.removeprefix("dep_"), source, target)
            case "wait_for_alu":
                return WaitForAlu()
            case "uop_push":
                return self.uop(named)
            case "load_buffer_2d":
                sram, index = self.element(named["sram_index"])
                dram = self.buffer(node.args[0])
                return self.transfer(
                    Memory[self.word(named["memory"])], dram, node.args[1], sram, index, named
                )
            case "store_buffer_2d":
                sram, index = self.element(node.args[0])
                dram = self.buffer(node.args[1])
                return self.transfer(Memory.OUT, dram, node.args[2], sram, index, named)
        raise self.error(node, f"{name} is not a call of the runtime")

    def transfer(
        self,
        memory: Memory,
        dram: NestBuffer,
        offset: ast.expr,
        sram: NestBuffer,
        index: Expr,
        named: dict[str, ast.expr],
    ) -> Dma:
        def pads(name: str) -> tuple[Expr, Expr]:
            before, after = (
                self.expr(named[key]) if (key := f"{name}_{side}") in named else Affine({})
                for side in ("before", "after")
            )
            return before, after

        return Dma(
            memory,
            dram,
            self.expr(offset),
            sram,
            index,
            self.expr(named["x_size"]),
            self.expr(named["y_size"]),
            ast.literal_eval(named["x_stride"]),
            Label(dram.name if memory is Memory.OUT else sram.name),
            pads("x_pad"),
            pads("y_pad"),
            ast.literal_eval(named["pad_value"]) if "pad_value" in named else 0,
        )

    def uop(self, named: dict[str, ast.expr]) -> Uop:
        operands: dict[str, Any] = {}
        for name in ("dst", "src", "wgt"):
            if name in named:
                buffer, index = self.element(named[name])
                assert isinstance(index, Affine)
                operands[name] = Element(buffer, index)
        return Uop(
            label=Label(operands["dst"].buffer.name),
            reset="reset" in named,
            overwrite="overwrite" in named,
            alu=AluOp[self.word(named["op"])] if "op" in named else None,
            immediate=ast.literal_eval(named["immediate"]) if "immediate" in named else None,
            **operands,
        )

    def buffer(self, node: ast.AST) -> NestBuffer:
        found = self.names.get(self.word(node))
        if not isinstance(found, NestBuffer):
            raise self.error(node, f"{self.word(node)} is not a buffer")
        return found

    def element(self, node: ast.expr) -> tuple[NestBuffer, Expr]:
        """A buffer and the element in it that ``buffer + index`` names."""
        terms: list[ast.expr] = []
        signs: list[int] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            terms.append(node.right)
            signs.append(1 if isinstance(node.op, ast.Add) else -1)
            node = node.left
        index: Expr = Affine({})
        for term, sign in reversed(list(zip(terms, signs, strict=True))):
            value = self.expr(term)
            index = add(index, value) if sign > 0 else index - value
        return self.buffer(node), index

    # Expressions.

    def expr(self, node: ast.expr, dtype: str = "int32") -> Expr:
        """``node``; an integer by itself is of ``dtype``."""
        match node:
            case ast.Constant() | ast.UnaryOp(operand=ast.Constant()):
                value = ast.literal_eval(node)
                return Affine({}, value) if dtype == "int32" else const(value, dtype)
            case ast.UnaryOp(op=ast.USub()):
                return 0 - self.expr(node.operand, dtype)
            case ast.Name():
                var = self.names.get(node.id)
                if not isinstance(var, Var):
                    raise self.error(node, f"{node.id} is not a loop")
                return Affine({var: 1})
            case ast.Subscript():
                buffer = self.buffer(node.value)
                parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                return Access(buffer, [self.expr(part) for part in parts])
            case ast.BinOp():
                left, right = self.pair(node.left, node.right, dtype)
                return self.binary(_OPERATORS[type(node.op)], left, right)
            case ast.Compare():
                left, right = self.pair(node.left, node.comparators[0], dtype)
                return Compare(_OPERATORS[type(node.ops[0])], left, right)
            case ast.Call():
                return self.function_of(node, dtype)
        raise self.error(node, f"{ast.unparse(node)} is not an expression")

    def binary(self, op: str, left: Expr, right: Expr) -> Expr:
        match op:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
        return Binary(op, left, _as_const(right))

    def pair(self, left: ast.expr, right: ast.expr, dtype: str) -> tuple[Expr, Expr]:
        """Two sides of one dtype: that of the side that has one."""
        for side in (left, right):
            if not _is_constant(side):
                dtype = self.expr(side, dtype).dtype
                break
        first, second = self.expr(left, dtype), self.expr(right, dtype)
        if _has_data(first) or _has_data(second):
            return _as_const(first), _as_const(second)
        return first, second

    def function_of(self, node: ast.Call, dtype: str) -> Expr:
        name = _called(node)
        match name:
            case "min" | "max":
                left, right = self.pair(node.args[0], node.args[1], dtype)
                return (minimum if name == "min" else maximum)(left, right)
            case "all":
                return AllOf([self.expr(arg) for arg in node.args])
            case "any":
                return AnyOf([self.expr(arg) for arg in node.args])
            case "requantize":
                return Requantize(*map(self.expr, node.args))
            case "if_then_else":
                left, right = self.pair(node.args[1], node.args[2], dtype)
                return Select(self.expr(node.args[0]), left, right)
        dtype_interval(name)
        return Cast(self.expr(node.args[0]), name)


def _called(node: ast.expr) -> str:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id
    return ""


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)
    )


def _has_data(value: Expr) -> bool:
    return not isinstance(value, Affine | Var | Const)


def _as_const(value: Expr) -> Expr:
    if isinstance(value, Affine) and not value.terms:
        return Const(value.const, value.dtype)
    return value
