"""Records of knobs that measured faster than the compiler's choice: `Records`.

A file of records is JSON, keyed by workload and configuration; files can be merged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from amaranth_vta.errors import VtaError
from amaranth_vta.hw.config import Config, ConfigError, unique_keys
from amaranth_vta.sw.runtime.array_file import FileLimitError, read_limited

_FORMAT, _VERSION = "amaranth-vta tuning", 1


class RecordsError(VtaError, ValueError):
    """A file contains no records, or is damaged."""


@dataclass(frozen=True)
class Record:
    """The best ``knobs``, numbers and lists of numbers, for a ``workload`` (its `workload_name`) on
    the machine of ``config``: their cycles and those of the compiler's choice, both measured with
    ``memory``.
    """

    workload: str
    config: Config
    knobs: Mapping[str, int | Sequence[int]]
    cycles: int
    default_cycles: int
    memory: str


class Records:
    """The best known record of each workload on each machine."""

    def __init__(self, records: Mapping[tuple[str, Config], Record] | None = None) -> None:
        self._records = dict(records or {})

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def add(self, record: Record) -> None:
        """Add ``record``, unless there is a better one for the same workload and machine."""
        key = record.workload, record.config
        known = self._records.get(key)
        if known is None or record.cycles < known.cycles:
            self._records[key] = record

    def knobs(self, workload: Any, config: Config) -> Any | None:
        """The knobs for ``workload`` on the machine of ``config``; None if there is no record."""
        record = self._records.get((workload_name(workload), config))
        if record is None:
            return None
        made = get_type_hints(workload.scheduled)["knobs"]
        known = {item.name for item in fields(made)}
        needed = {item.name for item in fields(made) if item.default is MISSING}
        # Records of an earlier version lack the knobs that were added since, with defaults.
        if not needed <= set(record.knobs) <= known:
            return None
        values = record.knobs.items()
        return made(**{name: tuple(v) if isinstance(v, list) else v for name, v in values})

    @property
    def digest(self) -> str:
        """A hash of the contents."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        ordered = sorted(self, key=lambda record: (record.workload, record.config.to_json()))
        entries = [{**asdict(r), "config": r.config.to_dict()} for r in ordered]
        values = {"format": _FORMAT, "version": _VERSION, "records": entries}
        return json.dumps(values, indent=1) + "\n"

    @classmethod
    def load(cls, path: str | Path) -> Records:
        """The records in a file. Raises `RecordsError`, or `OSError` if it cannot be read."""
        try:
            values = json.loads(read_limited(path), object_pairs_hook=unique_keys)
            if values["format"] != _FORMAT or values["version"] != _VERSION:
                raise ValueError("another format or version")
            found = cls()
            for entry in values["records"]:
                found.add(_record(entry))
        except (
            *(ValueError, RecursionError, KeyError, TypeError),
            *(ConfigError, FileLimitError, AttributeError),
        ) as error:
            raise RecordsError(f"{path} is not what `vta tune` writes: {error}") from None
        return found


def _record(entry: dict[str, Any]) -> Record:
    record = Record(**{**entry, "config": Config.from_dict(entry["config"])})
    numbers: list[Any] = [record.cycles, record.default_cycles]
    for knob in record.knobs.values():
        numbers += knob if isinstance(knob, list) else [knob]
    if not all(isinstance(number, int) for number in numbers):
        raise ValueError("a number of cycles, or a knob, is not a whole number")
    if not isinstance(record.workload, str) or not isinstance(record.memory, str):
        raise ValueError("a workload, or a memory, is not text")
    return record


def workload_name(workload: Any) -> str:
    """Name of a workload in record files: the operator and all its sizes."""
    # Existing record files predate these fields.
    return repr(workload).replace(", int4_weights=False", "").replace(", second=None", "")


# Finds the knobs of a workload for a configuration; None if there are none.
FindKnobs = Callable[[Any, Config], Any | None]
_FIND: ContextVar[FindKnobs] = ContextVar("find_knobs", default=lambda workload, config: None)


@contextmanager
def knobs_from(find: FindKnobs) -> Iterator[None]:
    """A context in which operators are built with knobs that ``find`` returns, if they fit."""
    token = _FIND.set(find)
    try:
        yield
    finally:
        _FIND.reset(token)


def recorded_knobs(workload: Any, config: Config) -> Any | None:
    """The knobs from the enclosing `knobs_from`; None without one."""
    return _FIND.get()(workload, config)
