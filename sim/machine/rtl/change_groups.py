"""Change groups: parts of the machine that are evaluated only after something has changed.

The hardware states the activity of the clock groups of `hw/clock_groups.py`; change groups are
found in the netlist. Each group has a separate clock, and the logic that only its registers read
moves into the clocked block, where it costs nothing while the clock rests. The clock may rest if
all registers would keep their values, which holds if none changed at the last tick and if the
group's inputs have not changed since. Inputs are compared if conditions of assignments depend on
them, or values assigned without a condition. Other inputs have an effect only while a condition
holds; a register that depends on them counts as changed at every tick at which it is assigned.

ESSENT (Beamer, Donofrio, DAC 2020) skips partitions whose inputs have not changed, likewise.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from amaranth_vta.sim.amaranth_internals.flat_module import (
    Block,
    Branch,
    Chain,
    ContinuousAssignment,
    FlatModule,
    names,
    parts,
    written,
)

Patterns = Mapping[str, Sequence[str]]
# By group: patterns of the beginnings of its registers' names. The registers of the host change
# with a bus access or a launch; fetch, queues, checks, order, commands and tokens with an
# instruction.
GROUPS: Patterns = {
    "host": (r"registers\.", r"held_"),
    "issue": (
        r"core\.machine\.fetch\.",
        r"core\.machine\.queues\.",
        r"core\.machine\.(load|compute|store)\.(decoder|order)\.",
        r"core\.machine\.(load|compute|store)_to_(load|compute|store)\.",
        r"core\.machine\.compute\.loops\.\w*commands\.",
        r"core\.machine\.compute\.(alu|gemm)_(done|issued)",
    ),
}
_CLOCK = "clk"

# Where logic is evaluated: at each tick of a clock, or only under conditions of a chain.
_Place = tuple[str, tuple[str | None, ...] | None]
# A signal, or constant bits of it.
_Part = tuple[str, str]


def with_change_groups(verilog: str, groups: Patterns = GROUPS) -> str:
    """The flat module ``vta`` in ``verilog`` with an input ``clock_NAME`` for each of ``groups``,
    and an output ``clock_NAME_active``: that clock must tick at the next edge of ``clk``.

    Logic that only the registers of one other clock read moves into its clocked block. A register
    in a block of unknown form keeps its clock. Raises `ValueError` if a pattern matches no register
    of ``clk``.
    """
    return _Grouping(FlatModule(verilog, "vta"), groups).text()


class _Grouping:
    """The logic of a module, and where it is evaluated."""

    def __init__(self, module: FlatModule, groups: Patterns) -> None:
        self._module = module
        self._groups = {f"clock_{name}": patterns for name, patterns in groups.items()}
        self._blocks = self._clocked_blocks()
        self._owners = {block.target: block.clock for block in self._blocks if block.chains}
        self._chains: dict[_Place, list[Chain]] = defaultdict(list)
        for block in self._blocks:
            for chain in block.chains or ():
                if block.clock != _CLOCK:
                    self._chains[_place(block.clock, chain)].append(chain)
        self._moved: dict[str, ContinuousAssignment] = {}
        self._logic: dict[_Place, list[ContinuousAssignment]] = defaultdict(list)
        self._move_logic()

    def text(self) -> str:
        """The Verilog with groups."""
        module = self._module
        lines = [
            text.replace("wire", "reg", 1) if name in self._moved else text
            for name, text in module.declarations
        ]
        for clock in self._groups:
            lines.append(f"  input {clock};\n  wire {clock};\n  output {clock}_active;")
        lines += [
            f"  assign {assign.target}={assign.value};"
            for assign in module.assigns
            if assign.targets[0] not in self._moved
        ]
        lines += [block.text for block in self._blocks if not self._is_taken_apart(block)]
        for clock in dict.fromkeys(clock for clock, _ in self._chains):
            lines += self._clocked(clock)
        ports = "".join(f"{clock}, {clock}_active, " for clock in self._groups)
        head = module.head.replace("(", f"({ports}", 1)
        body = "\n".join([*lines, *module.instances])
        return f"{module.before}{head}{body}\n{module.after}"

    def _clocked_blocks(self) -> list[Block]:
        """All blocks; blocks with registers of a group get its clock."""
        # Yosys divides registers; a part is named after the signal that it drives.
        driven = {
            next(names(assign.value)): assign.targets[0]
            for assign in reversed(self._module.assigns)
            if re.fullmatch(r"\s*\\\S+\s+", assign.value)
        }
        blocks, unused = [], {each for patterns in self._groups.values() for each in patterns}
        # All parts of a register have one clock.
        unknown = {
            name
            for block in self._module.blocks
            if block.chains is None
            for name in self._signals(block.text)
        }
        for block in self._module.blocks:
            name = driven.get(block.target, block.target)
            clock = block.clock
            for group, patterns in self._groups.items():
                found = {pattern for pattern in patterns if re.match(pattern, name)}
                if found and block.clock == _CLOCK and block.target not in unknown:
                    clock = group
                    unused -= found
            blocks.append(block._replace(clock=clock))
        if unused:
            raise ValueError(f"no register of {_CLOCK} matches {min(unused)}")
        return blocks

    def _is_taken_apart(self, block: Block) -> bool:
        return block.clock != _CLOCK and block.chains is not None

    def _move_logic(self) -> None:
        """Move each signal to the smallest place that has all its readers."""
        assigned = [name for assign in self._module.assigns for name in assign.targets]
        divided = {name for name, count in Counter(assigned).items() if count > 1}
        wires = {
            assign.targets[0]: assign
            for assign in self._module.assigns
            if assign.is_whole
            and self._module.kinds[assign.targets[0]] == "wire"
            and assign.targets[0] not in divided
        }
        readers = self._readers(wires)
        users: dict[str, list[str]] = defaultdict(list)
        operands = {name: sorted(self._signals(wire.value)) for name, wire in wires.items()}
        for name, read in operands.items():
            for operand in read:
                users[operand].append(name)
        places: dict[str, _Place | None] = {}
        pending = {name: len(users[name]) for name in wires}
        # Readers first. A loop through the words of signals is never ready, and stays.
        ready = [name for name, count in pending.items() if not count]
        while ready:
            name = ready.pop()
            found = readers[name] | {places[user] for user in users[name]}
            places[name] = self._smallest(found, operands[name])
            for operand in operands[name]:
                if operand in wires:
                    pending[operand] -= 1
                    if not pending[operand]:
                        ready.append(operand)
        for name in reversed(places):
            if (place := places[name]) is not None:
                self._moved[name] = wires[name]
                self._logic[place].append(wires[name])

    def _readers(self, wires: Mapping[str, ContinuousAssignment]) -> dict[str, set[_Place | None]]:
        """Places that read a signal, except for the assignments to ``wires``; None is a place that
        does not move.
        """
        readers: dict[str, set[_Place | None]] = defaultdict(set)
        fixed = [block.text for block in self._blocks if not self._is_taken_apart(block)]
        fixed += [each.value for each in self._module.assigns if each.targets[0] not in wires]
        fixed += self._module.instances
        fixed += [written(name) for name, kind in self._module.kinds.items() if kind == "output"]
        for name in (name for text in fixed for name in self._signals(text)):
            readers[name].add(None)
        for place, chains in self._chains.items():
            for name in self._signals(*_conditions_and_resets(chains)):
                readers[name].add((place[0], None))
            for name in self._signals(*_assignments(chains)):
                readers[name].add(place)
        return readers

    def _smallest(self, readers: set[_Place | None], operands: Iterable[str]) -> _Place | None:
        """The smallest place that contains all ``readers``, or None if the signal must stay."""
        clocks = {place[0] if place else None for place in readers}
        if len(clocks) != 1:
            return None
        (clock,) = clocks
        # The memory of another clock is read whenever it changes.
        memories = self._module.memories.intersection(operands)
        if clock is None or any(self._owners.get(memory) != clock for memory in memories):
            return None
        return readers.pop() if len(readers) == 1 else (clock, None)

    def _signals(self, *texts: str) -> set[str]:
        return {name for text in texts for name in names(text) if name in self._module.kinds}

    def _clocked(self, clock: str) -> Iterator[str]:
        """The block of a clock; of a group, with the output that requests a tick."""
        inputs: set[_Part] = set()
        outside: set[str] = set()
        if clock in self._groups:
            outside = self._outside(clock)
            inputs = set(self._inputs(clock, outside))
            width = sum(self._width(*part) for part in inputs)
            compared = f"{{ {', '.join(written(name) + bits for name, bits in sorted(inputs))} }}"
            yield f"  reg {clock}_changed = 1;\n  reg [{width - 1}:0] {clock}_inputs;"
            yield f"  assign {clock}_active = {clock}_changed | ({clock}_inputs != {compared});"
        yield f"  always @(posedge {clock}) begin"
        if clock in self._groups:
            yield f"    {clock}_changed = 0;\n    {clock}_inputs <= {compared};"
        yield from _logic(self._logic[clock, None])
        for place, chains in self._chains.items():
            if place[0] == clock:
                yield from self._chain(place, chains, inputs, outside)
        yield "  end"

    def _chain(
        self, place: _Place, chains: list[Chain], inputs: set[_Part], outside: set[str]
    ) -> Iterator[str]:
        """Assignments under the same conditions."""
        clock, conditions = place
        for number, branches in enumerate(zip(*chains, strict=True)):
            condition = branches[0].condition
            start = f"if ({condition} ) begin" if condition else "begin"
            yield f"    else {start}" if number else f"    {start}"
            is_last = number == len(chains[0]) - 1
            if is_last and conditions:
                yield from _logic(self._logic[place])
            if clock in self._groups:
                read = self._parts(self._texts(place, chains), outside) if is_last else set()
                if condition and not all(_is_covered(part, inputs) for part in read):
                    yield f"      {clock}_changed = 1;"
                else:
                    yield f"      if ({_differences(branches)}) {clock}_changed = 1;"
            yield from (f"      {branch.target} <= {branch.value} ;" for branch in branches)
            yield "    end"

    def _inputs(self, clock: str, outside: set[str]) -> Iterator[_Part]:
        """Signals from ``outside`` on which conditions depend, or values assigned without one."""
        texts = [wire.value for wire in self._logic[clock, None]]
        for place, chains in self._chains.items():
            if place[0] == clock:
                texts += _conditions_and_resets(chains)
                if chains[0][-1].condition is None:
                    texts += self._texts(place, chains)
        found = self._parts(texts, outside)
        return (part for part in found if not part[1] or (part[0], "") not in found)

    def _texts(self, place: _Place, chains: list[Chain]) -> list[str]:
        """The assignments under the last condition, and the logic that only these read."""
        logic = self._logic[place] if place[1] else []
        return [*_assignments(chains), *(wire.value for wire in logic)]

    def _parts(self, texts: Iterable[str], outside: set[str]) -> set[_Part]:
        return {part for text in texts for part in parts(text) if part[0] in outside}

    def _outside(self, clock: str) -> set[str]:
        """Signals that depend on anything but registers of this clock."""
        readers: dict[str, set[str]] = defaultdict(set)
        for assign in self._module.assigns:
            for name in self._signals(assign.value):
                readers[name].update(assign.targets)
        assigned = {name for assign in self._module.assigns for name in assign.targets}
        found = {
            name
            for name in self._module.kinds
            if self._owners.get(name, None if name in assigned else _CLOCK) not in (None, clock)
        }
        reached = list(found)
        while reached:
            for name in readers[reached.pop()] - found:
                found.add(name)
                reached.append(name)
        return found - self._moved.keys()

    def _width(self, name: str, bits: str) -> int:
        if not bits:
            return self._module.widths[name]
        high, _, low = bits.strip("[]").partition(":")
        return int(high) - int(low or high) + 1


def _place(clock: str, chain: Chain) -> _Place:
    conditions = tuple(branch.condition for branch in chain)
    return clock, None if conditions == (None,) else conditions


def _conditions_and_resets(chains: Iterable[Chain]) -> list[str]:
    branches = [branch for chain in chains for branch in chain]
    resets = [branch.value for chain in chains for branch in chain[:-1]]
    return [*(branch.condition for branch in branches if branch.condition), *resets]


def _assignments(chains: Iterable[Chain]) -> list[str]:
    """Targets, with the bits selected, and values under the last condition."""
    return [f"{chain[-1].target} {chain[-1].value}" for chain in chains]


def _logic(assigns: Iterable[ContinuousAssignment]) -> Iterator[str]:
    return (f"      {assign.target}={assign.value};" for assign in assigns)


def _differences(branches: Iterable[Branch]) -> str:
    return " || ".join(f"({each.target} != {each.value} )" for each in branches)


def _is_covered(part: _Part, inputs: set[_Part]) -> bool:
    """Whether an equal value of ``inputs`` means an equal value of ``part``."""
    return part in inputs or (part[0], "") in inputs
