"""Parts of Markdown pages that benchmarks write and check: the lines between a marker and the end
marker. Pages are named by their path in the repository.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
END = "<!-- end -->\n"


def add_options(parser: argparse.ArgumentParser, page: str, writes: bool = False) -> None:
    """Add the options ``--write`` and ``--check`` for `put`; a benchmark that ``writes`` the page
    by default has only the latter.
    """
    group = parser.add_mutually_exclusive_group()
    if writes:
        parser.set_defaults(write=True)
    else:
        group.add_argument("--write", action="store_true", help=f"put the result into {page}")
    group.add_argument("--check", action="store_true", help=f"compare with {page}, write nothing")


def put(chosen: argparse.Namespace, marker: str, lines: Sequence[str], page: str) -> bool:
    """Write ``lines`` after ``marker``, or compare them with the page, as ``chosen`` by the
    options. Returns whether the page was found to be stale.
    """
    if chosen.check:
        return stale(marker, lines, page)
    if chosen.write:
        replace(marker, lines, page)
    return False


def replace(marker: str, lines: Sequence[str], page: str) -> None:
    """Replace the text of the page between ``marker`` and the end marker by ``lines``."""
    before, _, after = _parts(marker, page)
    text = "".join(f"{line}\n" for line in lines)
    (REPOSITORY / page).write_text(f"{before}{marker}{text}{END}{after}", encoding="utf-8")


def stale(marker: str, lines: Sequence[str], page: str) -> bool:
    """Whether the text of the page after ``marker`` is not ``lines``; prints the difference."""
    _, text, _ = _parts(marker, page)
    difference = list(unified_diff(text.splitlines(), lines, page, "measured", n=0))
    print("\n".join(line.rstrip() for line in difference))
    return bool(difference)


def _parts(marker: str, page: str) -> tuple[str, str, str]:
    """The page before ``marker``, between it and the end marker, and after the latter."""
    before, rest = (REPOSITORY / page).read_text(encoding="utf-8").split(marker)
    text, _, after = rest.partition(END)
    return before, text, after
