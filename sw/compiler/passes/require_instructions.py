"""Checks that every statement of a loop nest has become an instruction."""

from __future__ import annotations

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.nest.ir import Assign, LoopNest, LoweringError, walk


def require_instructions(nest: LoopNest, _: Config) -> LoopNest:
    """``nest`` itself; raises `LoweringError` for the first stage that is still an assignment."""
    for part in walk(nest.body):
        if isinstance(part, Assign):
            raise LoweringError(
                f"{part.label.stage} is not done by an instruction: it has neither "
                "dma_copy nor alu nor gemm"
            )
    return nest
