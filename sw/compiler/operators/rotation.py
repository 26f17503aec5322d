"""Rotary position embedding of rows of int8, in integer arithmetic of 32 bits.

With x' the elements of a row in another order, some of them negated, and factors C and S of at most
`GREATEST` in magnitude, which depend on the position of the row:

    y[i] = (x[i] · C[i] + x'[i] · S[i]) · M / 2^k, rounded half up, plus a zero point, and clipped

GEMM multiplies rows by a matrix of 0, 1 and -1 to obtain x'. The sum has 25 bits, the
width of REQUANTIZE's multiplicand; only the product with M has more than 32.
"""

from __future__ import annotations

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
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile, Tiled
from amaranth_vta.sw.compiler.tuner.tiles import NO_TILES, Array, all_tiles
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.identity import reads_what_it_stores
from .building_blocks.steps import shared_constants
from .building_blocks.tile_schedule import tile_schedule

# The greatest factor: two products with int8 have 25 bits.
GREATEST = (1 << MULTIPLIED_WIDTH - 9) - 1


@dataclass(frozen=True)
class Rotation(Tiled):
    """Rotation of rows of ``vectors`` whole tiles. Rows are in ``groups`` of ``positions``, each of
    which has ``heads`` rows.
    """

    groups: int
    positions: int
    heads: int
    vectors: int

    takes_turns = False

    def scheduled(self, env: Environment, knobs: OutputTile) -> Scheduled:
        return _scheduled(self, env, knobs)

    def candidate_tiles(self, config: Config) -> Array:
        if missing_for_rotation(config):
            return NO_TILES
        return all_tiles(self.groups, self.positions, self.heads)


def missing_for_rotation(config: Config) -> str | None:
    """The first feature for `rotation` that a machine lacks; None if it has all."""
    if not reads_what_it_stores(Environment(config)):
        return "input tiles and output tiles of one form"
    missing = [name.upper() for name in ("requantize", "round_twice") if not getattr(config, name)]
    return missing[0] if missing else None


def rotation(
    workload: Rotation,
    env: Environment,
    knobs: OutputTile | None = None,
    name: str = "rotation",
) -> Function:
    """Build a function of the rows, both factors, `rotation_matrices`, `parameters`, and output.

    Rows and output are (groups, positions, heads, vectors, BATCH, BLOCK_OUT) out_dtype, factors
    (positions, vectors, BATCH, BLOCK_OUT) acc_dtype. The knobs tile groups, positions and heads.
    Default knobs and exceptions: see `tuned`.
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


def _scheduled(workload: Rotation, env: Environment, knobs: OutputTile) -> Scheduled:
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

    s = tile_schedule(y, knobs.extents, env, order=(1, 0, 2))
    s[x_buf].double_buffer()
    return s, [x, *waves, matrices, scale, y]
