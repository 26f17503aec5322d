"""Base of operators that move tiles: load them into accumulators and store them elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.formula import TILE_CYCLES
from amaranth_vta.sw.compiler.tuner.search import Choice
from amaranth_vta.sw.compiler.tuner.tiles import even_tiles, parts
from amaranth_vta.sw.compiler.tuner.workload import Scheduled


@dataclass(frozen=True)
class MoveKnobs:
    """The part of the output that is moved at a time: an extent in units of `Move.steps` for each
    axis outside of tiles. With ``in_turn`` the next part is loaded while one is stored.
    """

    extents: tuple[int, ...]
    in_turn: bool = False


@dataclass(frozen=True)
class Move:
    """Tensors of an operator: ``inputs`` of the function, ``loaded`` tensors in accumulators,
    ``copied`` tensors that the ALU computes from these, and the output ``y``, out_dtype. All end in
    (BATCH, BLOCK_OUT). ``steps`` gives the granularity of tiling for each axis of the output, by
    default one element.
    """

    inputs: Sequence[Tensor]
    loaded: Sequence[Tensor]
    y: Tensor
    inlined: Sequence[Tensor] = ()
    copied: Sequence[Tensor] = ()
    steps: Sequence[int] = ()


class Moving(ABC):
    """An operator described by a `Move`; its function takes the inputs and the output."""

    @abstractmethod
    def move(self, env: Environment) -> Move: ...

    def taken(self, extents: Sequence[int]) -> int:
        """Accumulators that a part of the output with these ``extents`` takes."""
        return prod(extents)

    def scheduled(self, env: Environment, knobs: MoveKnobs) -> Scheduled:
        return scheduled(self.move(env), knobs, env)

    def considered(self, config: Config) -> Choice[MoveKnobs]:
        move = self.move(Environment(config))
        shape = move.y.shape[:-2]
        if move.steps:
            shape = tuple(extent // step for extent, step in zip(shape, move.steps, strict=True))
        return Choice.by_formula(candidates(shape, self.taken, config))


def scheduled(move: Move, knobs: MoveKnobs, env: Environment) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    y = move.y
    s = te.create_schedule(y.op)
    for tensor in move.inlined:
        s[tensor].compute_inline()
    *axes, b, k = y.op.axis
    outer: list[te.IterVar] = []
    inner: list[te.IterVar] = []
    for axis, extent, step in zip(axes, knobs.extents, move.steps or [1] * len(axes), strict=True):
        first, rest = s[y].split(axis, extent * step)
        outer.append(first)
        inner += s[y].split(rest, step) if step > 1 else [rest]
    s[y].reorder(*outer, *inner, b, k)
    s[y].pragma(inner[0], env.dma_copy)
    for tensor in (*move.loaded, *move.copied):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], outer[-1])
        kind = env.dma_copy if tensor in move.loaded else env.alu
        s[tensor].pragma(s[tensor].op.axis[0], kind)
        if knobs.in_turn:
            s[tensor].double_buffer()
    return s, [*move.inputs, y]


def candidates(
    shape: Sequence[int], taken: Callable[[Sequence[int]], int], config: Config
) -> Iterator[tuple[float, MoveKnobs]]:
    """Knobs whose parts fit the accumulators, with estimated cycles. A part is a range of one axis,
    all of the axes inside it, and one step of each axis outside.
    """
    for axis in range(len(shape)):
        for part in even_tiles(shape[axis]):
            extents = (*[1] * axis, part, *shape[axis + 1 :])
            count = prod(parts(extent, size) for extent, size in zip(shape, extents, strict=True))
            for in_turn in (True, False):
                if (2 if in_turn else 1) * taken(extents) <= config.acc.depth:
                    words = prod(extents) * config.out.element_bytes / config.bus_bytes
                    yield (
                        count * (words * (1 if in_turn else 2) + TILE_CYCLES),
                        MoveKnobs(extents, in_turn),
                    )


def channel_sources(
    batch: int, channels: Sequence[int], pixels: int, env: Environment
) -> list[Tensor]:
    """Arguments x0, x1, … with these numbers of ``channels``: (batch, channel tiles, pixels, BATCH,
    BLOCK_OUT) out_dtype.
    """
    return [
        te.placeholder(
            (batch, parts(count, env.BLOCK_OUT), pixels, env.BATCH, env.BLOCK_OUT),
            f"x{number}",
            env.out_dtype,
        )
        for number, count in enumerate(channels)
    ]
