"""Results written in place: into the tensor that they are concatenated to, or over the old value of
a variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer
from amaranth_vta.sw.runtime.network.network_program import ToHost, ToMachine

from .steps import PlannedStep


@dataclass(frozen=True)
class BufferSlice:
    """The part of ``buffer`` that starts at byte ``offset``."""

    buffer: str
    offset: int


def concatenate_in_place(
    steps: Sequence[PlannedStep],
) -> tuple[list[PlannedStep], dict[str, BufferSlice]]:
    """Remove layers that only concatenate tensors whose producers can write in place. Returns the
    remaining steps, and where each such tensor lies, by the name of its buffer.

    Tensors that pass between host and machine keep separate buffers.
    """
    makers = {step.result.buffer: at for at, step in enumerate(steps) if isinstance(step, Layer)}
    passed = {step.buffer for step in steps if isinstance(step, ToHost | ToMachine)}
    places: dict[str, BufferSlice] = {}
    left: dict[int, PlannedStep] = dict(enumerate(steps))
    for number, step in enumerate(steps):
        if not (isinstance(step, Layer) and step.joins):
            continue
        names = [source.buffer for source in step.sources]
        *offsets, end = accumulate((source.nbytes for source in step.sources), initial=0)
        if end != step.result.nbytes or any(
            name not in makers or name in passed or name in places for name in names
        ):
            continue
        for name, offset in zip(names, offsets, strict=True):
            places[name] = BufferSlice(step.result.buffer, offset)
        del left[number]
        # The layer that writes the last part completes the concatenation.
        last = max((makers[name] for name in names if makers[name] in left), default=None)
        if last is not None:
            maker = left[last]
            assert isinstance(maker, Layer)
            left[last] = replace(maker, operator=f"{maker.operator}+{step.operator}")
    return list(left.values()), places


def overwrite_variables(
    steps: Sequence[PlannedStep],
    variables: Mapping[str, Layer],
    uses: Mapping[str, Sequence[int]],
    places: Mapping[str, BufferSlice],
) -> tuple[list[PlannedStep], dict[str, str]]:
    """Remove the copies of new values of ``variables``, by buffer, whose producers can write in
    place, since all readers of the old value precede them. Returns the remaining steps, and the
    variables' buffers by the buffers of these new values.

    ``uses`` are the indices of the steps that use each outermost buffer, ``places`` as from
    `concatenate_in_place`.
    """
    replaced: dict[str, str] = {}
    for variable, copy in variables.items():
        (made,) = copy.sources
        old = [at for at in uses[variable] if steps[at] is not copy]
        is_free = made.buffer not in places and made.buffer not in replaced
        if is_free and max(old, default=-1) < uses[made.buffer][0]:
            replaced[made.buffer] = variable
    removed = [variables[variable] for variable in replaced.values()]
    return [step for step in steps if step not in removed], replaced


def outermost_buffer(name: str, places: Mapping[str, BufferSlice]) -> tuple[str, int]:
    """The outermost buffer that contains buffer ``name``, and the byte offset of ``name`` in it."""
    offset = 0
    while name in places:
        offset += places[name].offset
        name = places[name].buffer
    return name, offset
