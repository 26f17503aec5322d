"""Pages and files that are made of the one definition of registers and instructions."""

from __future__ import annotations


def pages() -> dict[str, str]:
    """Pages of the documentation, by the name of their file."""
    from . import instructions, registers

    return {"registers.md": registers.page(), "isa.md": instructions.page()}
