"""Parses expressions of loop nests from Python's syntax tree, and tracks the names in scope."""

from __future__ import annotations

import ast
from itertools import chain

from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS
from amaranth_vta.sw.compiler.te.dtypes import ExpressionError, dtype_interval
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
    Lookup,
    Requantize,
    Var,
    add,
    const,
)
from amaranth_vta.sw.compiler.te.functions import all_of, if_then_else, maximum, minimum

from .ir import NestBuffer


class ParseError(ValueError):
    """The text is not a loop nest; the message gives the line and the problem."""


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


class ExpressionParser:
    """Parses expressions, with the names that are in scope."""

    def __init__(self) -> None:
        # All defined names, and those in scope.
        self.given: dict[str, Var | NestBuffer] = {}
        self.usable: dict[str, Var | NestBuffer] = {}

    def error(self, node: ast.AST, text: str) -> ParseError:
        return ParseError(f"line {getattr(node, 'lineno', '?')}: {text}")

    # Names.

    def define(self, node: ast.AST, name: str, thing: Var | NestBuffer) -> None:
        if name in self.usable:
            raise self.error(node, f"{name} is defined twice")
        self.given[name] = self.usable[name] = thing

    def unnumbered(self, name: str) -> str:
        """``name`` without the number that the printer appended; printing appends it again."""
        base, _, number = name.rpartition("_")
        if not base or not number.isdecimal() or number[0] == "0":
            return name
        before = chain([base], (f"{base}_{other}" for other in range(1, int(number))))
        return base if all(other in self.given for other in before) else name

    def word(self, node: ast.AST) -> str:
        if not isinstance(node, ast.Name):
            raise self.error(node, f"{ast.unparse(node)} is not a name")
        return node.id

    def buffer(self, node: ast.AST) -> NestBuffer:
        found = self.usable.get(self.word(node))
        if not isinstance(found, NestBuffer):
            raise self.error(node, f"{self.word(node)} is not a buffer")
        return found

    def dtype(self, node: ast.AST) -> str:
        name = self.word(node)
        try:
            dtype_interval(name)
        except ExpressionError as error:
            raise self.error(node, str(error)) from None
        return name

    # Numbers.

    def number(self, node: ast.AST) -> int:
        match node:
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
                return -value
        raise self.error(node, f"{ast.unparse(node)} is not a whole number")

    def extent(self, node: ast.AST) -> int:
        number = self.number(node)
        if number < 1:
            raise self.error(node, f"{number} is not positive")
        return number

    def shape(self, node: ast.AST) -> tuple[int, ...]:
        items = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
        return tuple(map(self.extent, items))

    # Expressions.

    def expr(self, node: ast.expr, dtype: str = "int32") -> Expr:
        """The expression of ``node``; an integer constant by itself gets ``dtype``."""
        try:
            return self._expr(node, dtype)
        except ExpressionError as error:
            raise self.error(node, str(error)) from None

    def _expr(self, node: ast.expr, dtype: str) -> Expr:
        match node:
            case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
                value = self.number(node)
                return Affine({}, value) if dtype == "int32" else const(value, dtype)
            case ast.UnaryOp(op=ast.USub()):
                return 0 - self.expr(node.operand, dtype)
            case ast.Name():
                var = self.usable.get(node.id)
                if not isinstance(var, Var):
                    raise self.error(node, f"{node.id} is not a loop")
                return Affine({var: 1})
            case ast.Subscript():
                return self.access(node)
            case ast.BinOp() if type(node.op) in _OPERATORS:
                left, right = self.pair(node.left, node.right, dtype)
                return _binary(_OPERATORS[type(node.op)], left, right)
            case ast.Compare(ops=[op], comparators=[comparator]) if type(op) in _OPERATORS:
                left, right = self.pair(node.left, comparator, dtype)
                return Compare(_OPERATORS[type(op)], left, right)
            case ast.Call():
                return self.call_of(node, dtype)
        raise self.error(node, f"{ast.unparse(node)} is not an expression")

    def access(self, node: ast.Subscript) -> Access:
        buffer = self.buffer(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(parts) != len(buffer.shape):
            raise self.error(
                node, f"{ast.unparse(node)}: {len(parts)} indices for {list(buffer.shape)}"
            )
        return Access(buffer, [self.expr(part) for part in parts])

    def pair(self, left: ast.expr, right: ast.expr, dtype: str) -> tuple[Expr, Expr]:
        """Both sides with one dtype; an integer constant takes the dtype of the other side."""
        for side in (left, right):
            if not _is_constant(side):
                dtype = self.expr(side, dtype).dtype
                break
        first, second = self.expr(left, dtype), self.expr(right, dtype)
        if first.dtype != second.dtype:
            raise self.error(
                left,
                f"{ast.unparse(left)} is {first.dtype} and {ast.unparse(right)} {second.dtype}",
            )
        if _has_data(first) or _has_data(second):
            return as_const(first), as_const(second)
        return first, second

    def call_of(self, node: ast.Call, dtype: str) -> Expr:
        name, count = called(node), len(node.args)
        match name:
            case "min" | "max" if count == 2:
                left, right = self.pair(node.args[0], node.args[1], dtype)
                return (minimum if name == "min" else maximum)(left, right)
            case "all":
                parts = [self.expr(arg) for arg in node.args]
                all_of(*parts)
                return AllOf(parts)
            case "any":
                parts = [self.expr(arg) for arg in node.args]
                all_of(*parts)
                return AnyOf(parts)
            case "requantize" if count == 1 + REQUANTIZE_PARAMETERS:
                return Requantize(*map(self.expr, node.args))
            case "lookup" if count > 1:
                return Lookup(*map(self.expr, node.args))
            case "if_then_else" if count == 3:
                left, right = self.pair(node.args[1], node.args[2], dtype)
                return if_then_else(self.expr(node.args[0]), left, right)
            case _ if count == 1 and isinstance(node.func, ast.Name):
                return Cast(self.expr(node.args[0]), self.dtype(node.func))
        raise self.error(node, f"{ast.unparse(node)} is not an expression")

    def element(self, node: ast.expr) -> tuple[NestBuffer, Expr]:
        """The buffer and the index of ``buffer + index``."""
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


def called(node: ast.AST) -> str:
    """The name that ``node`` calls; empty if it does not call a name."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id
    return ""


def as_const(value: Expr) -> Expr:
    """``value`` as a `Const` of its dtype if it is constant, instead of an `Affine` index."""
    if isinstance(value, Affine) and not value.terms:
        return Const(value.const, value.dtype)
    return value


def _binary(op: str, left: Expr, right: Expr) -> Expr:
    match op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "//" | "%":
            # Keep the divisor a `Const`: these operators check it.
            return left // as_const(right) if op == "//" else left % as_const(right)
    return Binary(op, left, as_const(right))


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)
    )


def _has_data(value: Expr) -> bool:
    return not isinstance(value, Affine | Var | Const)


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    """The keyword arguments of a call."""
    return {str(item.arg): item.value for item in call.keywords}
