"""Bodies of stages with inlined stages substituted: `inlined_bodies`."""

from __future__ import annotations

from amaranth_vta.sw.compiler.nest.ir import LoweringError
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Expr, Var
from amaranth_vta.sw.compiler.te.schedule import Schedule, Stage
from amaranth_vta.sw.compiler.te.traverse import rebuild, substitute


def inlined_bodies(schedule: Schedule) -> dict[Stage, Expr]:
    """The expression of each stage that computes something, with what it reads of inlined stages
    computed in place. Raises `LoweringError` if an index is not affine there.
    """
    bodies: dict[Stage, Expr] = {}

    def inlined(value: Expr) -> Expr:
        value = rebuild(value, inlined)
        if not isinstance(value, Access) or not schedule[value.source].inlined:
            return value
        stage = schedule[value.source]
        indices: dict[Var, Affine] = {}
        for axis, index in zip(stage.op.axis, value.indices, strict=True):
            form = Affine.of(index)
            if form is None:
                raise LoweringError(
                    f"{stage.name} cannot be inlined: {value} reads it at an index that is not "
                    "affine"
                )
            indices[axis] = form
        return substitute(bodies[stage], indices)

    for stage in schedule.stages:
        if stage.body is not None:
            bodies[stage] = inlined(stage.body)
    return bodies
