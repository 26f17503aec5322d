"""Lowers regions marked gemm to GEMM micro-ops, and their initializations to resets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.nest.ir import (
    Assign,
    Element,
    For,
    LoopNest,
    LoweringError,
    NestUop,
    Region,
    Stmt,
    rebuild,
    seq,
)
from amaranth_vta.sw.compiler.nest.scopes import require_scope, tile_scalars
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Binary, Cast, Const, Expr, Var

from .support.tiled_indices import assignments, element_index, flat_index, tile_loops


def tensorize_gemm(nest: LoopNest, config: Config) -> LoopNest:
    """Lower the matrix products of ``nest`` to GEMM micro-ops.

    Raises `LoweringError` for any region other than acc[b, o] += inp[b, i] * wgt[o, i] over one
    block of the machine or, on a machine with DEPTHWISE, acc[b, 2p + q] += inp[t, b, 2p + i] *
    wgt[2p + q, 2t + i] over a block and its taps t.
    """

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Region) and stmt.kind == "gemm":
            parts = assignments(stmt)
            if config.overwrite and _begin_at_zero(parts, config):
                return _tensorize(*parts[1], config, overwrite=True)
            return seq(*(_tensorize(loops, assign, config) for loops, assign in parts))
        return rebuild(stmt, visit)

    return replace(nest, body=visit(nest.body))


def _begin_at_zero(parts: Sequence[tuple[list[For], Assign]], config: Config) -> bool:
    """Whether the region resets each accumulator and then adds the products of one tile."""
    if len(parts) != 2:
        return False
    (_, reset), (loops, update) = parts
    if reset.updates or not update.updates or reset.buffer is not update.buffer:
        return False
    index = flat_index(update.buffer, update.indices, update.label.stage)
    summed = [loop for loop in loops if loop.var not in index.terms]
    is_zero = isinstance(reset.value, Const) and not reset.value.value
    return is_zero and (len(summed) == 1 or len(_taps(loops, index, config)) == len(summed))


def _tensorize(
    loops: Sequence[For], assign: Assign, config: Config, overwrite: bool = False
) -> Stmt:
    stage = assign.label.stage
    require_scope(stage, assign.buffer, config, "acc", "what gemm accumulates")
    index = flat_index(assign.buffer, assign.indices, stage)
    scalars = tile_scalars(config, "acc")
    outputs = tile_loops(loops, index, scalars)
    dst = None if outputs is None else element_index(index, outputs, scalars)
    if outputs is None or dst is None:
        raise LoweringError(
            f"{stage}: {_extents(loops)}; they have to walk through a tile of {config.batch} x "
            f"{config.block_out} accumulators ({assign.buffer.name}: {index})"
        )
    if not assign.updates:
        if not isinstance(assign.value, Const) or assign.value.value:
            raise LoweringError(
                f"{stage}: {assign.value} is not a te.sum of products, which gemm begins at 0"
            )
        uop = NestUop(Element(assign.buffer, dst), assign.label, reset=True)
        return _around([loop for loop in loops if loop.var not in outputs], uop)
    rows = [var for var, factor in outputs.items() if factor >= config.block_out]
    columns = [var for var, factor in outputs.items() if factor < config.block_out]
    inp, wgt = _factors(assign, columns, config)
    inp_index, wgt_index = (flat_index(a.source, a.indices, stage) for a in (inp, wgt))
    taps = _taps(loops, index, config) if len(columns) == 2 else []
    tiles = _tiles(columns, _reduced_loop(loops, index, inp_index, config.block_in), taps, config)
    if tiles is None or len(rows) != (config.batch > 1):
        raise LoweringError(
            f"{stage}: {_extents(loops)}; they have to be {config.batch} rows, "
            f"{config.block_out} outputs and {config.block_in} inputs"
        )
    inp_tile = {**tiles[0], **dict.fromkeys(rows, config.block_in)}
    wgt_tile = {**tiles[1], **dict.fromkeys(rows, 0)}
    src = element_index(inp_index, inp_tile, tile_scalars(config, "inp"))
    weight = element_index(wgt_index, wgt_tile, tile_scalars(config, "wgt"))
    for operand, found, form in ((inp, src, inp_index), (wgt, weight, wgt_index)):
        if found is None:
            shape = (config.batch if operand is inp else config.block_out, config.block_in)
            raise LoweringError(
                f"{stage}: gemm reads {operand}, which does not walk through tiles of "
                f"{shape[0]} x {shape[1]} scalars ({form})"
            )
    assert src is not None
    assert weight is not None
    uop = NestUop(
        Element(assign.buffer, dst),
        assign.label,
        Element(inp.source, src),
        Element(wgt.source, weight),
        overwrite=overwrite,
        taps=bool(taps),
    )
    tile = {*inp_tile, *outputs}
    return _around([loop for loop in loops if loop.var not in tile], uop)


def _around(loops: Sequence[For], uop: NestUop) -> Stmt:
    result: Stmt = uop
    for loop in reversed(loops):
        result = replace(loop, body=result)
    return result


def _reduced_loop(loops: Sequence[For], output: Affine, inp: Affine, extent: int) -> Var | None:
    for loop in loops:
        if loop.extent == extent and loop.var not in output.terms and inp.terms.get(loop.var) == 1:
            return loop.var
    return None


def _tiles(
    columns: Sequence[Var], reduced: Var | None, taps: Sequence[Var], config: Config
) -> tuple[dict[Var, int], dict[Var, int]] | None:
    """Stride of each inner loop, in scalars of an input tile and of a weight tile; None if the
    loops are not those of a product.
    """
    row = config.block_in
    if taps:
        tap, channel = taps
        # The loop over the outputs of a pair, and the loop over pairs.
        one, pair = columns
        tile = tile_scalars(config, "inp")
        return (
            {tap: tile, channel: 1, one: 0, pair: 2},
            {tap: 2, channel: 1, one: row, pair: 2 * row},
        )
    if reduced is None or len(columns) != 1:
        return None
    return {reduced: 1, columns[0]: 0}, {reduced: 1, columns[0]: row}


def _taps(loops: Sequence[For], output: Affine, config: Config) -> list[Var]:
    """The loops over the taps of DEPTHWISE and the channels of a pair; empty if there are none."""
    summed = [loop for loop in loops if loop.var not in output.terms]
    extents = [loop.extent for loop in summed]
    square = config.block_in == config.block_out
    suits = config.taps > 1 and square and extents == [config.taps, 2]
    return [loop.var for loop in summed] if suits else []


def _extents(loops: Sequence[For]) -> str:
    loop = ", ".join(f"{loop.var} ({loop.extent})" for loop in loops)
    return f"the loops from the axis that gemm tensorizes inward are {loop or 'none'}"


def _factors(assign: Assign, columns: Sequence[Var], config: Config) -> tuple[Access, Access]:
    """The two factors, input and weight; ``columns`` are the loops over the outputs of a tile.
    Raises `LoweringError` if one has the wrong scope or dtype.
    """
    value, stage = assign.value, assign.label.stage
    if isinstance(value, Binary) and value.op == "+":
        value = value.right
    accesses = []
    if isinstance(value, Binary) and value.op == "*":
        inner = [_uncast(value.left), _uncast(value.right)]
        accesses = [item for item in inner if isinstance(item, Access)]
    if len(accesses) != 2:
        raise LoweringError(f"{stage}: {value} is not a product of two tensors, which gemm sums up")
    scopes = {item.source.scope: item for item in accesses}
    if set(scopes) == {"inp", "wgt"}:
        inp, wgt = scopes["inp"], scopes["wgt"]
        if _reads(inp, columns) and not _reads(wgt, columns):
            raise LoweringError(
                f"{stage}: {inp.source.name} is in inp_scope and {wgt.source.name} in wgt_scope; "
                f"gemm needs the factor with the axis {columns[0]} of the outputs, "
                f"{inp.source.name}, in wgt_scope and the other in inp_scope"
            )
    else:
        # The weight is the factor whose index depends on the loops over outputs.
        inp, wgt = sorted(accesses, key=lambda item: _reads(item, columns))
    for access, scope in ((inp, "inp"), (wgt, "wgt")):
        require_scope(stage, access.source, config, scope, "a factor of gemm")
    return inp, wgt


def _reads(access: Access, loops: Sequence[Var]) -> bool:
    """Whether an index of ``access`` depends on one of ``loops``."""
    forms = (Affine.of(index) for index in access.indices)
    return any(var in form.terms for form in forms if form is not None for var in loops)


def _uncast(value: Expr) -> Expr:
    return value.value if isinstance(value, Cast) else value
