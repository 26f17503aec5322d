"""Base of operators that move tiles: load them into accumulators and store them elsewhere."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile, Tiled
from amaranth_vta.sw.compiler.tuner.tiles import Array, contiguous_tiles, parts
from amaranth_vta.sw.compiler.tuner.workload import Scheduled

from .tile_schedule import tile_schedule


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


class Moving(Tiled):
    """An operator described by a `Move`; its function takes the inputs and the output."""

    @abstractmethod
    def move(self, env: Environment) -> Move: ...

    def scheduled(self, env: Environment, knobs: OutputTile) -> Scheduled:
        return scheduled(self.move(env), knobs, env)

    def candidate_tiles(self, config: Config) -> Array:
        move = self.move(Environment(config))
        shape = move.y.shape[:-2]
        steps = move.steps or [1] * len(shape)
        return contiguous_tiles([extent // step for extent, step in zip(shape, steps, strict=True)])


def scheduled(move: Move, knobs: OutputTile, env: Environment) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    s = tile_schedule(move.y, knobs.extents, env, steps=move.steps, inlined=move.inlined)
    for tensor in (*move.loaded, *move.copied) if knobs.in_turn else ():
        s[tensor].double_buffer()
    return s, [*move.inputs, move.y]


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
