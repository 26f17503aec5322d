"""``python -m amaranth_vta.reference FOLDER`` writes the generated pages; used by ``make docs``."""

from __future__ import annotations

import sys
from pathlib import Path

from . import instructions, registers


def pages() -> dict[str, str]:
    """The pages as Markdown, by file name in docs/."""
    return {"registers.md": registers.page(), "isa.md": instructions.page()}


def main() -> None:
    (folder,) = sys.argv[1:]
    for name, text in pages().items():
        Path(folder, name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
