"""Stages of operators on rows whose elements are lanes of accumulators: `RowStages`.

The ALU computes each lane by itself. To combine the lanes of a vector, its low bytes are forwarded
to the input scratchpad, where GEMM multiplies them by a matrix: by ones for their sum, and by
rotations for their maximum. Each lane of the result then has the sum or the maximum.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr, IterVar
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.te.traverse import accesses

from .identity import reads_what_it_stores
from .steps import shared_constants
from .tile_schedule import tile_schedule

Array = npt.NDArray[Any]
# Positions in `lane_matrices`: identity, ones, and the first of the rotations.
_IDENTITY, _ONES, _ROTATIONS = 0, 1, 2
_OPERATIONS: dict[str, Callable[..., Expr]] = {
    "+": operator.add,
    "*": operator.mul,
    ">>": operator.rshift,
    "<<": operator.lshift,
    "max": te.max,
}


def lane_matrices(env: Environment) -> Array:
    """int8 (matrices, BLOCK_OUT, BLOCK_IN): the identity, ones, and rotations by each power of two
    less than BLOCK_OUT.
    """
    lanes = env.BLOCK_OUT
    one = np.eye(lanes, dtype=np.int8)
    turns = [np.roll(one, 1 << bit, axis=1) for bit in range(lanes.bit_length() - 1)]
    return np.stack([one, np.ones((lanes, lanes), np.int8), *turns])


def constant_tiles(values: npt.ArrayLike, config: Config) -> Array:
    """int64 (values, BATCH, BLOCK_OUT): tiles that have one of ``values`` in each lane."""
    tiles = np.asarray(values, np.int64).reshape(-1, 1, 1)
    return np.broadcast_to(tiles, (len(tiles), config.batch, config.block_out))


def missing_for_rows(config: Config) -> str | None:
    """What a machine lacks for `RowStages` with tables; None if it lacks nothing."""
    if not reads_what_it_stores(Environment(config)):
        return "input tiles and output tiles of one form"
    needed = ("forward", "lookup", "requantize", "overwrite")
    missing = [name.upper() for name in needed if not getattr(config, name)]
    return missing[0] if missing else None


class RowStages:
    """Builds the stages of an operator on rows of ``vectors`` tiles, and schedules them. Rows have
    one or more axes, with the extents ``rows``.

    Operands are (*rows, vectors, BATCH, BLOCK_OUT) out_dtype. A tensor of rows is (*rows,
    BATCH, BLOCK_OUT), one vector per row. The arguments of the operator are the operands,
    `lane_matrices`, ``parameters`` tiles of acc_dtype, and the output.
    """

    def __init__(
        self, rows: Sequence[int], vectors: int, parameters: int, env: Environment
    ) -> None:
        self.env = env
        self.tail = (env.BATCH, env.BLOCK_OUT)
        self.shape = (*rows, vectors, *self.tail)
        self._shape_of_rows = (*rows, *self.tail)
        self._vectors = vectors
        count = len(lane_matrices(env))
        self._matrices = te.placeholder(
            (count, env.BLOCK_OUT, env.BLOCK_IN), "matrices", env.wgt_dtype
        )
        matrices = self._matrices
        self._matrices_buf = te.compute(matrices.shape, lambda *i: matrices(*i), "matrices_buf")
        self._parameters, self._parameters_buf = shared_constants(parameters, "parameters", env)
        self._operands: list[Tensor] = []
        # Tensors in the input scratchpad that are loaded, and tensors in accumulators, in order.
        self._loaded: list[Tensor] = []
        self._accumulators: list[Tensor] = []
        # The axis over vectors of tensors whose outermost loop it is.
        self._vectors_first: dict[Tensor, IterVar] = {}

    def operand(self, name: str, shape: Sequence[int] = ()) -> Tensor:
        """A new operand of ``shape`` in tiles, by default the shape of the result, in the input
        scratchpad.
        """
        whole = (*shape, *self.tail) if shape else self.shape
        x = te.placeholder(whole, name, self.env.inp_dtype)
        buffer = te.compute(x.shape, lambda *i: x(*i), f"{name}_inp")
        self._operands.append(x)
        self._loaded.append(buffer)
        return buffer

    def copied(self, source: Tensor, name: str) -> Tensor:
        """Accumulators with the contents of ``source``, a tensor in the input scratchpad."""
        return self._product(source, _IDENTITY, name)

    def stage(self, name: str, shape: Sequence[int], value: Callable[..., Expr]) -> Tensor:
        """A stage of ``shape``, computed by the ALU."""
        made = te.compute(tuple(shape), value, name)
        self._accumulators.append(made)
        return made

    def row(
        self, name: str, value: Tensor, operation: str, other: int | Callable[..., Expr]
    ) -> Tensor:
        """A stage with one vector per row: an operation of `_OPERATIONS` on ``value`` and another
        tensor of rows, a parameter, or an immediate.
        """
        return self.stage(
            name,
            self._shape_of_rows,
            lambda *i: _OPERATIONS[operation](
                value(*i), other if isinstance(other, int) else other(*i)
            ),
        )

    def whole(self, name: str, value: Callable[..., Expr]) -> Tensor:
        """A stage with the shape of the result."""
        return self.stage(name, self.shape, value)

    def with_rows(self, name: str, value: Tensor, operation: str, other: Tensor) -> Tensor:
        """A stage with the shape of the result: an operation of `_OPERATIONS` on ``value`` and a
        tensor of rows.
        """
        return self.whole(
            name, lambda *i: _OPERATIONS[operation](value(*i), other(*i[:-3], *i[-2:]))
        )

    def parameter(self, number: int | Expr, *i: Expr) -> Expr:
        """Tile ``number`` of the parameters, at the lane that the index ``i`` ends with."""
        return self._parameters_buf(number, *i[-2:])

    def looked_up(self, name: str, value: Tensor, table: int) -> Tensor:
        """The entries of the table whose first tile is the parameter ``table``."""
        tiles = range(table, table + self.env.config.table_elements)
        return self.stage(
            name,
            value.shape,
            lambda *i: te.lookup(value(*i), *(self.parameter(number, *i) for number in tiles)),
        )

    def requantized(self, name: str, value: Tensor, first: int, per_vector: int = 0) -> Tensor:
        """``value`` requantized by the parameters from the tile ``first`` on; the parameters of
        vector v begin ``per_vector`` · v tiles later.
        """

        def result(*i: Expr) -> Expr:
            places = (first + number + i[-3] * per_vector for number in range(4))
            return te.requantize(value(*i), *(self.parameter(place, *i) for place in places))

        return self.of_vectors(name, result)

    def of_vectors(self, name: str, value: Callable[..., Expr]) -> Tensor:
        """A stage with the shape of the result, computed vector by vector for all rows: rows share
        the parameters of a vector.
        """
        made = self.whole(name, value)
        self._vectors_first[made] = made.op.axis[-3]
        return made

    def normalized(
        self, total: Tensor, table: int, dropped: int, times: int
    ) -> tuple[Tensor, Tensor]:
        """``total`` shifted to the left, each of ``times`` times by the entry of the ``table`` for
        the total without its lower bits, and the sum of the shifts, which are negative.
        """
        name, shifts = total.name, []
        for number in range(times):
            upper = self.row(f"{name}_upper{number}", total, ">>", dropped)
            shifts.append(self.looked_up(f"{name}_shift{number}", upper, table))
            total = self.row(f"{name}_normal{number}", total, ">>", shifts[-1])
        whole = shifts[0]
        for number, shift in enumerate(shifts[1:]):
            whole = self.row(f"{name}_shifts{number}", whole, "+", shift)
        return total, whole

    def sum_of_elements(self, name: str, source: Tensor) -> Tensor:
        """The sum of the elements of each row of ``source``, a tensor in the input scratchpad, in
        every lane.
        """
        acc = self.env.acc_dtype
        v, k = te.reduce_axis((0, self._vectors), "v"), te.reduce_axis((0, self.env.BLOCK_IN), "k")
        made = te.compute(
            self._shape_of_rows,
            lambda *i: te.sum(
                source(*i[:-2], v, i[-2], k).astype(acc)
                * self._matrices_buf[_ONES, i[-1], k].astype(acc),
                axis=[v, k],
            ),
            name,
        )
        self._accumulators.append(made)
        self._vectors_first[made] = v
        return made

    def sum_of_vectors(self, name: str, value: Tensor) -> Tensor:
        """The sum of the vectors of each row, per lane."""
        return self._over_vectors(name, value, te.sum)

    def greatest_vector(self, name: str, value: Tensor) -> Tensor:
        """The maximum of the vectors of each row, per lane."""
        return self._over_vectors(name, value, te.max)

    def _over_vectors(self, name: str, value: Tensor, reduce: Callable[..., Expr]) -> Tensor:
        v = te.reduce_axis((0, self._vectors), "v")
        made = self.stage(
            name, self._shape_of_rows, lambda *i: reduce(value(*i[:-2], v, *i[-2:]), axis=v)
        )
        self._vectors_first[made] = v
        return made

    def greatest_lane(self, value: Tensor) -> Tensor:
        """The maximum of the lanes of each row, all int8, in every lane."""
        for number in range(len(lane_matrices(self.env)) - _ROTATIONS):
            turned = self._product(
                self._forward(value), _ROTATIONS + number, f"{value.name}_turned"
            )
            value = self.row(f"{value.name}_{number}", value, "max", turned)
        return value

    def sum_of_lanes(self, value: Tensor, size: int) -> Tensor:
        """The sum of the lanes of each row, in every lane; ``size`` bytes hold any value. The
        bytes, all signed, are summed one by one.
        """
        parts, name = [value], value.name
        for number in range(1, size):
            moved = self.row(f"{name}_moved{number}", parts[-1], "+", 128)
            parts.append(self.row(f"{name}_byte{number}", moved, ">>", 8))
        total: Tensor | None = None
        for part in reversed(parts):
            lanes = self._product(self._forward(part), _ONES, f"{part.name}_lanes")
            if total is None:
                total = lanes
                continue
            high = self.row(f"{total.name}_high", total, "<<", 8)
            total = self.row(f"{part.name}_sum", high, "+", lanes)
        assert total is not None
        return total

    def _forward(self, value: Tensor) -> Tensor:
        made = te.compute(
            value.shape, lambda *i: value(*i).astype(self.env.inp_dtype), f"{value.name}_forwarded"
        )
        return made

    def _product(self, source: Tensor, matrix: int, name: str) -> Tensor:
        acc = self.env.acc_dtype
        k = te.reduce_axis((0, self.env.BLOCK_IN), "k")
        made = te.compute(
            source.shape,
            lambda *i: te.sum(
                source(*i[:-1], k).astype(acc) * self._matrices_buf[matrix, i[-1], k].astype(acc),
                axis=k,
            ),
            name,
        )
        self._accumulators.append(made)
        return made

    def _banks(self) -> dict[Tensor, int]:
        """The banks of accumulators with the shape of the result. The ALU reads both operands of an
        element in one cycle if they are in different banks; tensors without a bank are placed where
        sources have a copy.
        """
        banks: dict[Tensor, int] = {}
        # Readers before what they read, which computes in place in the bank of its first reader.
        for tensor in reversed(self._accumulators):
            if tensor.shape != self.shape:
                continue
            assert tensor.op.body is not None
            read = dict.fromkeys(access.source for access in accesses(tensor.op.body))
            operands = [item for item in read if item in self._accumulators]
            first, *others = [item for item in operands if item.shape == self.shape] or [tensor]
            taken = [banks[item] for item in others if item in banks]
            bank = banks.setdefault(tensor, 1 - taken[0] if taken else 0)
            banks.setdefault(first, bank)
            for item in others:
                banks.setdefault(item, 1 - bank)
        return banks

    def scheduled(self, result: Tensor, sizes: Sequence[int]) -> tuple[te.Schedule, list[Tensor]]:
        """The schedule that computes a tile of the ``result`` at a time, of these ``sizes`` along
        the axes of rows, and the arguments of the function.
        """
        env = self.env
        y = te.compute(result.shape, lambda *i: result(*i).astype(env.out_dtype), "y")
        s = tile_schedule(y, sizes, env, outermost=self._vectors_first)
        place = s[result].attach
        assert place is not None
        for tensor in self._loaded:
            # A mask too, which rows of several heads share: so it is prefetched.
            s[tensor].compute_at(*place)
            s[tensor].double_buffer()
        for tensor, bank in self._banks().items():
            s[tensor].double_buffer(1, bank)
        return s, [*self._operands, self._matrices, self._parameters, y]
