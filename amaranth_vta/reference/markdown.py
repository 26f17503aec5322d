"""Markdown building blocks: tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table."""
    return [
        _row(headings),
        "|" + "---|" * len(headings),
        *(_row([str(cell) for cell in row]) for row in rows),
    ]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def bits(offset: int, width: int) -> str:
    """Bit positions of a field, highest first, such as ``7:4``."""
    return str(offset) if width == 1 else f"{offset + width - 1}:{offset}"


def figure(name: str, alt: str) -> str:
    """A figure of ``docs/figures``, in a light or dark version to match the page."""
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="figures/{name}-dark.svg">'
        f'<img src="figures/{name}.svg" alt="{alt}"></picture>'
    )
