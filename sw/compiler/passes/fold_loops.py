"""Folds two loops around micro-ops into the loops of an instruction. The other loops are unrolled
into micro-ops or, where these would exceed the micro-op buffer, repeat the instruction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import ITERATION_WIDTH, AluOp
from amaranth_vta.sw.compiler.nest.ir import (
    For,
    Kernel,
    LoopNest,
    NestUop,
    Seq,
    Stmt,
    UopLoop,
    loop_ranges,
    rebuild,
    seq,
)
from amaranth_vta.sw.compiler.nest.scopes import copy_elements
from amaranth_vta.sw.compiler.te.dtypes import Interval
from amaranth_vta.sw.compiler.te.expr import Affine, Var
from amaranth_vta.sw.compiler.te.simplify import value_interval

_MAX_ITERATIONS = (1 << ITERATION_WIDTH) - 1


def fold_loops(nest: LoopNest, config: Config) -> LoopNest:
    """Gather the micro-ops of ``nest`` into GEMM and ALU instructions."""
    folder = _LoopFolder(config, loop_ranges(nest.body))
    return replace(nest, body=folder.visit(nest.body))


@dataclass
class _UopNest:
    """A perfect nest of loops, outermost first, around one micro-op."""

    loops: tuple[For, ...]
    uop: NestUop


class _LoopFolder:
    def __init__(self, config: Config, ranges: dict[Var, Interval]) -> None:
        self.config = config
        self.ranges = ranges

    def visit(self, stmt: Stmt) -> Stmt:
        return self.fold(self.gather(stmt))

    def fold(self, parts: list[_UopNest | Stmt]) -> Stmt:
        return seq(*(self.instruction(p) if isinstance(p, _UopNest) else p for p in parts))

    def gather(self, stmt: Stmt) -> list[_UopNest | Stmt]:
        """Split ``stmt`` into nests of single micro-ops, as far as its loops can be distributed."""
        match stmt:
            case NestUop():
                return [_UopNest((), stmt)]
            case Seq():
                return [part for child in stmt.body for part in self.gather(child)]
            case For():
                parts = self.gather(stmt.body)
                nests = [part for part in parts if isinstance(part, _UopNest)]
                turns = any(self.steps_turns(stmt, nest.uop) for nest in nests)
                alone = len(nests) == len(parts) and not turns
                if alone and self.can_be_distributed(stmt, nests):
                    return [_UopNest((stmt, *nest.loops), nest.uop) for nest in nests]
                return [replace(stmt, body=self.fold(parts))]
        return [rebuild(stmt, self.visit)]

    def steps_turns(self, loop: For, uop: NestUop) -> bool:
        """Whether the loop steps through turns of a rolling buffer, which instruction loops cannot
        do.
        """
        return any(
            operand.buffer.rolling
            and operand.index.terms.get(loop.var, 0) >= copy_elements(operand.buffer, self.config)
            for operand in uop.operands().values()
        )

    def can_be_distributed(self, loop: For, nests: Sequence[_UopNest]) -> bool:
        """Whether all iterations of one nest may run before those of the next (loop distribution).

        This holds if no two iterations of the loop touch the same accumulator.
        """
        if len(nests) == 1:
            return True
        written = {nest.uop.dst.buffer for nest in nests}
        within = {item.var for nest in nests for item in nest.loops}
        for buffer in written:
            steps, low, high, around = set(), [], [], []
            for operand in (op for nest in nests for op in nest.uop.operands().values()):
                if operand.buffer is buffer:
                    steps.add(operand.index.terms.get(loop.var, 0))
                    terms = {v: f for v, f in operand.index.terms.items() if v is not loop.var}
                    around.append({v: f for v, f in terms.items() if v not in within})
                    inner = {v: f for v, f in terms.items() if v in within}
                    ends = value_interval(Affine(inner, operand.index.const), self.ranges)
                    low.append(ends[0])
                    high.append(ends[1])
            alike = all(terms == around[0] for terms in around)
            if not alike or len(steps) != 1 or abs(steps.pop()) <= max(high) - min(low):
                return False
        return True

    def instruction(self, nest: _UopNest) -> Stmt:
        loops = list(self.joined(nest))
        # The longest loops are folded into the instruction; the order of micro-ops does not matter.
        able = [
            item
            for item in loops
            if min(item.factors) >= 0
            and item.extent <= _MAX_ITERATIONS
            and not _changes_factor(item, nest.uop)
        ]
        chosen = sorted(able, key=lambda item: -item.extent)[:2]
        inner = [item for item in loops if all(item is not other for other in chosen)]
        repeated: list[_Loop] = []
        if nest.uop.alu is not None:
            repeated = [item for item in inner if _repeats(item, nest.uop)]
            inner = [item for item in inner if not _repeats(item, nest.uop)]
        while prod(item.extent for item in inner) > self.config.uop.depth:
            repeated.append(inner.pop(0))
        outside = [item for item in loops if any(item is other for other in chosen)]
        if nest.uop.alu is not None and self.config.overlap:
            # An unchanged source is read only once.
            outside.sort(key=_keeps_source)
        kernel = Kernel(
            tuple(UopLoop(item.extent, *item.factors, item.loop.label) for item in outside),
            tuple(item.loop for item in inner),
            nest.uop,
        )
        result: Stmt = self.without(kernel, chosen)
        for item in reversed(repeated):
            result = replace(item.loop, body=result)
        return result

    def without(self, kernel: Kernel, chosen: Sequence[_Loop]) -> Kernel:
        """The kernel with the variables of its own loops removed from its indices."""
        gone = {item.loop.var: Affine({}) for item in chosen}
        changed = {
            name: replace(operand, index=operand.index.replace(gone))
            for name, operand in kernel.uop.operands().items()
        }
        return replace(kernel, uop=replace(kernel.uop, **changed))  # type: ignore[arg-type]

    def joined(self, nest: _UopNest) -> Iterator[_Loop]:
        """The loops of the nest, with split loops merged again."""
        loops = [_Loop(loop, loop.extent, _factors(nest.uop, loop.var)) for loop in nest.loops]
        again = True
        while again:
            again = False
            for outer in loops:
                for inner in loops:
                    if (
                        outer is not inner
                        and outer.factors == tuple(f * inner.extent for f in inner.factors)
                        and outer.extent * inner.extent <= _MAX_ITERATIONS
                    ):
                        extent = outer.extent * inner.extent
                        axes = f"{outer.loop.label.axis} and {inner.loop.label.axis}"
                        label = replace(inner.loop.label, axis=axes)
                        loop = replace(inner.loop, extent=extent, label=label)
                        place = loops.index(inner)
                        loops[place] = _Loop(loop, extent, inner.factors)
                        nest.uop = _without(nest.uop, outer.loop.var)
                        loops.remove(outer)
                        again = True
                        break
                if again:
                    break
        return iter(loops)


@dataclass(eq=False)
class _Loop:
    """A loop, with its increments of the indices of dst, src and wgt per iteration."""

    loop: For
    extent: int
    factors: tuple[int, int, int]


def _repeats(loop: _Loop, uop: NestUop) -> bool:
    """Whether an ALU instruction is repeated for a loop instead of folding it: consecutive micro-
    ops on one accumulator would stall, alternating REQUANTIZE parameters would be reloaded for each
    vector, and a MULTIPLY_ADD instruction has only one factor.
    """
    accumulator, parameters, _ = loop.factors
    reloads = uop.alu is AluOp.REQUANTIZE and parameters != 0
    return accumulator == 0 or reloads or _changes_factor(loop, uop)


def _keeps_source(loop: _Loop) -> bool:
    """Whether iterations have different destinations but the same source."""
    dst, src, _ = loop.factors
    return bool(dst) and not src


def _changes_factor(loop: _Loop, uop: NestUop) -> bool:
    """Whether iterations are MULTIPLY_ADDs with different factors."""
    return uop.alu is AluOp.MULTIPLY_ADD and loop.factors[2] != 0


def _factors(uop: NestUop, var: Var) -> tuple[int, int, int]:
    operands = uop.operands()
    dst, src, wgt = (
        operands[name].index.terms.get(var, 0) if name in operands else 0
        for name in ("dst", "src", "wgt")
    )
    return dst, src, wgt


def _without(uop: NestUop, gone: Var) -> NestUop:
    """``uop`` without the variable ``gone``, which was merged into another."""
    changed = {
        name: replace(operand, index=operand.index.replace({gone: Affine({})}))
        for name, operand in uop.operands().items()
    }
    return replace(uop, **changed)  # type: ignore[arg-type]
