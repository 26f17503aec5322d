"""The generated pages of the documentation: `pages`."""

from __future__ import annotations

from . import instructions, registers


def pages() -> dict[str, str]:
    """The pages as Markdown, by file name in docs/."""
    return {"registers.md": registers.page(), "isa.md": instructions.page()}
