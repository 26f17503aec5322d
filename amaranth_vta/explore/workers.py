"""Workers for tasks: local processes, or workers of a Dask scheduler."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from amaranth_vta.errors import VtaError
from amaranth_vta.extras import explain_missing_extras

Item = TypeVar("Item")
Result = TypeVar("Result")
# Number of workers that may die while running a task before the task is no longer retried.
_DEATHS = 1
_CONNECT_SECONDS = 30


class WorkersError(VtaError, ValueError):
    """A scheduler does not answer, or has no workers."""


class TaskOutcome(Generic[Result]):
    """The ``result`` of a task, or its ``error`` message."""

    def __init__(self, result: Result | None, error: str = "") -> None:
        self.result, self.error = result, error


class Workers:
    """``jobs`` local processes, or the workers of the scheduler at ``address``.

    If a worker dies, its task is retried on another. Raises `WorkersError`, and `MissingExtra`
    without Dask.
    """

    def __init__(self, jobs: int | None, address: str | None) -> None:
        with explain_missing_extras():
            import distributed
        # Dask logs the exit of each worker; relevant errors are in the outcomes.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", module="distributed")
        self._distributed: Any = distributed
        self._cluster: Any = None
        if address is None:
            self._cluster = distributed.LocalCluster(
                n_workers=jobs or os.cpu_count() or 1,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                memory_limit=0,
                silence_logs=logging.CRITICAL,
                scheduler_kwargs={"allowed_failures": _DEATHS},
            )
        try:
            self._client = distributed.Client(
                self._cluster or address, timeout=_CONNECT_SECONDS, set_as_default=False
            )
            self._client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        except (OSError, TimeoutError, ValueError) as error:
            raise WorkersError(f"no worker at the scheduler {address}: {error}") from None
        self._data: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._data.clear()
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()

    @property
    def count(self) -> int:
        return len(self._client.scheduler_info(n_workers=-1)["workers"])

    def share(self, data: Mapping[str, bytes]) -> None:
        """Sends ``data`` to the workers once, for tasks that refer to it by name.

        The data is stored as the result of a task, so that the scheduler recomputes it if the
        workers that hold it die.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning about large data
            for name, value in data.items():
                self._data[name] = self._client.submit(_same, value, key=f"data-{name}")

    def run(
        self, work: Callable[[Item, bytes], Result], items: Sequence[tuple[Item, str]]
    ) -> Iterator[tuple[int, TaskOutcome[Result]]]:
        """Runs ``work`` on each item and the data that the item names; yields its number and
        outcome in order of completion.
        """
        suspects: list[int] = []
        for number, outcome in self._together(work, dict(enumerate(items))):
            if outcome is None:
                suspects.append(number)
            else:
                yield number, outcome
        # Another item may have killed the worker: retry each item alone.
        for suspect in suspects:
            for number, outcome in self._together(work, {suspect: items[suspect]}):
                yield number, outcome or TaskOutcome(None, "the workers that ran it died")

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """The results of ``work`` on the items, in order of completion; `WorkersError` if an item
        fails.
        """
        self.share({"": b""})
        for _, outcome in self.run(partial(_alone, work), [(item, "") for item in items]):
            if outcome.error:
                raise WorkersError(f"a worker failed: {outcome.error}")
            yield cast("Result", outcome.result)

    def _together(
        self, work: Callable[[Item, bytes], Result], items: Mapping[int, tuple[Item, str]]
    ) -> Iterator[tuple[int, TaskOutcome[Result] | None]]:
        """The number and the outcome of each item; None if its workers died."""
        futures = {
            self._client.submit(_guarded, work, item, self._data[name], pure=False): number
            for number, (item, name) in items.items()
        }
        for future in self._distributed.as_completed(list(futures), loop=self._client.loop):
            number = futures.pop(future)
            try:
                outcome = future.result()
            except self._distributed.scheduler.KilledWorker:
                outcome = None
            except Exception as error:
                raise WorkersError(
                    f"the scheduler has lost a task ({type(error).__name__}); repeat the command, "
                    f"with --resume if it has that option"
                ) from None
            yield number, outcome


def _same(data: bytes) -> bytes:
    return data


def _alone(work: Callable[[Item], Result], item: Item, _: bytes) -> Result:
    return work(item)


def _guarded(work: Callable[[Item, bytes], Result], item: Item, data: bytes) -> TaskOutcome[Result]:
    """The outcome of ``work``. An exception is converted to text, since the client may not be able
    to import its class.
    """
    try:
        return TaskOutcome(work(item, data))
    except Exception as error:
        return TaskOutcome(None, f"{type(error).__name__}: {' '.join(str(error).split())}"[:500])
