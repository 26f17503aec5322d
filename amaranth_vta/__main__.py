"""``python -m amaranth_vta`` is the command ``vta``."""

from __future__ import annotations

from amaranth_vta.cli import main

if __name__ == "__main__":
    main()
