"""Checks which statements a user-written loop nest may contain after each pass."""

from __future__ import annotations

from amaranth_vta.sw.compiler.nest.ir import (
    Allocate,
    Assign,
    Dma,
    For,
    Kernel,
    LoopNest,
    LoweringError,
    NestUop,
    Region,
    Stmt,
    Token,
    WaitForAlu,
    walk,
)

from .passes.pipeline import PASS_NAMES

_REMOVED_BY = {"dma_copy": "copy_by_dma", "gemm": "tensorize_gemm", "alu": "map_to_alu"}


def check_form(nest: LoopNest, after: str) -> None:
    """Raises `LoweringError` for a statement that cannot occur after the pass ``after``.

    ``after`` is one of `PASS_NAMES`.
    """
    for part in walk(nest.body):
        what, begin, end = _occurs(part)
        if not PASS_NAMES.index(begin) <= PASS_NAMES.index(after) < _index(end):
            removed = _index(end) <= _index(after)
            raise LoweringError(
                f"{nest.name} is not a loop nest after {after}: {what} is "
                + (f"removed by {end}" if removed else f"introduced by {begin}")
            )


def _index(name: str) -> int:
    return PASS_NAMES.index(name) if name else len(PASS_NAMES)


def _occurs(part: Stmt) -> tuple[str, str, str]:
    """What ``part`` is, the pass that introduces it, and the pass that removes it, empty if none
    does.
    """
    match part:
        case Region():
            return f"with {part.kind}()", "infer_bounds", _REMOVED_BY[part.kind]
        case For(kind="cthread"):
            return "cthread", "infer_bounds", "interleave_threads"
        case Assign():
            return f"the assignment of {part.buffer.name}", "infer_bounds", "fold_loops"
        case Dma():
            return f"the transfer of {part.sram.name}", "copy_by_dma", ""
        case NestUop():
            return "uop_push outside of an instruction", "tensorize_gemm", "fold_loops"
        case Kernel():
            kind = "push_gemm" if part.uop.alu is None else "push_alu"
            return f"with {kind}()", "fold_loops", ""
        case Allocate() if part.buffer.base is None:
            return f"{part.buffer.name} without a base", "infer_bounds", "allocate_scratchpads"
        case Allocate():
            return f"the base of {part.buffer.name}", "allocate_scratchpads", ""
        case WaitForAlu():
            return "wait_for_alu", "mark_independent", ""
        case Token():
            return f"dep_{part.action}", "insert_tokens", ""
    return "a loop", "infer_bounds", ""
