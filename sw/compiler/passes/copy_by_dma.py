"""Lower regions marked dma_copy to LOAD and STORE instructions.

One instruction moves rows of consecutive tiles with a constant stride. A LOAD can pad all four
sides, with zeros or, with the extension PAD_VALUE, with any one value. Copy loops over contiguous
memory are merged. Of the remaining loops the innermost becomes the row, the next one the number of
rows, and the others repeat the instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import PAD_WIDTH, Memory
from amaranth_vta.sw.compiler.nest.ir import (
    Assign,
    Dma,
    For,
    Label,
    LoopNest,
    LoweringError,
    NestBuffer,
    Region,
    Stmt,
    loop_ranges,
    rebuild,
    seq,
)
from amaranth_vta.sw.compiler.nest.scopes import scope_dtype, scope_name, tile_scalars
from amaranth_vta.sw.compiler.te.dtypes import Interval, wrap
from amaranth_vta.sw.compiler.te.expr import Access, Affine, AllOf, Cast, Const, Expr, Select, Var
from amaranth_vta.sw.compiler.te.functions import all_of, if_then_else, maximum, minimum
from amaranth_vta.sw.compiler.te.simplify import simplify, value_interval

from .support.partition import not_negative
from .support.tiled_indices import assignments, element_index, flat_index, merged_loops, tile_loops

_PAD_LIMIT = (1 << PAD_WIDTH) - 1


def copy_by_dma(nest: LoopNest, config: Config) -> LoopNest:
    """Lower the copies of ``nest`` to LOAD and STORE instructions.

    Raises `LoweringError` for a region that is not a copy, or whose indices or conditions are not
    affine.
    """
    body = _widen(nest.body)
    return replace(nest, body=_Copies(config, loop_ranges(body), nest.args).visit(body))


def _widen(stmt: Stmt) -> Stmt:
    """Move loops whose whole body is a copy into the copy's region."""
    stmt = rebuild(stmt, _widen)
    if isinstance(stmt, For) and isinstance(stmt.body, Region) and stmt.body.kind == "dma_copy":
        return Region("dma_copy", replace(stmt, body=stmt.body.body))
    return stmt


@dataclass
class _Dimension:
    """A loop of a copy: its strides in the scratchpad and in DRAM, in elements, and the iterations
    from ``low`` to ``high`` - 1 that move data; the others are padding.
    """

    var: Var | None
    extent: int
    sram: int
    dram: int
    low: Expr
    high: Expr
    label: Label

    def is_padded(self) -> bool:
        low, high = Affine.of(self.low), Affine.of(self.high)
        whole = Affine({}, self.extent)
        return low is None or high is None or not (low.same(Affine({})) and high.same(whole))


@dataclass(frozen=True)
class _Tiles:
    """Elements of both sides as functions of a copy's loops, and the loops ``within`` a tile."""

    dram: NestBuffer
    offset: Affine
    sram: NestBuffer
    index: Affine
    within: dict[Var, int]


class _Copies:
    def __init__(
        self, config: Config, ranges: dict[Var, Interval], args: Sequence[NestBuffer]
    ) -> None:
        self.config = config
        self.ranges = ranges
        self.args = args

    def visit(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Region) and stmt.kind == "dma_copy":
            return seq(*(self.copy(loops, assign) for loops, assign in assignments(stmt)))
        return rebuild(stmt, self.visit)

    def copy(self, loops: Sequence[For], assign: Assign) -> Stmt:
        loops, assign = merged_loops(loops, assign)
        stage = assign.label.stage
        copied = _copied(self.with_source(assign))
        if copied.pad_value and not self.config.pad_value:
            raise LoweringError(
                f"{stage} is padded with {copied.pad_value}; a machine without the extension "
                "PAD_VALUE pads with 0"
            )
        memory = self.memory(stage, assign.buffer, copied.source.source, copied.is_cast)
        tiles = self.tiles(memory, loops, assign, copied.source)
        dimensions = [
            _Dimension(
                loop.var,
                loop.extent,
                tiles.index.terms.get(loop.var, 0),
                tiles.offset.terms.get(loop.var, 0),
                Affine({}),
                Affine({}, loop.extent),
                loop.label,
            )
            for loop in loops
            if loop.var not in tiles.within
        ]
        guards = self.apply(copied.conditions, dimensions, tiles.within, assign)
        if memory is Memory.OUT and (guards or any(d.is_padded() for d in dimensions)):
            raise LoweringError(f"{stage}: {assign.value} is padded; only loads can be")
        begin: dict[Var, Affine] = {loop.var: Affine({}) for loop in loops}
        one = Affine({}, 1)
        return self.instructions(
            Dma(
                memory,
                tiles.dram,
                tiles.offset.replace(begin),
                tiles.sram,
                tiles.index.replace(begin),
                one,
                one,
                0,
                assign.label,
                pad_value=copied.pad_value,
            ),
            # A dimension with scratchpad stride 0 repeats the others, so it must be outermost.
            self.joined(sorted(dimensions, key=lambda d: (d.sram != 0, -d.sram))),
            guards,
        )

    def with_source(self, assign: Assign) -> Assign:
        """Turn the assignment of a constant into a copy that is only padding, nominally from the
        first suitable argument.
        """
        number, inner = _constant(assign.value, []), assign.value
        while isinstance(inner, Cast):
            inner = inner.value
        dtype = f"int{self.config.out_width}"
        sources = [arg for arg in self.args if arg.scope == "dram" and arg.dtype == dtype]
        if number is None or assign.buffer.scope != "acc" or not sources:
            return assign
        source = sources[0]
        outer = len(source.shape) - 2
        tile = Access(source, (*[Affine({})] * outer, *assign.indices[-2:]))
        never = Affine({}, -1) >= 0
        padded = Select(never, tile, Const(number, dtype))
        return replace(assign, value=Cast(padded, assign.buffer.dtype))

    def tiles(self, memory: Memory, loops: Sequence[For], assign: Assign, source: Access) -> _Tiles:
        """The elements that ``loops`` iterate over. Raises `LoweringError` unless they are whole
        tiles on both sides.
        """
        stage = assign.label.stage
        dram, sram = source, Access(assign.buffer, assign.indices)
        if memory is Memory.OUT:
            dram, sram = sram, dram
        scalars = tile_scalars(self.config, sram.source.scope)
        place = flat_index(dram.source, dram.indices, stage)
        index = flat_index(sram.source, sram.indices, stage)
        within = tile_loops(loops, index, scalars)
        inner = None if within is None else element_index(index, within, scalars)
        outer = None if within is None else element_index(place, within, scalars)
        if within is None or inner is None or outer is None:
            raise LoweringError(
                f"{stage}: the copy {assign.value} does not move whole tiles of {scalars} "
                f"consecutive scalars ({sram.source.name}: {index}, {dram.source.name}: {place})"
            )
        return _Tiles(dram.source, outer, sram.source, inner, within)

    def memory(self, stage: str, target: NestBuffer, source: NestBuffer, is_cast: bool) -> Memory:
        """The memory type of the LOAD or STORE from ``source`` to ``target``. Raises
        `LoweringError` if there is no such transfer.
        """
        out = f"int{self.config.out_width}"
        if target.scope == "dram" and source.scope == "acc":
            if target.dtype != out:
                raise LoweringError(
                    f"{stage} is {target.dtype}; the machine stores accumulators as {out}"
                )
            return Memory.OUT
        forwards = (source.scope, target.scope) == ("acc", "inp") and self.config.forward
        if target.scope == "dram" or (source.scope != "dram" and not forwards):
            raise LoweringError(f"{stage}: {self.misplaced(target, source)}")
        dtype = scope_dtype(self.config, target.scope)
        if target.dtype != dtype:
            raise LoweringError(
                f"{stage} is {target.dtype}; {scope_name(target.scope)} holds {dtype}"
            )
        if forwards:
            return Memory.INP
        if target.scope == "acc" and source.dtype == out and (is_cast or out == dtype):
            return Memory.ACC if out == dtype else Memory.ACC_8BIT
        if target.scope == "wgt" and (source.dtype, dtype) == ("int4", "int8") and is_cast:
            if not self.config.wgt_4bit:
                raise LoweringError(
                    f"{stage}: {source.name} is int4; a machine without the extension WGT_4BIT "
                    "loads weights of 8 bits"
                )
            return Memory.WGT_4BIT
        if source.dtype != dtype:
            also = f" or {out}" if target.scope == "acc" else ""
            raise LoweringError(
                f"{stage}: {source.name} is {source.dtype}; a load into "
                f"{scope_name(target.scope)} takes {dtype}{also}"
            )
        return {"inp": Memory.INP, "wgt": Memory.WGT, "acc": Memory.ACC}[target.scope]

    def misplaced(self, target: NestBuffer, source: NestBuffer) -> str:
        """Which of the two buffers is in a scope that no transfer supports there."""
        if target.scope != "dram":
            also = " or, into inp_scope, acc_scope" if self.config.forward else ""
            here = scope_name(source.scope)
            return f"{source.name} is in {here}; what dma_copy loads has to be in dram{also}"
        if source.scope != "dram":
            here = scope_name(source.scope)
            return f"{source.name} is in {here}; what dma_copy stores has to be in acc_scope"
        return (
            f"both {source.name} and {target.name} are in dram; dma_copy loads into inp_scope, "
            "wgt_scope or acc_scope, which set_scope chooses, and stores from acc_scope"
        )

    # Conditions: which iterations are data.

    def apply(
        self,
        conditions: Sequence[Expr],
        dimensions: Sequence[_Dimension],
        tile: dict[Var, int],
        assign: Assign,
    ) -> list[Affine]:
        """Narrow ``dimensions`` to the iterations where ``conditions`` hold. Returns guards: affine
        forms of the loops around the copy, which moves data only if none is negative.
        """
        guards = []
        for condition in conditions:
            forms = not_negative(condition)
            if forms is None:
                raise LoweringError(
                    f"{assign.label.stage}: the condition {condition} is not a comparison of "
                    "affine indices"
                )
            for form in forms:
                within = [var for var in tile if var in form.terms]
                if within:
                    raise LoweringError(
                        f"{assign.label.stage}: {condition} depends on {within[0]}, within a tile; "
                        "only whole tiles are padded"
                    )
                own = [d for d in dimensions if d.var is not None and d.var in form.terms]
                if len(own) > 1:
                    raise LoweringError(
                        f"{assign.label.stage}: {condition} joins the loops {own[0].var} and "
                        f"{own[1].var}; each loop is padded by itself"
                    )
                if own:
                    self.narrow(own[0], form)
                else:
                    guards.append(form)
        for dimension in dimensions:
            dimension.low = self.clamp(dimension.low, dimension.extent)
            dimension.high = self.clamp(dimension.high, dimension.extent)
        return guards

    def narrow(self, dimension: _Dimension, form: Affine) -> None:
        assert dimension.var is not None
        factor = form.terms[dimension.var]
        rest = form.plus(Affine({dimension.var: factor}), -1)
        if factor > 0:
            # v >= ceil(-rest / factor)
            least = rest.times(-1) if factor == 1 else 0 - rest // factor
            dimension.low = maximum(dimension.low, least)
        else:
            most = rest if factor == -1 else rest // -factor
            dimension.high = minimum(dimension.high, most + 1)

    def clamp(self, value: Expr, extent: int) -> Expr:
        return simplify(maximum(minimum(value, extent), 0), self.ranges)

    # Shape: which loops are within the instruction.

    def joined(self, dimensions: list[_Dimension]) -> list[_Dimension]:
        """``dimensions``, outermost first, with dimensions merged that are contiguous on both
        sides.
        """
        result: list[_Dimension] = []
        for dimension in dimensions:
            result.append(dimension)
        position = len(result) - 1
        while position > 0:
            outer, inner = result[position - 1], result[position]
            if self.contiguous(outer, inner, len(result)):
                result[position - 1 : position + 1] = [
                    _Dimension(
                        None,
                        outer.extent * inner.extent,
                        inner.sram,
                        inner.dram,
                        outer.low * inner.extent,
                        outer.high * inner.extent,
                        inner.label,
                    )
                ]
            position -= 1
            position = min(position, len(result) - 1)
        return result

    def contiguous(self, outer: _Dimension, inner: _Dimension, count: int) -> bool:
        if inner.is_padded():
            return False
        if (outer.sram, outer.dram) != (inner.extent * inner.sram, inner.extent * inner.dram):
            return False
        if not outer.is_padded():
            return True
        # Padding whole rows is cheaper than padding within one long row, unless merging saves
        # instructions.
        before = value_interval(outer.low, self.ranges)[1]
        after = outer.extent - value_interval(outer.high, self.ranges)[0]
        return count > 2 and max(before, after) * inner.extent <= _PAD_LIMIT

    def instructions(
        self, base: Dma, dimensions: list[_Dimension], guards: Sequence[Affine]
    ) -> Stmt:
        x = y = None
        if dimensions and (dimensions[-1].sram, dimensions[-1].dram) == (1, 1):
            x = dimensions.pop()
        columns = x.extent if x else 1
        if dimensions and dimensions[-1].sram == columns and dimensions[-1].dram >= 0:
            y = dimensions.pop()
        loops: list[For] = []
        offset, index, conditions = base.offset, base.index, [form >= 0 for form in guards]
        for dimension in dimensions:
            var = Var("part") if dimension.var is None else dimension.var
            if dimension.is_padded():
                here = Affine({var: 1})
                conditions += [here >= dimension.low, here < dimension.high]
            self.ranges[var] = (0, dimension.extent - 1)
            offset = offset + Affine({var: dimension.dram})
            index = index + Affine({var: dimension.sram})
            loops.append(For(var, dimension.extent, base, dimension.label))
        x_pad, x_size = self.size(x)
        y_pad, y_size = self.size(y)
        offset = offset + x_pad[0] + y_pad[0] * (y.dram if y else 0)
        conditions = [c for c in (simplify(c, self.ranges) for c in conditions) if not _holds(c)]
        if conditions:
            # Where a guard does not hold, the whole transfer is padding.
            inside = all_of(*conditions)
            y_size = if_then_else(inside, y_size, 0)
            y_pad = (y_pad[0], (y.extent if y else 1) - y_size - y_pad[0])
        result: Stmt = replace(
            base,
            # A transfer that is only padding ignores its offset, but the offset must not be
            # negative.
            offset=simplify(maximum(offset, 0), self.ranges),
            index=index,
            x_size=simplify(x_size, self.ranges),
            y_size=simplify(y_size, self.ranges),
            x_stride=y.dram if y else columns,
            x_pad=(simplify(x_pad[0], self.ranges), simplify(x_pad[1], self.ranges)),
            y_pad=(simplify(y_pad[0], self.ranges), simplify(y_pad[1], self.ranges)),
        )
        for loop in reversed(loops):
            result = replace(loop, body=result)
        return result

    def size(self, dimension: _Dimension | None) -> tuple[tuple[Expr, Expr], Expr]:
        """((padding before, padding after), data) of one dimension."""
        if dimension is None:
            return (Affine({}), Affine({})), Affine({}, 1)
        before = simplify(minimum(dimension.low, dimension.high), self.ranges)
        return (before, dimension.extent - dimension.high), dimension.high - before


def _holds(condition: Expr) -> bool:
    return isinstance(condition, Const) and bool(condition.value)


@dataclass(frozen=True)
class _Copied:
    """A copy: ``source`` where all ``conditions`` hold, ``pad_value`` elsewhere; ``is_cast`` if it
    casts to another dtype.
    """

    source: Access
    conditions: list[Expr]
    pad_value: int
    is_cast: bool


def _copied(assign: Assign) -> _Copied:
    stage, value = assign.label.stage, assign.value
    conditions, pad_values, casts = list[Expr](), set[int](), list[str]()
    while not isinstance(value, Access):
        match value:
            case Cast():
                casts.append(value.dtype)
                value = value.value
            case Select():
                padding = _constant(value.false, casts)
                if padding is None:
                    raise LoweringError(
                        f"{stage}: {value} pads with {value.false}; the machine pads with one "
                        "constant"
                    )
                pad_values.add(padding)
                condition = value.condition
                conditions += condition.conditions if isinstance(condition, AllOf) else [condition]
                value = value.true
            case _:
                raise LoweringError(
                    f"{stage}: {assign.value} is not a copy; dma_copy copies one tensor, with "
                    "padding where if_then_else says so"
                )
    if len(pad_values) > 1:
        several = " and ".join(map(str, sorted(pad_values)))
        raise LoweringError(f"{stage} is padded with {several}; a copy pads with one value")
    return _Copied(value, conditions, max(pad_values, default=0), bool(casts))


def _constant(value: Expr, casts: Sequence[str]) -> int | None:
    """The value of a constant after ``casts``, outermost first; None if ``value`` is not
    constant."""
    if isinstance(value, Cast):
        return _constant(value.value, [*casts, value.dtype])
    if not isinstance(value, Const):
        return None
    number = value.value
    for dtype in reversed(casts):
        number = wrap(number, dtype)
    return number
