"""Relations between axes of a stage (split, fuse), and annotations of loops."""

from __future__ import annotations

from dataclasses import dataclass

from .expr import IterVar


@dataclass(frozen=True)
class Split:
    """``parent`` = ``outer`` * factor + ``inner``. If ``factor`` is None, the number of parts is
    given instead.
    """

    parent: IterVar
    outer: IterVar
    inner: IterVar
    factor: int | None
    nparts: int | None


@dataclass(frozen=True)
class Fuse:
    """``fused`` iterates over ``outer`` and, within it, ``inner``."""

    outer: IterVar
    inner: IterVar
    fused: IterVar


@dataclass(frozen=True)
class TensorIntrinsic:
    """A tensor operation of the machine: acc[b, o] += sum over i of inp[b, i] * wgt[o, i]."""

    name: str
    batch: int
    block_out: int
    block_in: int

    def __str__(self) -> str:
        return self.name
