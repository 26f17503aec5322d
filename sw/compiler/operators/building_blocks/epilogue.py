"""The epilogue of a product: bias, scaling with rounding, and clipping, before the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor

from .pooling import Phases, Pooled, Pooling
from .residual import Addition, Residual
from .steps import (
    Constant,
    LookupTable,
    PerChannelLine,
    looked_up,
    requantized,
    shared_constants,
)

Array = npt.NDArray[Any]
# Cycles in which the ALU changes the parameters of REQUANTIZE.
_CYCLES_PER_CHANGE = 5
# ALU micro-ops that copy a vector: one clears the target, one adds.
_OPERATIONS_PER_COPY = 2
# An element-wise operation on requantized results.
Step = LookupTable | PerChannelLine | Addition


@dataclass(frozen=True, kw_only=True)
class Requantization(ABC):
    """A way to requantize a sum of products, and the element-wise steps that follow. Subclasses
    describe the requantization alone by the properties that begin with ``own``.
    """

    then: tuple[Step, ...] = ()
    # Computes a second result from the first; both are stored.
    second: LookupTable | None = None
    # Whether sums can wrap around.
    wraps: bool = False

    constants_name: ClassVar[str]
    # Number of out_dtype outputs per result.
    parts = 1
    # Accumulators for constants per tile of output channels.
    own_constants: ClassVar[int] = 1

    @property
    def own_shared(self) -> int:
        """Accumulators for constants that all channels share."""
        return 0

    @property
    @abstractmethod
    def own_operations(self) -> int:
        """ALU micro-ops per vector of results."""

    @property
    def own_accumulators(self) -> int:
        """Accumulators live at a time per result."""
        return 1

    @abstractmethod
    def stages(self, total: Tensor, constant: Constant, env: Environment) -> list[Tensor]:
        """The stages from ``total`` to its requantized value, the last stage."""

    @property
    def constants(self) -> int:
        """Accumulators for constants, per tile of output channels."""
        return self.own_constants + sum(step.constants for step in self.then)

    @property
    def shared(self) -> int:
        """Accumulators for constants that all channels share."""
        second = self.second.shared if self.second else 0
        return self.own_shared + sum(step.shared for step in self.then) + second

    @property
    def operations(self) -> int:
        """ALU micro-ops per vector of results."""
        second = _OPERATIONS_PER_COPY + self.second.operations if self.second else 0
        return self.own_operations + sum(step.operations for step in self.then) + second

    @property
    def stored(self) -> int:
        """Number of out_dtype elements that are stored per result, a second one included."""
        return self.parts * (2 if self.second else 1)

    @property
    def parameter_cycles(self) -> int:
        """Cycles of the ALU to change parameters, per tile of output channels."""
        return self.constants // REQUANTIZE_PARAMETERS * _CYCLES_PER_CHANGE

    @property
    def accumulators(self) -> int:
        """Accumulators live at a time per result."""
        # The other operand of an addition is live before the first stage.
        own = self.own_accumulators + (self.addition is not None)
        return max([own, *(step.accumulators for step in self.then)]) + (self.second is not None)

    @property
    def addition(self) -> Addition | None:
        """The addition of another tensor among the steps."""
        return next((step for step in self.then if isinstance(step, Addition)), None)

    @property
    def follows_maxima(self) -> bool:
        """Whether maxima are requantized instead of all sums: without wrapping, requantization is
        monotone.
        """
        return not (self.then or self.second or self.wraps)

    @property
    def preparation_cycles(self) -> int:
        """Cycles of the ALU, per tile of output channels, before it can read parameters."""
        return 0

    def constant_bytes(self, config: Config) -> tuple[int, ...]:
        """Bytes of constants per tile of output channels, for each LOAD."""
        return (self.constants * config.acc.element_bytes,)

    def without_parameters(self) -> Self:
        """The same stages with placeholders for constants that are arguments. Whether sums can wrap
        around is such a constant too, except of a `pooling` before them.
        """
        return replace(
            self, then=tuple(step.without_parameters() for step in self.then), wraps=False
        )

    def followed_by(self, step: Step) -> Self | None:
        """This requantization with another ``step``; None if that is impossible. A `LookupTable`
        behind another is composed with it.
        """
        if self.second is not None or (isinstance(step, Addition) and self.addition is not None):
            return None
        if isinstance(step, LookupTable) and self.then[-1:] == (step,):
            return self
        return replace(self, then=(*self.then, step))


@dataclass(frozen=True)
class RoundingShift(Requantization):
    """Division by 2^``shift``, rounding half to even, then clipping to ``low`` and ``high``. Runs
    on every machine. Its only constant is the bias, with ``half`` added.
    """

    shift: int
    low: int
    high: int

    constants_name = "bias"

    @property
    def half(self) -> int:
        """Half of 2^``shift``, added to the bias at compile time, so that rounding needs no
        addition.
        """
        return 1 << self.shift >> 1

    @property
    def own_operations(self) -> int:
        return 9 if self.shift else 3

    @property
    def own_accumulators(self) -> int:
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
        biased = _biased(total, constant)
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
class PerChannelScale(Requantization):
    """Any scale per channel, with zero point and bounds, by REQUANTIZE, for machines that have it.
    Its constants are `te.requantization_parameters`, including the bias.
    """

    constants_name = "parameters"
    own_constants = REQUANTIZE_PARAMETERS
    own_operations = 1

    def stages(self, total: Tensor, constant: Constant, env: Environment) -> list[Tensor]:
        return [requantized(total, constant, f"{total.name}_rescaled")]


@dataclass(frozen=True)
class TensorScale(Requantization):
    """One scale for all channels, by REQUANTIZE: the bias is added first, and its parameters, with
    a bias of 0, are loaded once for all channels.
    """

    constants_name = "bias"
    own_shared = REQUANTIZE_PARAMETERS
    own_operations = 2

    def stages(self, total: Tensor, constant: Constant, env: Environment) -> list[Tensor]:
        """The sum with its bias; `requantized` with the shared parameters follows."""
        return [_biased(total, constant)]


@dataclass(frozen=True)
class ScaleWithoutBias(Requantization):
    """REQUANTIZE by parameters that are not stored per channel, so that no other parameters per
    channel can follow them."""

    own_operations = 1

    def followed_by(self, step: Step) -> Self | None:
        return None if isinstance(step, PerChannelLine) else super().followed_by(step)

    def stages(self, total: Tensor, constant: Constant, env: Environment) -> list[Tensor]:
        return [requantized(total, constant, f"{total.name}_rescaled")]


@dataclass(frozen=True)
class SharedScale(ScaleWithoutBias):
    """One scale for all channels, without bias, by REQUANTIZE: its parameters are the only
    constants, and loaded once."""

    constants_name = "parameters"
    own_constants = 0
    own_shared = REQUANTIZE_PARAMETERS


@dataclass(frozen=True)
class CompactScale(ScaleWithoutBias):
    """Any scale per channel, without bias, by REQUANTIZE, for layers that wait for the bus: 5 bytes
    per channel are loaded instead of 16. They are the lower bits of the scale, int32, and the upper
    ones, int8. The ALU makes parameters of them, with constants that all channels share.
    """

    constants_name = "scales"
    # Both parts as loaded, and as parameters.
    own_constants = 2 + 2 * REQUANTIZE_PARAMETERS
    own_shared = 3 * REQUANTIZE_PARAMETERS

    @staticmethod
    def factors(bounds: int) -> list[int]:
        """The shared constants, one of each kind per parameter: factors of the lower bits, factors
        of the upper bits, and addends. The last parameter is ``bounds``."""
        return [0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, bounds]

    @property
    def preparation_cycles(self) -> int:
        # Operands of additions are mostly in the same bank: two cycles each.
        return 7 * 2 * REQUANTIZE_PARAMETERS

    def constant_bytes(self, config: Config) -> tuple[int, ...]:
        return config.acc.element_bytes, config.out.element_bytes


@dataclass(frozen=True)
class WholeSums(Requantization):
    """No requantization: stores the biased sum in ``parts`` of out_dtype, lowest bits first, as a
    leading dimension of the output. The host combines them.
    """

    parts: int

    constants_name = "bias"

    @property
    def own_shared(self) -> int:
        return self.parts if self.parts > 1 else 0

    @property
    def own_operations(self) -> int:
        # Each part is a shifted copy.
        return 1 + 3 * self.own_shared

    @property
    def own_accumulators(self) -> int:
        return 1 + self.own_shared

    def followed_by(self, step: Step) -> None:
        return None

    def stages(self, total: Tensor, constant: Constant, env: Environment) -> list[Tensor]:
        return [_biased(total, constant)]

    def shifts(self, env: Environment) -> Array:
        """Shared constants (parts, BATCH, BLOCK_OUT) acc_dtype: the shift in bits for each part."""
        amounts = np.arange(self.own_shared, dtype=env.acc_dtype) * env.OUT_WIDTH
        return amounts.repeat(env.BATCH * env.BLOCK_OUT).reshape(-1, env.BATCH, env.BLOCK_OUT)


@dataclass(frozen=True)
class Epilogue:
    """Tensors of an epilogue. ``args`` are the arguments with constants. ``loaded`` are the buffers
    of bias or parameters per channel, ``prepared`` the stages that compute parameters from them,
    and ``shared`` the buffers of constants that all channels share, without the buffers of
    ``residual``, the addition among the stages, if any. ``stages`` lead from the total to ``y``,
    the output, out_dtype, and from there to the output ``second``, if any. ``carried`` and ``kept``
    are stages that windows share (see `Pooled`).
    """

    loaded: list[Tensor]
    prepared: list[Tensor]
    stages: list[Tensor]
    y: Tensor
    args: list[Tensor]
    shared: list[Tensor]
    residual: Residual | None
    carried: list[Tensor]
    kept: list[Tensor]
    second: Tensor | None = None

    @property
    def outputs(self) -> list[Tensor]:
        """The outputs: `y`, and the second one if there is one."""
        return [self.y] if self.second is None else [self.y, self.second]

    def schedule(self) -> te.Schedule:
        """The default schedule, except that the loops of `y` store all outputs."""
        s = te.create_schedule(self.outputs)
        if self.second is not None:
            s[self.second].store_with(s[self.y])
        return s


def followed_by(workload: Any, step: Step) -> Any | None:
    """``workload``, which has a field ``requantize``, with ``step`` behind its requantization; None
    if that is impossible.
    """
    ended = workload.requantize.followed_by(step)
    return None if ended is None else replace(workload, requantize=ended)


def epilogue(
    total: Tensor,
    channels: Sequence[int],
    position: Callable[..., Sequence[Expr]],
    requantize: Requantization,
    env: Environment,
    output: Callable[[Tensor], Tensor] | None = None,
    pooling: Pooling | None = None,
    name: str = "",
    phases: Phases | None = None,
) -> Epilogue:
    """Build the epilogue of ``total``.

    ``channels`` are the extents of the channel tiles; ``position`` maps an index of ``total``,
    without the two dimensions within a tile, to channel-tile indices. The bias is (*channels,
    BATCH, BLOCK_OUT) acc_dtype, with `RoundingShift.half` added; the parameters of a
    `PerChannelScale` and of the lines behind it are (*channels, `Requantization.constants`, BATCH,
    BLOCK_OUT). `WholeSums.shifts` and the tables and the addition behind ``requantize`` are
    arguments, in order. ``output`` builds ``y`` from the last stage where its shape differs from
    that of ``total``. A ``pooling`` comes first if the requantization `follows_maxima`, and then
    reads ``phases`` instead of ``total`` if they are given; otherwise it comes last. ``name`` is a
    prefix for the names of constants.
    """
    constants, residual = _Constants(env, name), None
    constant = constants.of(requantize, channels, position)

    def pool(image: Phases) -> Pooled:
        return pooling.stages(image, env) if pooling else Pooled([], [], [])

    pooled = Pooled([], [], [])
    if requantize.follows_maxima:
        pooled = pool(phases or Phases.whole(total))
    stages, used = list(pooled.stages), requantize.own_constants
    stages += requantize.stages(stages[-1] if stages else total, constant, env)
    if isinstance(requantize, WholeSums) and requantize.shared:
        stages.append(_parts(stages[-1], constants.share(requantize.shared, "shifts")))
    if isinstance(requantize, TensorScale):
        scale = constants.share(requantize.own_shared, "scale")
        name = f"{total.name}_rescaled"
        stages.append(requantized(stages[-1], lambda n, *i: scale(n, *i[-2:]), name))
    for step in requantize.then:
        value = stages[-1]
        if isinstance(step, LookupTable):
            stages.append(looked_up(value, constants.share(step.elements, "table")))
        elif isinstance(step, PerChannelLine):
            first = used
            stages += step.stages(value, lambda n, *i, first=first: constant(first + n, *i))
            used += step.constants
        else:
            residual = Residual(step, value, env)
            constants.args += residual.args
            stages += residual.stages
    if pooling is not None and not pooled.stages:
        pooled = pool(Phases.whole(stages[-1]))
        pooled = Pooled([*stages, *pooled.stages], [*stages, *pooled.carried], pooled.kept)
        stages = pooled.stages
    last = stages[-1]
    if output is None:
        y = te.compute(last.shape, lambda *i: last(*i).astype(env.out_dtype), "y")
    else:
        y = output(last)
    second: Tensor | None = None
    if requantize.second is not None:
        assert output is None
        table = constants.share(requantize.second.elements, "table")
        entries = looked_up(last, table, "second_entries")
        stages = [*stages, entries]
        second = te.compute(entries.shape, lambda *i: entries(*i).astype(env.out_dtype), "second")
    return Epilogue(
        loaded=constants.loaded,
        prepared=constants.prepared,
        stages=stages,
        y=y,
        args=constants.args,
        shared=constants.shared,
        residual=residual,
        carried=pooled.carried,
        kept=pooled.kept,
        second=second,
    )


class _Constants:
    """The constants of an epilogue: ``args`` of the function, buffers that are ``loaded`` for each
    channel tile or ``shared`` by all, and stages that compute parameters (``prepared``).
    """

    def __init__(self, env: Environment, name: str) -> None:
        self._env, self._name = env, name
        self.args: list[Tensor] = []
        self.loaded: list[Tensor] = []
        self.prepared: list[Tensor] = []
        self.shared: list[Tensor] = []

    def share(self, elements: int, what: str) -> Tensor:
        """The buffer of an argument of ``elements`` tiles that all channels share."""
        number = len(self.shared) or ""
        given, kept = shared_constants(elements, f"{self._name}{what}{number}", self._env)
        self.args.append(given)
        self.shared.append(kept)
        return kept

    def load(self, dtype: str, shape: tuple[int, ...], what: str) -> Tensor:
        """The buffer of an argument of tiles of this ``shape``."""
        env = self._env
        given = te.placeholder((*shape, env.BATCH, env.BLOCK_OUT), self._name + what, dtype)
        kept = te.compute(
            given.shape, lambda *i: given(*i).astype(env.acc_dtype), f"{given.name}_buf"
        )
        self.args.append(given)
        self.loaded.append(kept)
        return kept

    def of(
        self,
        requantize: Requantization,
        channels: Sequence[int],
        position: Callable[..., Sequence[Expr]],
    ) -> Constant:
        """The bias or the parameters of ``requantize``, as `epilogue` describes them."""
        dtype, shares = self._env.acc_dtype, isinstance(requantize, SharedScale)
        if isinstance(requantize, SharedScale):
            held = self.share(requantize.own_shared, requantize.constants_name)
        elif isinstance(requantize, CompactScale):
            lower = self.load(dtype, (*channels,), requantize.constants_name)
            upper = self.load(self._env.out_dtype, (*channels,), "upper_bits")
            factors = self.share(requantize.own_shared, "factors")
            self.prepared += _parameters(lower, upper, factors, self._name)
            held = self.prepared[-1]
        else:
            numbers = (requantize.constants,) if requantize.constants > 1 else ()
            held = self.load(dtype, (*channels, *numbers), requantize.constants_name)

        def constant(number: int, *i: Expr) -> Expr:
            place = (*(() if shares else position(*i[:-2])), *i[-2:])
            if len(held.shape) == len(place):
                return held(*place)
            return held(*place[:-2], number, *i[-2:])

        return constant


def _parameters(lower: Tensor, upper: Tensor, factors: Tensor, name: str) -> list[Tensor]:
    """The stages from the lower and upper bits of scales to parameters of REQUANTIZE; ``factors``
    are `CompactScale.factors`.
    """
    *channels, batch, block = lower.shape
    shape, count = (*channels, REQUANTIZE_PARAMETERS, batch, block), REQUANTIZE_PARAMETERS

    def spread(part: Tensor, first: int) -> Tensor:
        return te.compute(
            shape,
            lambda *i: part(*i[:-3], *i[-2:]) * factors(i[-3] + first, *i[-2:]),
            f"{part.name}_spread",
        )

    low, high = spread(lower, 0), spread(upper, count)
    both = te.compute(shape, lambda *i: low(*i) + high(*i), f"{name}whole_scales")
    last = te.compute(
        shape, lambda *i: both(*i) + factors(i[-3] + 2 * count, *i[-2:]), f"{name}parameters"
    )
    return [low, high, both, last]


def _biased(total: Tensor, constant: Constant) -> Tensor:
    return te.compute(total.shape, lambda *i: total(*i) + constant(0, *i), f"{total.name}_biased")


def _parts(value: Tensor, shifts: Tensor) -> Tensor:
    return te.compute(
        (shifts.shape[0], *value.shape), lambda p, *i: value(*i) >> shifts(p, *i[-2:]), "parts"
    )
