"""The pages of the documentation that are generated: `pages`."""

from __future__ import annotations

from . import instructions, registers


def pages() -> dict[str, str]:
    """Markdown, by the name of its file in docs/."""
    return {"registers.md": registers.page(), "isa.md": instructions.page()}
