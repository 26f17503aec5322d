"""Builds the bitstreams of the folder bitstreams/ anew: ``make bitstreams``.

    python benchmarks/bitstreams.py [--check] [BOARD ...]

Each board's folder holds the bitstream, and a manifest with its configuration, tools, sources and
checksum. With ``--check`` nothing is written: ends with 1 if a bitstream comes out otherwise than
its manifest says. Needs the extra ``fpga``; takes minutes for each board.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from amaranth_vta.fpga.build import build
from amaranth_vta.hw.boards.boards import BOARDS
from amaranth_vta.hw.config import Config

FOLDER = Path(__file__).parent.parent / "bitstreams"
PAGE = FOLDER / "README.md"
TABLE, END = "<!-- made by `make bitstreams` -->\n", "<!-- end -->\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("boards", nargs="*", metavar="BOARD", help="those alone")
    arguments = parser.parse_args()
    differs = False
    for path in sorted(FOLDER.glob("*/manifest.json")):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if arguments.boards and manifest["board"] not in arguments.boards:
            continue
        made = build(
            BOARDS[manifest["board"]],
            Config.load(manifest["config"]),
            manifest["config"],
            lambda step, name=path.parent.name: print(f"{name}: {step}", file=sys.stderr),
        )
        if arguments.check:
            same = made.summary["sha256"] == manifest["sha256"]
            print(f"{path.parent.name}: {'the same' if same else 'DIFFERENT'}")
            differs |= not same
        else:
            for name, contents in made.files.items():
                (path.parent / name).write_bytes(contents)
    if not arguments.check:
        write_table()
    return int(differs)


def write_table() -> None:
    """The manifests as a table of the page."""
    lines = [
        "| board | configuration | LUTs | flip-flops | multipliers | block RAMs | MHz reached | "
        "MHz of its clock | memory |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for path in sorted(FOLDER.glob("*/manifest.json")):
        item = json.loads(path.read_text(encoding="utf-8"))
        board = BOARDS[item["board"]]
        used = [
            f"{item[kind]:,} of {board.capacity[kind]:,}"
            for kind in ("luts", "ffs", "dsps", "brams")
        ]
        lines.append(
            f"| [{board.title}]({path.parent.name}/manifest.json), {board.chip} "
            f"| `{item['config']}` | {' | '.join(used)} | {item['fmax_mhz']} "
            f"| {item['clock_mhz']:g} | {item['memory_bytes'] // 1024} KiB |"
        )
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(TABLE)
    _, _, tail = rest.partition(END)
    table = "\n".join(lines) + "\n"
    PAGE.write_text(f"{head}{TABLE}{table}{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
