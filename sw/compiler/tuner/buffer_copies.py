"""Copies of a scratchpad buffer in the cost model: `BufferCopies`."""

from __future__ import annotations

from .cost_model import Pipeline, Task


class BufferCopies:
    """The copies of a scratchpad buffer, loaded in rotation, each once its last user has ended.
    ``loaded`` is the latest load. Of the first one, ``prefetched`` bytes are prefetched.
    """

    def __init__(self, pipeline: Pipeline, copies: int, prefetched: float = 0.0) -> None:
        self._pipeline = pipeline
        self._copies = copies
        self._prefetched = prefetched
        self._nest: object = None
        self._used_by: list[Task | None] = []
        self.loaded: Task | None = None
        pipeline.live.append(self._live)

    def load(self, nest: object, rows: int, row_bytes: int, instructions: int = 1) -> None:
        """Load the next copy. Copies of different loop nests share an address in the scratchpad, so
        the first load of another ``nest`` waits for the latest user.
        """
        prefetched, self._prefetched = self._prefetched, 0.0
        back = self._copies if nest == self._nest else 1
        used_by = self._used_by[-back] if len(self._used_by) >= back else None
        self._nest = nest
        self._used_by.append(None)
        self.loaded = self._pipeline.load(rows, row_bytes, [used_by], instructions, prefetched)

    def use(self, task: Task) -> None:
        """Record that ``task`` reads the copy loaded last."""
        self._used_by[-1] = task

    def _live(self) -> list[Task | None]:
        """The tasks that later ones may wait for."""
        return [self.loaded, *self._used_by[-self._copies :]]
