"""Rotary position embedding of rows of int8, in integer arithmetic of 32 bits.

With x' the elements of a row in another order, some of them negated, and factors C and S of at most
`GREATEST` in magnitude, which depend on the position of the row:

    y[i] = (x[i] · C[i] + x'[i] · S[i]) · M / 2^k, rounded half up, plus a zero point, and clipped

GEMM multiplies rows by a matrix of 0, 1 and -1 to obtain x'. The sum has 25 bits, the
width of REQUANTIZE's multiplicand; only the product with M has more than 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import MULTIPLIED_WIDTH, REQUANTIZE_PARAMETERS, SCALE_FRACTION
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.formula import ROW_CYCLES
from amaranth_vta.sw.compiler.tuner.search import Choice
from amaranth_vta.sw.compiler.tuner.tiles import even_tiles, parts
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.identity import reads_what_it_stores
from .building_blocks.steps import shared_constants

# The greatest factor: two products with int8 have 25 bits.
GREATEST = (1 << MULTIPLIED_WIDTH - 9) - 1


@dataclass(frozen=True)
class Rotation:
    """Rotation of rows of ``vectors`` whole tiles. Rows are in ``groups`` of ``positions``, each of
    which has ``heads`` rows.
    """

    groups: int
    positions: int
    heads: int
    vectors: int

    def scheduled(self, env: Environment, knobs: RotationKnobs) -> Scheduled:
        return _scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[RotationKnobs]:
        return Choice.by_formula(_candidates(self, config))


@dataclass(frozen=True)
class RotationKnobs:
    """Groups, positions and heads that are computed at a time."""

    groups: int
    positions: int
    heads: int


def missing_for_rotation(config: Config) -> str | None:
    """The first feature for `rotation` that a machine lacks; None if it has all."""
    if not reads_what_it_stores(Environment(config)):
        return "input tiles and output tiles of one form"
    missing = [name.upper() for name in ("requantize", "round_twice") if not getattr(config, name)]
    return missing[0] if missing else None


def rotation(
    workload: Rotation,
    env: Environment,
    knobs: RotationKnobs | None = None,
    name: str = "rotation",
) -> Function:
    """Build a function of the rows, both factors, `rotation_matrices`, `parameters`, and output.

    Rows and output are (groups, positions, heads, vectors, BATCH, BLOCK_OUT) out_dtype, factors
    (positions, vectors, BATCH, BLOCK_OUT) acc_dtype. Default knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)


def rotation_matrices(
    places: npt.NDArray[np.int64], signs: npt.NDArray[np.int64], config: Config
) -> npt.NDArray[np.int8]:
    """int8 (1 + vectors · vectors, BLOCK_OUT, BLOCK_IN): the identity, and the matrices from each
    vector of a row (inner) to each vector of x' (outer), whose element i is x[places[i]] ·
    signs[i].
    """
    lanes, elements = config.block_out, len(places)
    whole = np.zeros((elements, elements), np.int8)
    whole[np.arange(elements), places] = signs
    tiles = whole.reshape(elements // lanes, lanes, -1, lanes).swapaxes(1, 2)
    return np.concatenate([np.eye(lanes, dtype=np.int8)[None], tiles.reshape(-1, lanes, lanes)])


def parameters(factor: int, shift: int, zero_point: int, config: Config) -> npt.NDArray[np.int32]:
    """int32 (tiles, BATCH, BLOCK_OUT): the parameters of the product with ``factor`` M, positive,
    the right ``shift`` by k, and the addition of ``zero_point``, as held by the machine.
    """
    scale = factor << SCALE_FRACTION - shift
    (columns,) = te.parameters_of_scale(0, scale, 0, (zero_point, -128, 127))
    shape = (REQUANTIZE_PARAMETERS, config.batch, config.block_out)
    return np.broadcast_to(columns[:, None, None], shape).astype(np.int32)


def _scheduled(workload: Rotation, env: Environment, knobs: RotationKnobs) -> Scheduled:
    w, acc, tail = workload, env.acc_dtype, (env.BATCH, env.BLOCK_OUT)
    shape = (w.groups, w.positions, w.heads, w.vectors, *tail)

    def buffered(given: Tensor) -> Tensor:
        return te.compute(given.shape, lambda *i: given(*i), f"{given.name}_buf")

    x = te.placeholder(shape, "x", env.inp_dtype)
    waves = [
        te.placeholder((w.positions, w.vectors, *tail), name, acc) for name in ("cosines", "sines")
    ]
    matrices = te.placeholder(
        (1 + w.vectors**2, env.BLOCK_OUT, env.BLOCK_IN), "matrices", env.wgt_dtype
    )
    scale, scale_buf = shared_constants(REQUANTIZE_PARAMETERS, "scale", env)
    x_buf, cosines, sines, matrices_buf = map(buffered, (x, *waves, matrices))
    k = te.reduce_axis((0, env.BLOCK_IN), "k")
    copied = te.compute(
        shape,
        lambda *i: te.sum(
            x_buf(*i[:-1], k).astype(acc) * matrices_buf(0, i[-1], k).astype(acc), axis=k
        ),
        "copied",
    )
    u, j = te.reduce_axis((0, w.vectors), "u"), te.reduce_axis((0, env.BLOCK_IN), "j")
    turned = te.compute(
        shape,
        lambda n, p, h, v, b, o: te.sum(
            x_buf(n, p, h, u, b, j).astype(acc)
            * matrices_buf(1 + v * w.vectors + u, o, j).astype(acc),
            axis=[u, j],
        ),
        "turned",
    )

    def scaled(value: Tensor, wave: Tensor) -> Tensor:
        return te.compute(
            shape,
            lambda n, p, h, v, *i: value(n, p, h, v, *i) * wave(p, v, *i),
            f"{value.name}_scaled",
        )

    terms = [scaled(copied, cosines), scaled(turned, sines)]
    total = te.compute(shape, lambda *i: terms[0](*i) + terms[1](*i), "total")

    def requantized(*i: Expr) -> Expr:
        places = range(REQUANTIZE_PARAMETERS)
        return te.requantize(total(*i), *(scale_buf(place, *i[-2:]) for place in places))

    result = te.compute(shape, requantized, "result")
    y = te.compute(shape, lambda *i: result(*i).astype(env.out_dtype), "y")

    s = te.create_schedule(y.op)
    sizes = (knobs.groups, knobs.positions, knobs.heads)
    split = [s[y].split(axis, size) for axis, size in zip(y.op.axis, sizes, strict=False)]
    (groups, group), (positions, position), (heads, head) = split
    s[y].reorder(positions, groups, heads, group, position, head, *y.op.axis[3:])
    s[y].pragma(group, env.dma_copy)
    for tensor, scope, place in (
        (x_buf, env.inp_scope, heads),
        (cosines, env.acc_scope, positions),
        (sines, env.acc_scope, positions),
        (matrices_buf, env.wgt_scope, None),
        (scale_buf, env.acc_scope, None),
    ):
        s[tensor].set_scope(scope)
        s[tensor].pragma(tensor.op.axis[0], env.dma_copy)
        if place is not None:
            s[tensor].compute_at(s[y], place)
    s[x_buf].double_buffer()
    for tensor in (copied, turned, *terms, total, result):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], heads)
    for tensor in (copied, turned):
        *outer, b, o = tensor.op.axis
        summed = list(tensor.op.reduce_axis)
        s[tensor].reorder(*summed[:-1], *outer, b, o, summed[-1])
        s[tensor].tensorize(b, env.gemm)
    for tensor in (*terms, total, result):
        s[tensor].pragma(tensor.op.axis[0], env.alu)
    return s, [x, *waves, matrices, scale, y]


def _candidates(workload: Rotation, config: Config) -> Iterator[tuple[float, RotationKnobs]]:
    """Knobs with estimated cycles; those whose tiles do not fit fail when they are built."""
    w = workload
    if missing_for_rotation(config) or 1 + w.vectors**2 > config.wgt.depth:
        return
    for positions in even_tiles(w.positions):
        for groups, heads in _rows(w):
            vectors = groups * positions * heads * w.vectors
            factors = 2 * positions * w.vectors
            if 2 * vectors + factors + REQUANTIZE_PARAMETERS > config.acc.depth:
                continue
            tiles = parts(w.positions, positions) * parts(w.groups, groups) * parts(w.heads, heads)
            work = vectors * (6 + w.vectors) + 10 * ROW_CYCLES
            yield tiles * work, RotationKnobs(groups, positions, heads)


def _rows(workload: Rotation) -> Iterator[tuple[int, int]]:
    """Groups and heads of a tile: whole groups, or a part of the heads of one group."""
    for groups in even_tiles(workload.groups):
        yield groups, workload.heads
    for heads in even_tiles(workload.heads)[1:]:
        yield 1, heads
