"""Plants bugs in modules as they are imported: each replaces one expression.

`install` must run before the modules are imported. In hardware a bug is a multiplexer switched by
the signal `SELECT`, so that one design contains all bugs, and 0 selects none. In software the
expression itself is replaced, one bug per process.
"""

from __future__ import annotations

import ast
import copy
import enum
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import Any
from zlib import crc32

_PLANT = "__plant__"
_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}


class Kind(enum.Enum):
    """The kind of a bug."""

    OPERATOR = "an operator or a condition is another one, or stuck"
    LIMIT = "off by one, in a comparison"
    INDEX = "the first of several elements or bits instead of another"
    SIGN = "a sign, or the highest bit of a field, is ignored"
    STALE = "a state is not cleared"


@dataclass(frozen=True)
class Bug:
    """In ``file``, ``planted`` replaces the expression ``original``; ``number`` distinguishes equal
    bugs of a file.
    """

    file: str
    line: int
    original: str
    planted: str
    number: int = 0
    kind: Kind = Kind.OPERATOR

    @property
    def name(self) -> str:
        again = f" ({self.number + 1})" if self.number else ""
        return f"{self.file}: {self.original} → {self.planted}{again}"


@dataclass(frozen=True)
class Verdict:
    """``layer`` is the first check that catches the bug, or None; ``seconds`` is the processor
    time, or None if unknown.
    """

    bug: Bug
    layer: str | None
    what: str
    seconds: float | None = None


@dataclass
class Plants:
    """The bugs found in the modules imported so far, and the function that chooses among them.

    ``apply(number, original, planted)`` returns the value of an expression; ``planted`` computes
    the alternative. ``named`` are additional bugs to look for: file, original, planted.
    """

    apply: Callable[[int, Any, Callable[[], Any]], Any]
    named: Sequence[tuple[str, str, str]] = ()
    # For hardware: also replace whole values and conditions by 0, constants, indices and signs.
    stuck: bool = True
    bugs: list[Bug] = field(default_factory=list)
    _alike: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def add(self, file: str, node: ast.expr, planted: str, kind: Kind = Kind.OPERATOR) -> int:
        original = ast.unparse(node)
        again = self._alike[file, original, planted]
        self._alike[file, original, planted] += 1
        self.bugs.append(Bug(file, node.lineno, original, planted, again, kind))
        return len(self.bugs) - 1


def install(is_planted: Callable[[str], bool], plants: Plants) -> None:
    """Plant bugs in modules imported later for whose name ``is_planted`` returns True."""
    for name in sys.modules:
        if is_planted(name):
            raise RuntimeError(f"{name} has been imported before bugs could be planted in it")
    sys.meta_path.insert(0, _Finder(is_planted, plants))


def bugs_in(
    source: str,
    file: str,
    named: Sequence[tuple[str, str, str]] = (),
    stuck: bool = False,
) -> list[Bug]:
    """The bugs that can be planted in a module, in the order in which `install` numbers them."""
    plants = Plants(lambda number, original, planted: original, named, stuck)
    _Planter(file, plants).visit(ast.parse(source))
    return plants.bugs


def is_named(bug: Bug, named: Sequence[tuple[str, str, str]]) -> bool:
    """Whether ``bug`` is in ``named``: file, original, planted."""
    return any(
        bug.file.endswith(file) and (bug.original, bug.planted) == (original, planted)
        for file, original, planted in named
    )


def sample(bugs: Iterable[tuple[int, Bug]], count: int) -> list[tuple[int, Bug]]:
    """``count`` of the numbered bugs in operators, and a third as many of other kinds. The choice
    depends on the bugs' names, so that it does not change with the surrounding code.
    """
    ordered = sorted(bugs, key=lambda item: crc32(item[1].name.encode()))
    operators = [item for item in ordered if item[1].kind is Kind.OPERATOR]
    others = [item for item in ordered if item[1].kind is not Kind.OPERATOR]
    chosen = operators[:count] + others[: -(-count // 3)]
    return sorted(chosen, key=lambda item: item[0])


class _Finder:
    def __init__(self, is_planted: Callable[[str], bool], plants: Plants) -> None:
        self._is_planted, self._plants = is_planted, plants

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if not self._is_planted(name):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path, self._plants)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, plants: Plants) -> None:
        super().__init__(name, path)
        self._plants = plants

    def path_stats(self, path: Any) -> Any:
        raise OSError("no bytecode is kept of modules with bugs")

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:  # type: ignore[override]
        file = "/".join(self.name.split(".")[1:]) + ".py"
        tree = _Planter(file, self._plants).visit(ast.parse(data))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def exec_module(self, module: Any) -> None:
        vars(module)[_PLANT] = self._plants.apply
        super().exec_module(module)


class _Planter(ast.NodeTransformer):
    def __init__(self, file: str, plants: Plants) -> None:
        self._file, self._plants = file, plants
        self._in_function = False
        self._in_sync = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        before, self._in_function = self._in_function, True
        node.body = [self.visit(item) for item in node.body]
        self._in_function = before
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self._in_sync = ast.unparse(node.target) == "m.d.sync"
        node.value = self.visit(node.value)
        self._in_sync = False
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = node.value and self.visit(node.value)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        node.body = [self.visit(item) for item in node.body]
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not (self._in_function and isinstance(node, ast.expr)):
            return super().generic_visit(node)
        if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            return super().generic_visit(node)
        others = list(self._others(node))
        result: Any = super().generic_visit(copy.deepcopy(node)) if others else None
        if result is None:
            result = super().generic_visit(node)
        for original, planted, text, kind in others:
            number = self._plants.add(self._file, original, text, kind)
            result = ast.copy_location(_choice(number, result, planted), original)
        return result

    def _others(self, node: ast.expr) -> Iterator[tuple[ast.expr, ast.expr, str, Kind]]:
        """The replacements of an expression."""
        seen = set()
        found = [(Kind.OPERATOR, planted) for planted in _operators(node)]
        found += [(Kind.LIMIT, planted) for planted in _limits(node)]
        found += _misread(node) if self._plants.stuck else []
        for kind, planted in found:
            seen.add(ast.unparse(planted))
            yield node, copy.deepcopy(planted), ast.unparse(planted), kind
        text = ast.unparse(node)
        for file, original, other in self._plants.named:
            if self._file.endswith(file) and text == original and other not in seen:
                yield node, ast.parse(other, mode="eval").body, other, Kind.OPERATOR

    def visit_Call(self, node: ast.Call) -> ast.AST:
        written = copy.deepcopy(node)
        result = self.generic_visit(node)
        call = written.func
        if isinstance(call, ast.Attribute) and call.attr == "clear" and not written.args:
            # Replace the function instead of the call, since the original value would be computed
            # first.
            number = self._plants.add(self._file, written, "None", Kind.STALE)
            assert isinstance(result, ast.Call)
            result.func = _choice(number, result.func, ast.Name("bool", ast.Load()))
            return result
        is_value = isinstance(call, ast.Attribute) and call.attr in ("eq", "If", "Elif")
        if not (self._plants.stuck and is_value and len(written.args) == 1):
            return result
        assert isinstance(call, ast.Attribute)
        argument = written.args[0]
        stuck = 0
        if isinstance(argument, ast.Constant):
            if argument.value not in (0, 1):
                return result
            stuck = int(not argument.value)
        found: list[tuple[ast.expr, Kind]] = [(ast.Constant(stuck), Kind.OPERATOR)]
        is_state = isinstance(call.value, ast.Name | ast.Attribute | ast.Subscript)
        if stuck and self._in_sync and is_state:
            found.append((copy.deepcopy(call.value), Kind.STALE))
        target = result
        while isinstance(target, ast.Call) and ast.unparse(target.func) == _PLANT:
            target = target.args[1]
        assert isinstance(target, ast.Call)
        for planted, kind in found:
            text = f"{ast.unparse(call)}({ast.unparse(planted)})"
            number = self._plants.add(self._file, written, text, kind)
            target.args[0] = _choice(number, target.args[0], planted)
        return result


def _choice(number: int, original: Any, planted: ast.expr) -> ast.expr:
    nothing = ast.arguments([], [], None, [], [], None, [])
    arguments = [ast.Constant(number), original, ast.Lambda(nothing, planted)]
    return ast.Call(ast.Name(_PLANT, ast.Load()), arguments, [])


def _operators(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.BinOp(left, ast.BitAnd() | ast.BitOr(), right):
            yield left
            yield right
        case ast.BinOp(left, ast.Add() | ast.Sub(), _):
            yield left
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(operator, values[1:]) if len(values) > 2 else values[1]
            yield ast.BoolOp(operator, values[:-1]) if len(values) > 2 else values[0]
        case ast.UnaryOp(ast.Invert() | ast.Not(), operand):
            yield operand
        case ast.Compare(left, [operator], [right]) if type(operator) in _FLIPPED:
            yield ast.Compare(left, [_FLIPPED[type(operator)]()], [right])
        case ast.Call(ast.Name("Mux"), [condition, one, other]):
            yield ast.Call(ast.Name("Mux", ast.Load()), [condition, other, one], [])


def _limits(node: ast.expr) -> Iterator[ast.expr]:
    """Comparisons that are off by one, except those that `_operators` yields."""
    if not isinstance(node, ast.Compare):
        return
    for at, operator in enumerate(node.ops):
        if type(operator) not in _FLIPPED:
            continue
        if len(node.ops) > 1:
            flipped = copy.deepcopy(node)
            flipped.ops[at] = _FLIPPED[type(operator)]()
            yield flipped
        more = {ast.LtE: ast.Add, ast.Gt: ast.Add, ast.Lt: ast.Sub, ast.GtE: ast.Sub}
        if type(operator) in more:
            moved = copy.deepcopy(node)
            one = ast.Constant(1)
            moved.comparators[at] = ast.BinOp(moved.comparators[at], more[type(operator)](), one)
            yield moved


def _misread(node: ast.expr) -> list[tuple[Kind, ast.expr]]:
    """Reads of a wrong element, or of a value without its sign or its highest bit."""
    match node:
        case ast.Subscript(value, ast.Name()):
            return [(Kind.INDEX, ast.Subscript(value, ast.Constant(0), ast.Load()))]
        case ast.Subscript(value, ast.Slice(ast.expr() as lower, None, None)):
            below = ast.Slice(lower, ast.Constant(-1))
            return [(Kind.SIGN, ast.Subscript(value, below, ast.Load()))]
        case ast.Call(ast.Attribute(_, "word_select" | "bit_select"), [first, width]):
            if not isinstance(first, ast.Constant):
                return [(Kind.INDEX, ast.Call(node.func, [ast.Constant(0), width], []))]
        case ast.Call(ast.Attribute(value, "as_signed"), []):
            return [(Kind.SIGN, value)]
    return []
