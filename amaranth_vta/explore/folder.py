"""The folder of an exploration: its settings, its results, and a lock against other processes."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.cache import package_version

from .results import Known, Row, append_row, known_runs, table_text
from .spec import Spec, SpecError

TABLE, PAGE, MACHINES = "results.csv", "report.html", "machines"
_STATE, _LOCK = "explore.json", ".lock"


class Folder:
    """The folder ``path`` with the results of an exploration of ``spec``.

    ``networks`` are digests by label. Without ``resume``, earlier results are overwritten; with it,
    they must have the same SPEC, networks and version. Raises `SpecError` if they do not, if the
    folder holds other files, or if another process explores in it.
    """

    def __init__(
        self, path: str | Path, spec: Spec, networks: Mapping[str, str], resume: bool
    ) -> None:
        self.path = Path(path)
        self._spec = spec
        state = _state(spec, networks)
        resumes = resume and (self.path / _STATE).exists()
        self._require_own(state, resumes)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / _LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise SpecError(f"another process explores in {path}") from None
        table = self.path / TABLE
        self.known: Known = known_runs(spec, table) if resumes and table.exists() else {}
        if self.known:
            # Drops an incomplete last line, left by a killed process.
            text = table.read_text(encoding="utf-8", errors="replace")
            table.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
        else:
            self.write(_STATE, state)
            self.write(TABLE, table_text(spec, []))
        self._file = table.open("a", encoding="utf-8", newline="")

    def _require_own(self, state: str, resumes: bool) -> None:
        """Raises `SpecError` unless the folder is empty, missing, or of an exploration; to resume,
        of this one.
        """
        if self.path.exists() and not self.path.is_dir():
            raise SpecError(f"{self.path} is a file, not a folder")
        there = {item.name for item in self.path.iterdir()} if self.path.exists() else set()
        if there - {_LOCK} and _STATE not in there:
            raise SpecError(f"{self.path} holds other files and no {_STATE}")
        if resumes and (self.path / _STATE).read_text(encoding="utf-8") != state:
            raise SpecError(
                f"{self.path} has the results of another SPEC, other networks or another version: "
                "name another folder, or replace it by omitting --resume"
            )

    def append(self, row: Row) -> None:
        """Appends a row to the table."""
        append_row(self._spec, self._file, row)

    def finish(self, rows: list[Row]) -> None:
        """Rewrites the whole table, in order."""
        self._file.close()
        self.write(TABLE, table_text(self._spec, rows))

    def write_machines(self, configs: Mapping[str, Config]) -> None:
        """Writes the configurations of the front, by file name, and deletes earlier ones."""
        for path in (self.path / MACHINES).glob("*.json"):
            path.unlink()
        for name, config in configs.items():
            self.write(f"{MACHINES}/{name}", config.to_json() + "\n")

    def write(self, name: str, text: str) -> None:
        """Writes a file of the folder atomically."""
        target = self.path / name
        target.parent.mkdir(exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(target)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._lock.close()


def _state(spec: Spec, networks: Mapping[str, str]) -> str:
    values: dict[str, Any] = asdict(spec)
    values |= {
        "base": spec.base.to_dict(),
        "networks": dict(networks),
        "version": package_version(),
    }
    return json.dumps(values, indent=2) + "\n"
