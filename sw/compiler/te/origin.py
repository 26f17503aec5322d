"""Source locations: where a user's code created a stage or an axis."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Folders skipped when looking for the caller: expressions and schedules, and the compiler's entry
# points.
_FOLDERS = (Path(__file__).parent, Path(__file__).parents[1])


@dataclass(frozen=True)
class Origin:
    """The source line that created a stage or an axis."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{_cell(self.file) or os.path.basename(self.file)}:{self.line}"


def _cell(file: str) -> str | None:
    """The name of a notebook cell, as in its margin; None if ``file`` is not a cell."""
    if "IPython" not in sys.modules:
        return None
    shell = sys.modules["IPython"].get_ipython()
    name = shell.compile.format_code_name(file) if shell is not None else None
    return name[1] if name else None


def caller() -> Origin:
    """The innermost line outside of these folders; operators/ counts as outside."""
    frame = sys._getframe(1)
    while _is_own(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return Origin(frame.f_code.co_filename, frame.f_lineno)


@cache
def _is_own(file: str) -> bool:
    return Path(file).parent in _FOLDERS
