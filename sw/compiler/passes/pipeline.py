"""The list of passes in order, and the places at which additional passes can be inserted.

A pass is a function from a loop nest and a configuration to a loop nest. `infer_bounds` is not in
the list: it creates the first loop nest from a schedule.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.nest.ir import LoopNest, LoweringError

from .allocate_scratchpads import allocate_scratchpads
from .copy_by_dma import copy_by_dma
from .fold_loops import fold_loops
from .insert_tokens import insert_tokens
from .interleave_threads import interleave_threads
from .map_to_alu import map_to_alu
from .mark_independent import mark_independent
from .overwrite_first import overwrite_first
from .read_carried_first import read_carried_first
from .require_instructions import require_instructions
from .share_storage import share_storage
from .software_pipeline import software_pipeline
from .tensorize_gemm import tensorize_gemm
from .unroll_loops import unroll_loops

Pass = Callable[[LoopNest, Config], LoopNest]
# The place of an additional pass ("before" or "after", and the name of a pass), and the pass.
PlacedPass = tuple[str, Pass]

PASSES: tuple[Pass, ...] = (
    overwrite_first,
    interleave_threads,
    unroll_loops,
    share_storage,
    read_carried_first,
    software_pipeline,
    copy_by_dma,
    tensorize_gemm,
    map_to_alu,
    require_instructions,
    fold_loops,
    allocate_scratchpads,
    mark_independent,
    insert_tokens,
)
# The passes in order, without `require_instructions`, which only checks.
PASS_NAMES = (
    "infer_bounds",
    *(step.__name__ for step in PASSES if step is not require_instructions),
)

# Deprecated names of passes, accepted for one release.
FORMER_NAMES = {"compute_ahead": "software_pipeline"}


def passes_after(name: str) -> tuple[Pass, ...]:
    """The passes that follow the pass ``name``, one of `PASS_NAMES`."""
    names = ["infer_bounds", *(step.__name__ for step in PASSES)]
    return PASSES[names.index(name) :]


def with_placed(placed: Sequence[PlacedPass]) -> list[Pass]:
    """All passes in order, with ``placed`` passes inserted.

    Raises `LoweringError` for a place that does not exist.
    """
    left = []
    for position, step in placed:
        side, _, name = position.partition(" ")
        if name in FORMER_NAMES:
            position = f"{side} {FORMER_NAMES[name]}"
            warnings.warn(f"the pass {name} is now {FORMER_NAMES[name]}", FutureWarning, 2)
        left.append((position, step))

    def take(place: str) -> list[Pass]:
        found = [item for item in left if item[0] == place]
        for item in found:
            left.remove(item)
        return [step for _, step in found]

    steps = take("after infer_bounds")
    for step in PASSES:
        steps += [*take(f"before {step.__name__}"), step, *take(f"after {step.__name__}")]
    if left:
        names = ", ".join(step.__name__ for step in PASSES)
        raise LoweringError(
            f"{left[0][0]!r} is not a position for a pass, which is before or after one of "
            f"{names}, or "
            "after infer_bounds"
        )
    return steps
