"""Rebuilds the bitstreams in the folder bitstreams/: ``make bitstreams``.

    python benchmarks/bitstreams.py [--check] [BOARD ...]

Each board has a folder with the bitstream of the preset that is made for it, a manifest of its
sources, tools and results, and the log of place and route. A bitstream of more than a megabyte is
not kept: all together stay small, and its checksum is in the manifest. With ``--check`` nothing is
written: ends with 1 if a bitstream differs from its manifest. Needs the extra ``fpga``; takes
minutes for each board.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import pages

from amaranth_vta.fpga.build import build
from amaranth_vta.fpga.usage import FitError
from amaranth_vta.hw.boards.boards import BOARDS, Board
from amaranth_vta.hw.config import Config

FOLDER, PAGE = pages.REPOSITORY / "bitstreams", "bitstreams/README.md"
_MOST_BYTES = 1_000_000
TABLE = "<!-- made by `make bitstreams` -->\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("boards", nargs="*", metavar="BOARD", help="those alone")
    arguments = parser.parse_args()
    differs = False
    for board in map(BOARDS.__getitem__, arguments.boards or BOARDS):
        if board.vendor:
            continue
        try:
            made = build(board, Config.load(board.config), board.config, _teller(board))
        except FitError as error:
            print(f"{board.name}: {error}")
            continue
        folder = FOLDER / board.name
        if arguments.check:
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            same = made.summary["sha256"] == manifest["sha256"]
            tools = json.loads(made.files["manifest.json"])["tools"]
            print(f"{board.name}: {'the same' if same else 'DIFFERENT'}, by {', '.join(tools)}")
            differs |= not same
            continue
        folder.mkdir(exist_ok=True)
        for name, contents in made.files.items():
            if len(contents) <= _MOST_BYTES:
                (folder / name).write_bytes(contents)
        write_table()
    return int(differs)


def _teller(board: Board) -> Callable[[str], None]:
    return lambda step: print(f"{board.name}: {step}", file=sys.stderr)


def write_table() -> None:
    """Write the manifests as a table into the page."""
    lines = [
        "| board | configuration | LUTs | flip-flops | multipliers | block RAMs | MHz reached | "
        "MHz of its clock | memory | longest path |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for path in sorted(FOLDER.glob("*/manifest.json")):
        item = json.loads(path.read_text(encoding="utf-8"))
        board = BOARDS[item["board"]]
        folder, kinds = path.parent.name, ("luts", "ffs", "dsps", "brams")
        used = " | ".join(f"{item[kind]:,} of {board.capacity[kind]:,}" for kind in kinds)
        lines.append(
            f"| [{board.title}]({folder}/manifest.json), {board.chip} "
            f"| `{item['config']}` | {used} | {item['fmax_mhz']} | {item['clock_mhz']:g} "
            f"| {item['memory_bytes'] // 1024:,} KiB | {_path(item.get('critical_path'), folder)} |"
        )
    pages.replace(TABLE, lines, PAGE)


def _path(path: dict[str, Any] | None, folder: str) -> str:
    """A cell of the table: where the longest path is, how long, and the floor plan."""
    if path is None:
        return ""
    begin, end = (_module(path[side]) for side in ("from", "to"))
    where = f"`{begin}`" if begin == end else f"`{begin}` to `{end}`"
    times = f"{path['logic_ns']} ns in logic, {path['routing_ns']} in routing"
    return f"[{where}]({folder}/floorplan.svg), {times}"


def _module(cell: str) -> str:
    """The module that contains a cell, without the path of its outer modules."""
    return cell.rpartition(".")[0].removeprefix("system.machine.core.machine.")


if __name__ == "__main__":
    sys.exit(main())
