"""Counts with units, as text."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """``count`` with its unit, as in "1 layer" and "1,024 bytes"; ``thing`` takes a plural s."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
