"""Finds the tokens that order conflicting instructions of a program, for all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.isa import TOKEN_QUEUES, Module, TokenQueue

Numbers = npt.NDArray[np.int64]
# Each scratchpad with the modules that write it and read it.
_SHARED = (
    ("inp", Module.LOAD, Module.COMPUTE),
    ("inp", Module.STORE, Module.COMPUTE),
    ("wgt", Module.LOAD, Module.COMPUTE),
    ("acc", Module.COMPUTE, Module.STORE),
)
_NONE = np.zeros(0, np.int64)


class ElementAccesses(NamedTuple):
    """Instructions ``numbers`` of a ``module``; each ``writes`` or reads the elements from
    ``begins`` to ``ends`` of the scratchpad ``scope``. Arrays are int64 (instructions,).
    """

    numbers: Numbers
    module: Module
    scope: str
    writes: bool
    begins: Numbers
    ends: Numbers


def needed_tokens(accesses: Sequence[ElementAccesses]) -> dict[TokenQueue, tuple[Numbers, Numbers]]:
    """Per queue, the instructions that push its tokens and those that pop them, in order.

    An instruction waits for the latest instruction of the other module with a conflicting access to
    the same elements, unless an older instruction has already waited for that one or a later one.
    """
    waits: dict[TokenQueue, list[tuple[Numbers, Numbers]]] = {queue: [] for queue in TOKEN_QUEUES}
    for scope, writer, reader in _SHARED:
        written = _joined(accesses, scope, writer, True)
        read = _joined(accesses, scope, reader, False)
        waits[writer, reader].append((read.numbers, _latest(written, read)))
        waits[reader, writer].append((written.numbers, _latest(read, written)))
    return {queue: _without_implied(found) for queue, found in waits.items()}


class _Uses(NamedTuple):
    """Instructions in order, and the elements that each accesses."""

    numbers: Numbers
    begins: Numbers
    ends: Numbers


def _joined(accesses: Sequence[ElementAccesses], scope: str, module: Module, writes: bool) -> _Uses:
    wanted = scope, module, writes
    chosen = [item for item in accesses if (item.scope, item.module, item.writes) == wanted]
    columns = ([getattr(item, name) for item in chosen] for name in _Uses._fields)
    numbers, begins, ends = (np.concatenate([_NONE, *column]) for column in columns)
    (some,) = np.nonzero(begins < ends)
    order = some[np.argsort(numbers[some])]
    return _Uses(numbers[order], begins[order], ends[order])


def _latest(of: _Uses, before: _Uses) -> Numbers:
    """For each of ``before``, the last instruction of ``of`` that precedes it and shares elements
    with it; -1 if there is none.
    """
    result = np.full(len(before.numbers), -1, np.int64)
    # Loops access the same elements repeatedly.
    order = np.lexsort((before.numbers, before.ends, before.begins))
    begins, ends = before.begins[order], before.ends[order]
    (changes,) = np.nonzero((np.diff(begins) != 0) | (np.diff(ends) != 0))
    for alike in np.split(order, changes + 1) if order.size else ():
        begin, end = before.begins[alike[0]], before.ends[alike[0]]
        numbers = of.numbers[(of.begins < end) & (begin < of.ends)]
        places = np.searchsorted(numbers, before.numbers[alike])
        result[alike] = np.concatenate([[-1], numbers])[places]
    return result


def _without_implied(waits: Sequence[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers]:
    """Drop waits that older waits imply; returns the pushing and the popping instructions of the
    remaining ones. ``waits`` are instructions and what each waits for.
    """
    numbers, latest = (np.concatenate(column) for column in zip(*waits, strict=True))
    order = np.lexsort((-latest, numbers))
    numbers, latest = numbers[order], latest[order]
    known = np.maximum.accumulate(np.concatenate([[-1], latest]))[:-1]
    needed = latest > known
    return latest[needed], numbers[needed]
