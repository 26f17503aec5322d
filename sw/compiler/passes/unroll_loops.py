"""Unrolls loops that the schedule marks, except within regions, which become instructions."""

from __future__ import annotations

from dataclasses import replace

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.nest.ir import For, LoopNest, Region, Stmt, copied, rebuild, seq
from amaranth_vta.sw.compiler.te.expr import Affine


def unroll_loops(nest: LoopNest, _: Config) -> LoopNest:
    """Unroll the loops of kind unroll around instructions."""
    return replace(nest, body=_visit(nest.body))


def _visit(stmt: Stmt) -> Stmt:
    if isinstance(stmt, Region):
        return stmt
    stmt = rebuild(stmt, _visit)
    if isinstance(stmt, For) and stmt.kind == "unroll":
        return seq(
            *(copied(stmt.body, {stmt.var: Affine({}, turn)}, {}) for turn in range(stmt.extent))
        )
    return stmt
