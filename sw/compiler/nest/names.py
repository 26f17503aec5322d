"""Names for what is printed as Python: each thing gets one, and no two things the same."""

from __future__ import annotations

from collections.abc import Iterable
from keyword import iskeyword


class Names:
    """``reserved`` names are given to nothing."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._taken = set(reserved)
        # By identity; the thing is kept, so that no other can take its place in memory.
        self._names: dict[int, tuple[str, object]] = {}

    def of(self, thing: object, wish: str) -> str:
        """The name of ``thing``, which is ``wish`` as far as it can be."""
        if id(thing) not in self._names:
            base = "".join(c if c.isalnum() or c == "_" else "_" for c in wish)
            if not base.isidentifier() or iskeyword(base):
                base = f"_{base}"
            chosen, number = base, 1
            while chosen in self._taken:
                chosen, number = f"{base}_{number}", number + 1
            self._taken.add(chosen)
            self._names[id(thing)] = chosen, thing
        return self._names[id(thing)][0]
