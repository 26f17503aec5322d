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
@click.option(
    "--flash",
    is_flag=True,
    help="Write FILE to the flash memory, from which BOARD configures itself at power-up.",
)
def program(board: str, file: str, flash: bool) -> None:
    """Load the bitstream FILE into BOARD, until power-off.

    openFPGALoader loads it. A FILE whose manifest.json names another board is refused. If
    manifest.json names a network, that is written to the flash memory first.
    """
    from amaranth_vta.fpga.tools import LOADER, path_of

    chosen = find_board(board)
    if chosen.vendor:
        raise click.ClickException(
            f"{chosen.title} is programmed by {chosen.vendor}, or on its own Linux"
        )
    manifest = Path(file).with_name("manifest.json")
    steps = [["--write-flash", file] if flash else [file]]
    if manifest.exists():
        made = json.loads(manifest.read_text(encoding="utf-8"))
        if made.get("board") != chosen.name:
            raise click.ClickException(
                f"{file} was built for {made.get('board')} and not for {board}"
            )
        if "network" in made:
            network = str(manifest.with_name(made["network"]))
            steps.insert(0, ["--write-flash", "--offset", f"{made['flash_offset']:#x}", network])
    for step in steps:
        command = [path_of(LOADER), "--board", chosen.loader, *step]
        done = subprocess.run(command, check=False)
        if done.returncode:
            raise click.ClickException(
                f"openFPGALoader cannot program {chosen.title} (exit code {done.returncode}): is "
                f"it connected, do you have access to its USB device, and is libftdi installed "
                f"(Debian: libftdi1-2)?"
            )
