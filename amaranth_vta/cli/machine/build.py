"""``vta build``: build a bitstream for a board."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from amaranth_vta.cli.common.options import json_option
from amaranth_vta.cli.common.outputs import Outputs
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.progress import building

if TYPE_CHECKING:
    from amaranth_vta.firmware.build import Firmware
    from amaranth_vta.hw.boards.boards import Board
    from amaranth_vta.hw.boards.zynq import ZynqBoard


@click.command()
@click.argument("board")
@click.option(
    "--config",
    metavar="NAME|FILE",
    help="The machine: a preset, or a file in the form of vta_config.json.  [default: the board's "
    "preset]",
)
@click.option(
    "--network",
    "network_path",
    type=click.Path(),
    metavar="FILE",
    help="Add a processor that runs the network FILE of `vta compile` for each input from the "
    "serial line, on the machine that it was compiled for.",
)
@click.option(
    "--mlperf-tiny",
    "task_path",
    type=click.Path(exists=True, dir_okay=False),
    metavar="MODEL.tflite",
    help="With --network: answer the runner of MLPerf Tiny on the serial line. MODEL.tflite is the "
    "file that FILE was compiled from; the scales of its input and output are used.",
)
@click.option(
    "--clock",
    "clock_mhz",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MHZ",
    help="The clock of the machine.  [default: the board's]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="DIR",
    help="The folder to write; it appears when the build is complete.  [default: "
    "build/BOARD-CONFIG, or build/BOARD-NETWORK]",
)
@json_option
def build(
    board: str,
    config: str | None,
    network_path: str | None,
    task_path: str | None,
    clock_mhz: float | None,
    output: str | None,
    json_path: str | None,
) -> None:
    """Build the bitstream of BOARD, which `vta program` takes.

    BOARD is ulx3s, ulx3s-sdram, ecpix5, colorlight-i5, tang-primer-20k or icebreaker. DIR gets the
    bitstream, manifest.json with what it was made of, its floor plan, and the log of place and
    route; and network.bin for the flash memory if --network is too large for block RAM. A build
    takes some minutes; all tools come from PyPI.

    For pynq-z1, pynq-z2 and de10-nano the project of the vendor's tool is written, and not built;
    and for pynq-z1-ps, pynq-z2-ps, ultra96 and zcu104 one with the machine beside the processor of
    the chip, in whose memory it works.
    """
    chosen = find_board(board)
    if clock_mhz is not None:
        chosen = replace(chosen, clock_hz=round(clock_mhz * 1e6))
    made = None
    if network_path is None:
        if task_path is not None:
            raise click.UsageError("--mlperf-tiny is an option of --network")
        name = config or chosen.config
        loaded = Config.load(name)
    else:
        if config is not None:
            raise click.UsageError("leave --config out: --network FILE has its own")
        name = network_path
        loaded, made = _firmware(chosen, network_path, task_path)
    if output is None:
        output = f"build/{board}-{Path(name).name.removesuffix('.json').removesuffix('.vta')}"
    from amaranth_vta.fpga.build import build as build_bitstream

    with Outputs() as outputs:
        outputs.reserve("--json", json_path)
        outputs.reserve_folder("-o", output, "manifest.json")
        with building(f"the bitstream of {chosen.title}", None) as told:
            built = build_bitstream(chosen, loaded, name, told, made)
        summary = built.summary
        if summary["bitstream"] is not None:
            summary["bitstream"] = f"{output}/{summary['bitstream']}"
        outputs.save_folder("-o", built.files)
        outputs.save_json("--json", summary)
        if chosen.vendor:
            outputs.say(
                f"{output}: a project for {chosen.vendor}, not built here; `sh build_vta.sh` in "
                "it builds the bitstream"
            )
            return
        outputs.say(
            f"{summary['bitstream']}: {summary['luts']:,} LUTs, {summary['ffs']:,} flip-flops, "
            f"{summary['dsps']} multipliers and {summary['brams']} block RAMs of the "
            f"{chosen.chip}; {summary['fmax_mhz']} MHz for a clock of {summary['clock_mhz']:g} "
            f"MHz; built in {summary['seconds']:.0f} s"
        )


def _firmware(
    board: Board | ZynqBoard, path: str, task_path: str | None
) -> tuple[Config, Firmware]:
    """The configuration of the network at ``path``, and its firmware for ``board``; for MLPerf Tiny
    with the TensorFlow Lite file at ``task_path``.
    """
    from amaranth_vta.extras import explain_missing_extras
    from amaranth_vta.firmware.build import FirmwareError, standalone_firmware
    from amaranth_vta.hw.boards.zynq import ZynqBoard
    from amaranth_vta.sw.runtime.network.network_file import load_network

    if isinstance(board, ZynqBoard) or board.vendor:
        raise FirmwareError(
            f"{board.title} is built by {board.vendor}; --network is for boards that are built here"
        )
    with explain_missing_extras():
        network, task = load_network(path), None
        if task_path is not None:
            from amaranth_vta.serving.mlperf_tiny.tasks import TinyNetwork

            task = TinyNetwork.of(Path(task_path).read_bytes(), task_path)
        return network.config, standalone_firmware(network, board, task)


def find_board(name: str) -> Board | ZynqBoard:
    from amaranth_vta.hw.boards.boards import BOARDS
    from amaranth_vta.hw.boards.zynq import ZYNQ_BOARDS

    boards: dict[str, Board | ZynqBoard] = {**BOARDS, **ZYNQ_BOARDS}
    if name not in boards:
        raise click.ClickException(
            f"{name!r} is not a board; the boards are {', '.join(sorted(boards))}"
        )
    return boards[name]
