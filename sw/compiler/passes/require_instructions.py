"""Checks that every statement of a loop nest has been lowered to instructions."""

from __future__ import annotations

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.nest.ir import Assign, LoopNest, LoweringError, walk


def require_instructions(nest: LoopNest, _: Config) -> LoopNest:
    """``nest`` itself; raises `LoweringError` for the first stage that is still an assignment."""
    for part in walk(nest.body):
        if isinstance(part, Assign):
            raise LoweringError(
                f"no instruction computes {part.label.stage}: none of its axes has the pragma "
                "dma_copy or alu, or is tensorized by gemm"
            )
    return nest
