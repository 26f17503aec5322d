"""Text tables that fit a terminal, and counts with units: `text_table`, `counted`."""

from __future__ import annotations

from collections.abc import Sequence

_LEAST_WIDTH = 8  # of a truncated text column


def text_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    total: Sequence[str] | None = None,
    *,
    texts: int = 1,
    width: int | None = 80,
) -> str:
    """A table with lines of at most ``width`` characters, or of any length if it is None.

    The first ``texts`` columns are text, left-aligned, and truncated in the middle if space is
    short; the others are numbers, right-aligned and never truncated. Columns of numbers that do not
    fit continue in a second table below, which repeats the first column. A head may have two lines.
    ``total`` is a last row, below a rule.
    """
    lines_of_heads = max(head.count("\n") + 1 for head in heads)
    head_rows = zip(*(_lines(head, lines_of_heads) for head in heads), strict=True)
    table = [*head_rows, *rows, *([total] if total is not None else [])]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    if width is not None:
        _narrow(widths, texts, width)
        fitting = _fitting(widths, texts, width)
        if fitting < len(widths):
            begin, end = slice(fitting), slice(fitting, None)
            parts = [
                text_table(
                    (*heads[:first], *heads[chosen]),
                    [(*row[:first], *row[chosen]) for row in rows],
                    None if total is None else (*total[:first], *total[chosen]),
                    texts=count,
                    width=width,
                )
                for first, chosen, count in ((0, begin, texts), (1, end, 1))
            ]
            return "\n\n".join(parts)
    lines = []
    for row in table:
        cells = [
            cut(cell, size).ljust(size) if column < texts else cell.rjust(size)
            for column, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
    if total is not None:
        lines.insert(-1, rule)
    lines.insert(lines_of_heads, rule)
    return "\n".join(lines)


def _lines(head: str, count: int) -> list[str]:
    """The lines of a head, padded at the top to ``count`` lines."""
    lines = head.split("\n")
    return [""] * (count - len(lines)) + lines


def _narrow(widths: list[int], texts: int, width: int) -> None:
    """Narrows the widest text columns until the table fits, or they reach the minimum width."""
    while sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(range(texts), key=lambda column: widths[column])
        if widths[widest] <= _LEAST_WIDTH:
            return
        widths[widest] -= 1


def _fitting(widths: Sequence[int], texts: int, width: int) -> int:
    """The number of columns that fit ``width``: all text columns, and at least one more."""
    count = min(texts + 1, len(widths))
    while count < len(widths) and sum(widths[: count + 1]) + 2 * count <= width:
        count += 1
    return count


def cut(text: str, size: int) -> str:
    """Truncates ``text`` in the middle to ``size`` characters; keeps more of the end, where layer
    names differ most.
    """
    if len(text) <= size:
        return text
    begin = (size - 1) // 3
    return f"{text[:begin]}…{text[len(text) - (size - 1 - begin) :]}"


def counted(count: int, thing: str) -> str:
    """``count`` with its unit, as in "1 layer" and "1,024 bytes"; ``thing`` takes a plural s."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
