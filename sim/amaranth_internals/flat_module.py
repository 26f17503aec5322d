"""Takes apart the text of a flat module that Yosys wrote.

Relies on the form that `write_verilog -noattr -norename` of Yosys 0.50 gives a module after
``flatten``: each statement begins in the third column and is continued deeper or by its ``end``;
one operator per ``assign``; and blocks ``always @(posedge CLOCK)`` with nonblocking assignments to
one register or memory each, under ``if (..) .. else if (..) ..`` or ``if (..) if (..) .. else ..``,
or in ``begin .. end``.

Why: Yosys has no pass that moves logic into the blocks of registers, and Amaranth's netlist is not
simplified.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_NAME = r"\\(\S+) |(?<![\w'$\\])([A-Za-z_][\w$]*)"
_NAMES = re.compile(_NAME)
_PARTS = re.compile(rf"(?:{_NAME})(?:\s*(\[\d+(?::\d+)?\]))?")
_CONSTANT = re.compile(r"\d+'s?[bodh][0-9a-fxz]+")
_DECLARATION = re.compile(
    r"\s*(wire|reg|input|output) (?:reg |signed )*(?:\[(\d+):0\] )?(\\\S+ |[\w$]+)\s*(\[\d+:0\])?"
)
_WHOLE = re.compile(rf"(?:{_NAME})\s*")
_ASSIGNED = re.compile(
    r"(begin )?((?:\\\S+|[A-Za-z_]\w*)(?: ?\[[^;]*?\])?) <= ([^;]*);(?(1) end)\s*"
)
_CLOCKED = re.compile(r"\s*always @\(posedge (\w+)\)\s*")


class Branch(NamedTuple):
    """One nonblocking assignment of a clocked block: ``target <= value`` if ``condition`` holds,
    or always if it is None.
    """

    condition: str | None
    target: str
    value: str


# Of these branches the first whose condition holds is executed.
Chain = tuple[Branch, ...]


class Block(NamedTuple):
    """An ``always`` block: its clock, its text, and its chains; None if it has another form."""

    clock: str
    text: str
    chains: list[Chain] | None

    @property
    def target(self) -> str:
        """Name of the register or memory that the block assigns; empty if it has another form."""
        return next(names(self.chains[0][0].target)) if self.chains else ""


class ContinuousAssignment(NamedTuple):
    """A continuous assignment: its targets, whether it assigns one of them as a whole, and both
    sides.
    """

    targets: list[str]
    is_whole: bool
    target: str
    value: str


class FlatModule:
    """The statements of the module ``name`` in a Verilog text.

    Attributes
    ----------
    kinds, widths : per name, ``wire``, ``reg``, ``input`` or ``output``, and its bits
    memories : names of memories
    declarations : text of the declarations and functions, in order, by name
    assigns, blocks, instances : the other statements
    """

    def __init__(self, verilog: str, name: str) -> None:
        begin = verilog.index(f"module {name}(")
        body = verilog.index(";\n", begin) + 2
        end = verilog.index("endmodule", body)
        self.name = name
        self.before, self.head, self.after = verilog[:begin], verilog[begin:body], verilog[end:]
        self.kinds: dict[str, str] = {}
        self.widths: dict[str, int] = {}
        self.memories: set[str] = set()
        self.declarations: list[tuple[str, str]] = []
        self.assigns: list[ContinuousAssignment] = []
        self.blocks: list[Block] = []
        self.instances: list[str] = []
        for statement in _statements(verilog[body:end]):
            self._add(statement)

    def _add(self, statement: str) -> None:
        text = statement.strip()
        if declared := _DECLARATION.match(statement):
            kind, high, target, is_memory = declared.groups()
            (name,) = names(target)
            if self.kinds.get(name) != "output":
                self.kinds[name] = kind
            self.widths[name] = int(high or 0) + 1
            if is_memory:
                self.memories.add(name)
            self.declarations.append((name, statement))
        elif text.startswith("function"):
            self.declarations.append(("", statement))
        elif text.startswith("assign "):
            target, value = text.removeprefix("assign ").removesuffix(";").split("=", 1)
            is_whole = _WHOLE.fullmatch(target) is not None
            self.assigns.append(ContinuousAssignment(list(names(target)), is_whole, target, value))
        elif clocked := _CLOCKED.match(statement):
            body = re.sub(r"\s+", " ", statement[clocked.end() :]).strip()
            self.blocks.append(Block(clocked[1], statement, _chains(body)))
        else:
            self.instances.append(statement)


def names(text: str) -> Iterator[str]:
    """Names in an expression, and keywords."""
    return (escaped or plain for escaped, plain in _NAMES.findall(_CONSTANT.sub(" ", f"{text} ")))


def parts(text: str) -> Iterator[tuple[str, str]]:
    """Names in an expression, each with its constant selection of bits; otherwise with an empty
    string.
    """
    for escaped, plain, bits in _PARTS.findall(_CONSTANT.sub(" ", f"{text} ")):
        yield escaped or plain, bits


def written(name: str) -> str:
    """A name as expressions contain it."""
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else f"\\{name} "


def _statements(body: str) -> Iterator[str]:
    lines: list[str] = []
    in_function = False
    for line in body.splitlines():
        continues = in_function or line.startswith("   ") or re.match(r"  (end|\))", line)
        if lines and not continues:
            yield "\n".join(lines)
            lines = []
        if line.startswith("  function"):
            in_function = True
        elif line.startswith("  endfunction"):
            in_function = False
        if line.strip():
            lines.append(line)
    if lines:
        yield "\n".join(lines)


def _chains(body: str) -> list[Chain] | None:
    """The chains of a block with this body, on one line; None if it has another form."""
    rest = body
    if grouped := re.fullmatch(r"begin (.*) end", body):
        rest = grouped[1]
    chains = []
    while rest:
        chain, rest = _chain(rest)
        if chain is None:
            return None
        chains.append(chain)
    # Several chains assign different bits of one word, so their order has no effect.
    targets = {branch.target for chain in chains for branch in chain}
    words = {target.rpartition("[")[0] for target in targets}
    has_one_target = len(targets) == 1 or len(words) == 1 < len(chains) == len(targets)
    return chains if has_one_target else None


def _chain(text: str) -> tuple[Chain | None, str]:
    """The first chain of ``text``, or None, and the rest of the text."""
    branches = []
    while True:
        condition, text = _condition(text)
        if condition is not None and text.startswith("if ("):
            inner, text = _chain(text)
            return _under(condition, inner), text
        assigned = _ASSIGNED.match(text)
        if assigned is None:
            return None, text
        branches.append(Branch(condition, assigned[2], assigned[3]))
        text = text[assigned.end() :]
        if not text.startswith("else "):
            return tuple(branches), text
        text = text.removeprefix("else ")


def _under(condition: str, chain: Chain | None) -> Chain | None:
    """``chain`` in a block that is executed if ``condition`` holds."""
    if chain is None or chain[0].condition is None:
        return None
    return tuple(
        branch._replace(
            condition=f"({condition} ) && ({branch.condition} )" if branch.condition else condition
        )
        for branch in chain
    )


def _condition(text: str) -> tuple[str | None, str]:
    """The condition of an ``if`` at the start of ``text``, or None, and the rest of the text."""
    if not text.startswith("if ("):
        return None, text
    depth = 0
    for at in range(3, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return text[4:at], text[at + 1 :].lstrip()
    return None, text
