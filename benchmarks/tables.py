"""Markdown tables whose rows have a name and numbers."""

from __future__ import annotations


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def head(first: str, *others: str) -> list[str]:
    """The first two lines of a table."""
    return [row(first, *others), "|---|" + "--:|" * len(others)]
