"""Entry point of ``python -m amaranth_vta``, which runs the command ``vta``."""

from __future__ import annotations

from amaranth_vta.cli import main

if __name__ == "__main__":
    main()
