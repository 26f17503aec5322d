"""The epilogue of a product: bias, scaling with rounding, and clipping, before the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor

from .pooling import Pooling
from .residual import Addition, Residual

Array = npt.NDArray[Any]
# Returns constant number n at an index of the total.
Constant = Callable[..., Expr]


@dataclass(frozen=True)
class RoundingShift:
    """Division by 2^``shift``, rounding half to even, then clipping to ``low`` and ``high``. Runs
    on every machine. Its only constant is the bias, with ``half`` added.
    """

    shift: int
    low: int
    high: int

    # Accumulators for constants that all channels share.
    shared = 0
    constants_name = "bias"
    # Accumulators for constants, per tile of output channels.
    constants = 1
    # Number of out_dtype outputs per result.
    parts = 1

    @property
    def half(self) -> int:
        """Half of 2^``shift``, added to the bias at compile time, so that rounding needs no
        addition.
        """
        return 1 << self.shift >> 1

    @property
    def operations(self) -> int:
        """ALU micro-ops per vector of results."""
        return 9 if self.shift else 3

    @property
    def accumulators(self) -> int:
        """Accumulators live at a time per result."""
        return 2 if self.shift else 1

    def evaluate(self, total: Array) -> Array:
        """NumPy reference, for totals without ``half``."""
        whole, rest = total >> self.shift, total & ((1 << self.shift) - 1)
        up = (rest > self.half) | ((rest == self.half) & (whole & 1 == 1))
        return np.clip(whole + (up & (self.shift > 0)), self.low, self.high)

    def stages(self, total: Tensor, constant: Constant, env: Environment) -> list[Tensor]:
        """The stages from ``total`` to its requantized value, the last stage.

        Let a be total + bias + half and n the shift. Then a >> n rounds halves up, which is wrong
        only for ties with an odd quotient: there 1 must be subtracted before the shift. A tie has n
        zero low bits. Subtracting 1 wherever bit n of a is set corrects ties and changes nothing
        else: if any low bit is set, a - 1 has the same quotient. Bit n, shifted to the sign and
        back, is 0 or -1.
        """
        biased = te.compute(
            total.shape, lambda *i: total(*i) + constant(0, *i), f"{total.name}_biased"
        )
        stages = [biased]
        n, rounded = self.shift, biased
        if n > 0:
            odd = te.compute(
                total.shape,
                lambda *i: biased(*i) << (env.ACC_WIDTH - 1 - n) >> (env.ACC_WIDTH - 1),
                f"{total.name}_odd",
            )
            rounded = te.compute(
                total.shape, lambda *i: biased(*i) + odd(*i) >> n, f"{total.name}_rounded"
            )
            stages += [odd, rounded]
        clipped = te.compute(
            total.shape,
            lambda *i: te.min(te.max(rounded(*i), self.low), self.high),
            f"{total.name}_clipped",
        )
        return [*stages, clipped]


@dataclass(frozen=True)
class PerChannelScale:
    """Any scale per channel, with zero point and bounds, by REQUANTIZE, for machines that have it.
    Its constants are `te.requantization_parameters`, including the bias. With a ``table``, which
    takes that many accumulators (`Config.table_elements`), a LOOKUP of the result follows.
    """

    table: int = 0

    constants_name = "parameters"
    constants = REQUANTIZE_PARAMETERS
    accumulators = 1
    parts = 1

    @property
    def shared(self) -> int:
        return self.table

    @property
    def operations(self) -> int:
        """ALU micro-ops per vector of results."""
        return 2 if self.table else 1

    def stages(self, total: Tensor, constant: Constant, env: Environment) -> list[Tensor]:
        """The stage from ``total`` to its requantized value."""
        numbers = range(self.constants)
        return [
            te.compute(
                total.shape,
                lambda *i: te.requantize(total(*i), *(constant(number, *i) for number in numbers)),
                f"{total.name}_rescaled",
            )
        ]


@dataclass(frozen=True)
class WholeSums:
    """No requantization: stores the biased sum in ``parts`` of out_dtype, lowest bits first, as a
    leading dimension of the output. The host combines them.
    """

    parts: int

    constants_name = "bias"
    constants = 1

    @property
    def shared(self) -> int:
        return self.parts if self.parts > 1 else 0

    @property
    def operations(self) -> int:
        """ALU micro-ops per vector of results: each part is a shifted copy."""
        return 1 + 3 * self.shared

    @property
    def accumulators(self) -> int:
        """Accumulators live at a time per result."""
        return 1 + self.shared

    def stages(self, total: Tensor, constant: Constant, env: Environment) -> list[Tensor]:
        """The stage with the biased sum."""
        return [
            te.compute(total.shape, lambda *i: total(*i) + constant(0, *i), f"{total.name}_biased")
        ]

    def shifts(self, env: Environment) -> Array:
        """Shared constants (parts, BATCH, BLOCK_OUT) acc_dtype: the shift in bits for each part."""
        amounts = np.arange(self.shared, dtype=env.acc_dtype) * env.OUT_WIDTH
        return amounts.repeat(env.BATCH * env.BLOCK_OUT).reshape(-1, env.BATCH, env.BLOCK_OUT)


# The ways to requantize a sum of products.
Requantization = RoundingShift | PerChannelScale | WholeSums


@dataclass(frozen=True)
class Epilogue:
    """Tensors of an epilogue. ``constants`` is the argument with bias or parameters, and ``buffer``
    its copy in accumulators; ``stages`` lead from the total to ``y``, the output, out_dtype, and
    include the stages of ``residual``, if any, at the end. ``shared`` is the argument with
    constants that all channels share, and its buffer.
    """

    constants: Tensor
    buffer: Tensor
    stages: list[Tensor]
    y: Tensor
    residual: Residual | None
    shared: tuple[Tensor, Tensor] | None

    @property
    def args(self) -> list[Tensor]:
        """The arguments with constants, except those of ``residual``."""
        return [self.constants, *([self.shared[0]] if self.shared else [])]


def epilogue(
    total: Tensor,
    channels: Sequence[int],
    position: Callable[..., Sequence[Expr]],
    requantize: Requantization,
    env: Environment,
    output: Callable[[Tensor], Tensor] | None = None,
    addition: Addition | None = None,
    pooling: Pooling | None = None,
    name: str = "",
) -> Epilogue:
    """Build the epilogue of ``total``.

    ``channels`` are the extents of the channel tiles; ``position`` maps an index of ``total``,
    without the two dimensions within a tile, to channel-tile indices. The bias is (*channels,
    BATCH, BLOCK_OUT) acc_dtype, with `RoundingShift.half` added; the parameters of a
    `PerChannelScale` are (*channels, REQUANTIZE_PARAMETERS, BATCH, BLOCK_OUT). ``output`` builds
    ``y`` from the last stage where its shape differs from that of ``total``. The table of
    ``requantize``, if any, is an argument (`te.table_tiles`), and so are `WholeSums.shifts`. An
    ``addition`` or a ``pooling`` comes last. ``name`` is a prefix for the names of constants.
    """
    numbers = (requantize.constants,) if requantize.constants > 1 else ()
    constants = te.placeholder(
        (*channels, *numbers, env.BATCH, env.BLOCK_OUT),
        name + requantize.constants_name,
        env.acc_dtype,
    )
    buffer = te.compute(constants.shape, lambda *i: constants(*i), f"{constants.name}_buf")

    def constant(number: int, *i: Expr) -> Expr:
        return buffer(*position(*i[:-2]), *([number] if numbers else []), *i[-2:])

    stages, shared = requantize.stages(total, constant, env), None
    if isinstance(requantize, WholeSums):
        if requantize.shared:
            shared = shared_constants(requantize.shared, f"{name}shifts", env)
            stages.append(_parts(stages[-1], shared[1]))
    elif requantize.shared:
        shared = shared_constants(requantize.shared, f"{name}table", env)
        stages.append(looked_up(stages[-1], shared[1]))
    residual = None if addition is None else Residual(addition, stages[-1], env)
    if residual is not None:
        stages = [*stages, *residual.stages]
    if pooling is not None:
        stages = [*stages, *pooling.stages(stages[-1], env)]
    last = stages[-1]
    if output is None:
        y = te.compute(last.shape, lambda *i: last(*i).astype(env.out_dtype), "y")
    else:
        y = output(last)
    return Epilogue(constants, buffer, stages, y, residual, shared)


def shared_constants(elements: int, name: str, env: Environment) -> tuple[Tensor, Tensor]:
    """The argument ``name``, ``elements`` tiles shared by all channels, and its buffer."""
    given = te.placeholder((elements, env.BATCH, env.BLOCK_OUT), name, env.acc_dtype)
    return given, te.compute(given.shape, lambda *i: given(*i), f"{name}_buf")


def _parts(value: Tensor, shifts: Tensor) -> Tensor:
    return te.compute(
        (shifts.shape[0], *value.shape), lambda p, *i: value(*i) >> shifts(p, *i[-2:]), "parts"
    )


def looked_up(value: Tensor, table: Tensor) -> Tensor:
    """The stage that looks up ``value`` in ``table``, given as its buffer."""

    def entry(*i: Expr) -> Expr:
        return te.lookup(value(*i), *(table(n, *i[-2:]) for n in range(table.shape[0])))

    return te.compute(value.shape, entry, "entries")
