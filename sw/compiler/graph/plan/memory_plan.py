"""Which activations share a buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class SharedBuffers:
    """The buffer that each tensor is in, and the bytes of each buffer."""

    place: dict[str, int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)


def share_buffers(lives: Mapping[str, tuple[int, int, int]]) -> SharedBuffers:
    """Puts tensors into buffers so that no two in one buffer are live at the same time.

    ``lives`` has, for each tensor, the first and the last step that use it and its bytes. The
    largest tensors come first, each into the smallest buffer that is free while it is live, or else
    into a new one.
    """
    plan = SharedBuffers()
    guests: list[list[tuple[int, int]]] = []
    ordered = sorted(lives.items(), key=lambda item: (-item[1][2], item[1][0]))
    for name, (first, last, size) in ordered:
        free = [
            number
            for number, taken in enumerate(guests)
            if all(last < start or end < first for start, end in taken)
        ]
        if not free:
            guests.append([])
            plan.sizes.append(size)
            free = [len(guests) - 1]
        # Any free buffer is large enough, since larger tensors came first.
        number = min(free, key=lambda candidate: plan.sizes[candidate])
        guests[number].append((first, last))
        plan.place[name] = number
    return plan
