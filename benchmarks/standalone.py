"""Cycles of networks on a simulated board without a PC, from reset to the answer.

    python benchmarks/standalone.py [FILE.tflite ...] [--board ulx3s-sdram] [--config NAME]

Runs one random input through each TensorFlow Lite file, by default through the generated networks
of MLPerf Tiny, on the complete board in Verilator: processor, firmware, flash memory, machine,
SDRAM and serial line. Compares the outputs with LiteRT's reference kernels; the exit code is 1 if
an element differs.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tables import head, row

from amaranth_vta.firmware.build import Firmware, standalone_firmware
from amaranth_vta.firmware.client import Classification, Classifier
from amaranth_vta.hw.boards.boards import BOARDS
from amaranth_vta.networks import MLPERF_TINY, generate_tiny
from amaranth_vta.networks.tflite_network import reference
from amaranth_vta.session.compilation import compile as compile_network
from amaranth_vta.sim.board_model.simulated import SimulatedBoard
from amaranth_vta.sw.board_drivers.transport import open_line

# Longest silence of the simulated line.
TIMEOUT = 3600


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--board", default="ulx3s-sdram", choices=BOARDS)
    parser.add_argument("--config", metavar="NAME", help="default: the board's preset")
    chosen = parser.parse_args()
    models = {file.stem: file.read_bytes() for file in chosen.files} or {
        name: generate_tiny(name) for name in MLPERF_TINY
    }
    board = BOARDS[chosen.board]
    config = chosen.config or board.config
    columns = ("data in flash", "reset to ready", "cycles per input", "machine", "processor", "ms")
    print(*head("network", *columns), sep="\n", flush=True)
    different = []
    for name, model in models.items():
        network = compile_network(model, config).program
        made = standalone_firmware(network, board)
        ((given, info),) = network.inputs.items()
        values = np.random.default_rng(1).integers(-128, 128, info.shape).astype(info.dtype)
        simulated = SimulatedBoard(network.config, None, board.name, made.image, made.data)
        with closing(simulated):
            ready, answer = _answer(simulated, made, {given: values})
        wanted = reference(model, values)
        found = answer.outputs.values()
        if not all(np.array_equal(*pair) for pair in zip(found, wanted, strict=True)):
            different.append(name)
        numbers = (ready, answer.cycles, answer.machine_cycles)
        processor = answer.cycles - answer.machine_cycles
        cells = [f"{number:,}" for number in (len(made.data), *numbers, processor)]
        print(row(name, *cells, f"{answer.cycles / board.clock_hz * 1e3:.1f}"), flush=True)
    print("", f"{len(models) - len(different)} of {len(models)} are equal to LiteRT", sep="\n")
    return bool(different)


def _answer(
    board: SimulatedBoard, made: Firmware, inputs: dict[str, np.ndarray]
) -> tuple[int, Classification]:
    """Cycles from reset to the line that says ready, in thousands, and the answer to ``inputs``."""
    with closing(open_line(board.port)) as line:
        line.timeout = TIMEOUT
        classifier = Classifier(line, made)
        classifier.wait_until_ready()
        ready = round(board.cycle, -3)
        return ready, classifier.run(inputs)


if __name__ == "__main__":
    sys.exit(main())
