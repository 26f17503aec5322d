"""Assign activations with disjoint lifetimes to shared buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class SharedBuffers:
    """The buffer of each tensor, and the size of each buffer in bytes."""

    buffer_of: dict[str, int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)


def share_buffers(lifetimes: Mapping[str, tuple[int, int, int]]) -> SharedBuffers:
    """Assign tensors to buffers so that no two tensors in a buffer are live at the same time.

    ``lifetimes`` has, for each tensor, the first and the last step that use it and its size in
    bytes. Tensors are assigned from large to small, each to the smallest buffer that is free during
    its lifetime, or else to a new one.
    """
    plan = SharedBuffers()
    occupied: list[list[tuple[int, int]]] = []
    ordered = sorted(lifetimes.items(), key=lambda item: (-item[1][2], item[1][0]))
    for name, (first, last, size) in ordered:
        free = [
            number
            for number, taken in enumerate(occupied)
            if all(last < start or end < first for start, end in taken)
        ]
        if not free:
            occupied.append([])
            plan.sizes.append(size)
            free = [len(occupied) - 1]
        # Any free buffer is large enough, since larger tensors were assigned first.
        number = min(free, key=lambda candidate: plan.sizes[candidate])
        occupied[number].append((first, last))
        plan.buffer_of[name] = number
    return plan
