"""Omit buffers and copies: write results into the tensor that they are concatenated to or over the
old value of a variable, and load tensors from the buffers that hold their parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer, least_run
from amaranth_vta.sw.runtime.network.network_program import ToHost, ToMachine

from .steps import PlannedStep


@dataclass(frozen=True)
class BufferSlice:
    """The ``nbytes`` bytes of ``buffer`` that start at byte ``offset``."""

    buffer: str
    offset: int
    nbytes: int


# By the name of a buffer that is not allocated, the slices of other buffers with its bytes.
Places = Mapping[str, tuple[BufferSlice, ...]]


def without_copies(
    steps: Sequence[PlannedStep], config: Config
) -> tuple[list[PlannedStep], dict[str, tuple[BufferSlice, ...]]]:
    """Remove layers that only move whole runs of bytes: concatenations whose parts can be written
    in place, and moves whose result can be read where the runs are stored. Returns the remaining
    steps, and where the tensors without a buffer are.

    Tensors that pass between host and machine keep separate buffers.
    """
    makers = {
        result.buffer: at
        for at, step in enumerate(steps)
        if isinstance(step, Layer)
        for result in step.results
    }
    passed = {step.buffer for step in steps if isinstance(step, ToHost | ToMachine)}
    places: dict[str, tuple[BufferSlice, ...]] = {}
    left: dict[int, PlannedStep] = dict(enumerate(steps))
    for number, step in enumerate(steps):
        if not (isinstance(step, Layer) and step.runs):
            continue
        result = step.result.buffer
        names = [source.buffer for source in step.sources]
        if step.joins and not any(
            name not in makers or name in passed or name in places for name in names
        ):
            begin = 0
            for name, run in zip(names, step.runs, strict=True):
                places[name] = (BufferSlice(result, begin, run.nbytes),)
                begin += run.nbytes
            # The layer that writes the last part completes the concatenation.
            last = max((makers[name] for name in names if makers[name] in left), default=None)
            if last is not None:
                maker = left[last]
                assert isinstance(maker, Layer)
                left[last] = replace(maker, operator=f"{maker.operator}+{step.operator}")
        elif result not in passed and _is_readable(step, left.values(), config):
            places[result] = tuple(
                BufferSlice(names[run.source], run.begin, run.nbytes) for run in step.runs
            )
        else:
            continue
        del left[number]
    return list(left.values()), places


def _is_readable(moved: Layer, steps: Iterable[PlannedStep], config: Config) -> bool:
    """Whether all readers of a layer's result can read its runs where they are stored."""
    sizes = [run.nbytes for run in moved.runs]
    if sum(sizes) < len(sizes) * least_run(config):
        return False
    units = [
        step.reads_in_units_of(number)
        for step in steps
        if isinstance(step, Layer)
        for number, source in enumerate(step.sources)
        if source.buffer == moved.result.buffer
    ]
    return not any(
        value % unit for unit in units for run in moved.runs for value in (run.begin, run.nbytes)
    )


def overwrite_variables(
    steps: Sequence[PlannedStep],
    variables: Mapping[str, Layer],
    uses: Mapping[str, Sequence[int]],
    places: Places,
) -> tuple[list[PlannedStep], dict[str, str]]:
    """Remove the copies of new values of ``variables``, by buffer, whose producers can write in
    place, since all readers of the old value precede them. Returns the remaining steps, and the
    variables' buffers by the buffers of these new values.

    ``uses`` are the indices of the steps that use each outermost buffer, ``places`` as from
    `without_copies`.
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


def stored_slices(name: str, nbytes: int, places: Places) -> list[BufferSlice]:
    """The slices of allocated buffers in which the ``nbytes`` of buffer ``name`` are stored."""
    return list(_slices(BufferSlice(name, 0, nbytes), places))


def _slices(wanted: BufferSlice, places: Places) -> Iterator[BufferSlice]:
    if wanted.buffer not in places:
        yield wanted
        return
    first, end, begin = wanted.offset, wanted.offset + wanted.nbytes, 0
    for place in places[wanted.buffer]:
        low, high = max(first, begin), min(end, begin + place.nbytes)
        if low < high:
            inner = BufferSlice(place.buffer, place.offset + low - begin, high - low)
            yield from _slices(inner, places)
        begin += place.nbytes
