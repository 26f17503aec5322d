"""Unique identifiers for the objects in printed Python."""

from __future__ import annotations

from collections.abc import Iterable
from keyword import iskeyword


class Names:
    """Assigns unique names to objects; ``reserved`` names are not used."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._taken = set(reserved)
        # Keyed by id; keeps the objects alive, so that ids stay unique.
        self._names: dict[int, tuple[str, object]] = {}

    def of(self, thing: object, wish: str) -> str:
        """The name of ``thing``: ``wish`` as an identifier, numbered if it is taken."""
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
