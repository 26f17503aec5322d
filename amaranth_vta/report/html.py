"""HTML for the pages of reports: `html_page`, `html_table`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .chart import STYLE

_STYLE = f"""\
body {{ font: 15px/1.45 sans-serif; color: #222; }}
body {{ max-width: 960px; margin: 2em auto; padding: 0 12px; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
th, td {{ padding: 2px 10px; text-align: right; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child, .words {{ text-align: left; }}
td.words {{ min-width: 9em; }}
.wrong {{ background: #fbe3dd; padding: 0.6em 1em; }}
{STYLE}"""


def html_page(title: str, parts: Iterable[str], style: str = "") -> str:
    """A self-contained HTML file. ``parts`` are the parts of its body, ``style`` adds to the style
    of tables and bars."""
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def html_table(headings: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """HTML; the first ``words`` columns are text."""

    def cells(tag: str, row: Sequence[object]) -> str:
        kinds = [' class="words"' if number < words else "" for number in range(len(row))]
        return "".join(
            f"<{tag}{kind}>{escape(str(cell))}</{tag}>"
            for kind, cell in zip(kinds, row, strict=True)
        )

    lines = [f"<tr>{cells('th', headings)}</tr>", *(f"<tr>{cells('td', row)}</tr>" for row in rows)]
    return '<div class="scroll"><table>\n' + "\n".join(lines) + "\n</table></div>"
