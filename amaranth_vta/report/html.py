"""HTML building blocks for reports: `html_page`, `html_table`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .chart import STYLE

_STYLE = f"""\
:root {{ color-scheme: light dark; --back: #fff; --text: #222; --muted: #666; --line: #ddd; }}
:root {{ --link: #2a78ad; --wrong: #fbe3dd; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --back: #16191d; --text: #dde1e6; --muted: #9aa2ab; --line: #3a4048; }}
  :root {{ --link: #7db8de; --wrong: #5b2a1f; }}
}}
body {{ font: 15px/1.45 sans-serif; color: var(--text); background: var(--back); }}
body {{ max-width: 960px; margin: 2em auto; padding: 0 12px; }}
a {{ color: var(--link); }}
small {{ color: var(--muted); }}
code {{ overflow-wrap: anywhere; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
th, td {{ padding: 2px 10px; text-align: right; border-bottom: 1px solid var(--line); }}
th {{ vertical-align: bottom; }}
th:first-child, td:first-child, .words {{ text-align: left; }}
td.words {{ min-width: 9em; overflow-wrap: anywhere; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 3px 16px; }}
dt {{ color: var(--muted); }}
dd {{ margin: 0; min-width: 0; }}
.wrong {{ background: var(--wrong); padding: 0.6em 1em; }}
@media (max-width: 640px) {{
  table {{ font-size: 13px; }}
  th, td {{ padding: 2px 4px; }}
  td.words {{ min-width: 6em; }}
}}
{STYLE}"""


def html_page(title: str, parts: Iterable[str], style: str = "") -> str:
    """A self-contained HTML file from the ``parts`` of its body; ``style`` is additional CSS."""
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def html_table(headings: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """HTML table whose first ``words`` columns are text. A cell that is a pair shows its second
    text in small type below the first.
    """

    def content(cell: object) -> str:
        if isinstance(cell, tuple):
            first, second = (escape(str(text)) for text in cell)
            return f"{first}<br/><small>{second}</small>" if second else first
        return escape(str(cell))

    def cells(tag: str, row: Sequence[object]) -> str:
        kinds = [' class="words"' if number < words else "" for number in range(len(row))]
        return "".join(
            f"<{tag}{kind}>{content(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True)
        )

    lines = [f"<tr>{cells('th', headings)}</tr>", *(f"<tr>{cells('td', row)}</tr>" for row in rows)]
    return '<div class="scroll"><table>\n' + "\n".join(lines) + "\n</table></div>"
