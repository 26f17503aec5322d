"""Schedules that follow from the expressions of an operator and the size of a tile."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Binary, Expr, IterVar, Reduce, Var
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.te.traverse import accesses


def tile_schedule(
    y: Tensor,
    extents: Sequence[int],
    env: Environment,
    *,
    steps: Sequence[int] = (),
    order: Sequence[int] = (),
    inlined: Collection[Tensor] = (),
    outermost: Mapping[Tensor, IterVar] | None = None,
    others: Collection[Tensor] = (),
) -> te.Schedule:
    """A schedule that stores ``y`` in tiles of ``extents`` along its first axes, in units of
    ``steps``, and in the ``order`` of these axes, outermost first.

    Every tensor that is not ``inlined`` is computed by the unit that its expression is for, where
    all units can read it: copies of arguments in the scratchpad of their readers, sums of products
    by GEMM, copies of accumulators to the input scratchpad, all others by the ALU. Sums begin with
    the loops that are summed over, so that consecutive additions use different accumulators; a loop
    in ``outermost`` precedes all others. Arguments are loaded in the innermost loop over tiles that
    their region depends on; all else is computed for each tile. The caller places ``others``.
    """
    s = te.create_schedule(y.op)
    for tensor in inlined:
        s[tensor].compute_inline()
    outer: list[IterVar] = []
    inner: list[IterVar] = []
    for axis, extent, step in zip(y.op.axis, extents, steps or [1] * len(extents), strict=False):
        first, rest = s[y].split(axis, extent * step)
        outer.append(first)
        inner += s[y].split(rest, step) if step > 1 else [rest]
    numbers = order or range(len(outer))
    loops = [outer[number] for number in numbers]
    s[y].reorder(*loops, *inner, *y.op.axis[len(extents) :])
    s[y].pragma(inner[0], env.dma_copy)
    tiled = _Tensors(s, y)
    for stage in s.stages:
        tensor = stage.tensor
        if tensor is y or stage.body is None or stage.inlined or tensor in others:
            continue
        first_loop = (outermost or {}).get(tensor)
        if tiled.is_argument(tensor):
            _load(s, tensor, tiled, env)
            read = tiled.axes_read(tensor)
            met = [outer[number] for number in numbers if number in read]
            if met:
                stage.compute_at(s[y], met[-1])
            continue
        stage.compute_at(s[y], loops[-1])
        if _factors(tensor) is not None:
            _multiply(s, tensor, first_loop, env)
        elif tensor.dtype == env.inp_dtype:
            stage.set_scope(env.inp_scope)
            stage.pragma(tensor.op.axis[0], env.dma_copy)
        else:
            _calculate(s, tensor, first_loop, env)
    return s


class _Tensors:
    """Who reads each tensor, and which axes of ``y`` its region depends on."""

    def __init__(self, s: te.Schedule, y: Tensor) -> None:
        self.s = s
        self.readers: dict[Tensor, list[tuple[Tensor, Access]]] = {}
        for stage in s.stages:
            for access in accesses(stage.body) if stage.body is not None else ():
                self.readers.setdefault(access.source, []).append((stage.tensor, access))
        # For each axis of a tensor, the axes of ``y`` that its region depends on there.
        self._axes = {y: [{number} for number in range(len(y.shape))]}
        for stage in reversed(s.stages):
            if stage.tensor is not y:
                self._axes[stage.tensor] = self._axes_of(stage.tensor)

    def is_argument(self, tensor: Tensor) -> bool:
        """Whether a tensor is a copy of an argument, or of several."""
        assert tensor.op.body is not None
        return all(
            access.source.op.body is None or self.s[access.source].inlined
            for access in accesses(tensor.op.body)
        )

    def is_weight(self, tensor: Tensor) -> bool:
        """Whether products read a tensor as weights."""
        factors = (_factors(reader) for reader, _ in self.readers[tensor])
        return any(pair is not None and pair[1] is tensor for pair in factors)

    def axes_read(self, tensor: Tensor) -> set[int]:
        """The axes of ``y`` that the region of a tensor depends on."""
        return set().union(*self._axes[tensor])

    def _axes_of(self, tensor: Tensor) -> list[set[int]]:
        """`_axes` of a tensor whose readers are known."""
        found: list[set[int]] = [set() for _ in tensor.shape]
        for reader, access in self.readers[tensor]:
            known: dict[Var, set[int]] = dict(zip(reader.op.axis, self._axes[reader], strict=True))
            for axes, index in zip(found, access.indices, strict=True):
                for var in _variables(index):
                    axes |= known.get(var, set())
        return found


def _variables(index: Expr) -> list[Var]:
    form = Affine.of(index)
    if form is not None:
        return list(form.terms)
    return [var for child in index.children() for var in _variables(child)]


def _factors(tensor: Tensor) -> tuple[Tensor, Tensor] | None:
    """The factors of a sum of products for GEMM; None for other tensors."""
    body = tensor.op.body
    if not isinstance(body, Reduce) or not isinstance(body.value, Binary):
        return None
    read = [access.source for access in accesses(body.value)]
    return (read[0], read[1]) if body.value.op == "*" and len(read) == 2 else None


def _load(s: te.Schedule, tensor: Tensor, tiled: _Tensors, env: Environment) -> None:
    scope = env.wgt_scope if tiled.is_weight(tensor) else env.inp_scope
    s[tensor].set_scope(env.acc_scope if tensor.dtype == env.acc_dtype else scope)
    s[tensor].pragma(tensor.op.axis[0], env.dma_copy)


def _multiply(s: te.Schedule, tensor: Tensor, first: IterVar | None, env: Environment) -> None:
    *summed, last = tensor.op.reduce_axis
    *rows, b, k = tensor.op.axis
    s[tensor].set_scope(env.acc_scope)
    s[tensor].reorder(*_begun(first, [*summed, *rows]), b, k, last)
    s[tensor].tensorize(b, env.gemm)


def _calculate(s: te.Schedule, tensor: Tensor, first: IterVar | None, env: Environment) -> None:
    s[tensor].set_scope(env.acc_scope)
    loops = _begun(first, [*s[tensor].reduce_axis, *tensor.op.axis])
    s[tensor].reorder(*loops)
    s[tensor].pragma(loops[0], env.alu)


def _begun(first: IterVar | None, axes: list[IterVar]) -> list[IterVar]:
    """``axes`` with the ``first`` one in front."""
    return axes if first is None else [first, *(axis for axis in axes if axis is not first)]
