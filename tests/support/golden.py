"""Golden files: the fixture ``golden`` of tests/conftest.py.

``pytest --rewrite-golden PATH`` rewrites the golden files of the tests in PATH.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "golden"
VECTORS = FOLDER / "vectors"


@dataclass(frozen=True)
class Golden:
    """Compares with golden files, or rewrites them if ``rewrites`` is set."""

    rewrites: bool

    def check_text(self, name: str | Path, text: str) -> None:
        """Assert that the contents of file ``name`` equal ``text``; relative paths start at
        tests/golden.
        """
        path = FOLDER / name
        if self.rewrites:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{path}: see --rewrite-golden"

    def known(self, name: str, key: str, value: Mapping[str, Any]) -> Any:
        """Return the value under ``key`` of the JSON file ``name`` in tests/golden; a rewrite sets
        it to ``value`` first.
        """
        path = FOLDER / name
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if self.rewrites:
            known[key] = value
            text = json.dumps(dict(sorted(known.items())), indent=2)
            path.write_text(text + "\n", encoding="utf-8")
        return known[key]
