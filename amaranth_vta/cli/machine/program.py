"""``vta program``: load a bitstream into a board."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import click

from .build import find_board


@click.command()
@click.argument("board")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
def program(board: str, file: str) -> None:
    """Load the bitstream FILE into BOARD, until power-off.

    openFPGALoader loads it. A FILE whose manifest.json names another board is refused.
    """
    from amaranth_vta.fpga.tools import LOADER, path_of

    chosen = find_board(board)
    if chosen.vendor:
        raise click.ClickException(
            f"{chosen.title} is programmed by {chosen.vendor}, or on its own Linux"
        )
    manifest = Path(file).with_name("manifest.json")
    if manifest.exists():
        made_for = json.loads(manifest.read_text(encoding="utf-8")).get("board")
        if made_for != chosen.name:
            raise click.ClickException(f"{file} was built for {made_for} and not for {board}")
    done = subprocess.run([path_of(LOADER), "--board", chosen.loader, file], check=False)
    if done.returncode:
        raise click.ClickException(
            f"openFPGALoader cannot program {chosen.title} (exit code {done.returncode}): is it "
            f"connected, do you have access to its USB device, and is libftdi installed (Debian: "
            f"libftdi1-2)?"
        )
