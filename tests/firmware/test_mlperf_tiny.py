"""The firmware answers the runner of MLPerf Tiny exactly as `vta serve --mlperf-tiny` does.

The C is compiled for this processor, with a function of the input in place of the network.
"""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import amaranth_vta.firmware
from amaranth_vta import export
from amaranth_vta.firmware.build import _tensors
from amaranth_vta.firmware.task import TaskError, task_header
from amaranth_vta.networks import MLPERF_TINY, generate_tiny
from amaranth_vta.serving.mlperf_tiny.protocol import Responder
from amaranth_vta.serving.mlperf_tiny.tasks import TinyNetwork
from amaranth_vta.sw.runtime.network.tensor_type import TensorType
from tests.support.seeds import each_seed

SOURCE = Path(amaranth_vta.firmware.__file__).with_name("source")
RUNTIME = Path(export.__file__).parent
NETWORK = """
#include "vta_runtime.h"
vta_result network_init(const vta_port *port, const char **wrong);
vta_result network_run(const vta_port *port, const uint8_t *input, uint8_t *output);
"""
# Macros of the board below.
PROBLEMS = ("HAS_NO_DATA", "IS_WRONG")
BOARD = """
#include <stdio.h>
#include <stdlib.h>
#include "board.h"
#include "network.h"
#include "task.h"
static uint64_t time;
uint64_t cycles(void) { return time += 1000; }
int receive(uint64_t patience)
{
    const int byte = getchar();
    (void)patience;
    if (byte == EOF)
        exit(0);
    return byte;
}
void send(uint8_t byte) { putchar(byte); }
void send_text(const char *text) { fputs(text, stdout); }
const vta_port *machine_port(void) { return 0; }
int load_data(void) { return !HAS_NO_DATA; }
vta_result network_init(const vta_port *port, const char **wrong)
{
    (void)port;
    *wrong = "BATCH";
    return IS_WRONG ? VTA_WRONG_MACHINE : VTA_DONE;
}
vta_result network_run(const vta_port *port, const uint8_t *input, uint8_t *output)
{
    (void)port;
    for (uint32_t i = 0; i < TASK_OUTPUTS; i++)
        output[i] = (uint8_t)(3 * input[i % TASK_INPUTS] + i);
    return VTA_DONE;
}
"""


class FunctionBenchmark:
    """A `Benchmark` of the function above."""

    microseconds = 0

    def __init__(self, network: TinyNetwork) -> None:
        self.network = network
        self.results: list[float] = []

    def infer(self, sent: bytes, count: int) -> None:
        given = self.network.quantized(sent).view(np.uint8)
        places = np.arange(self.network.task.outputs)
        output = (3 * given[places % given.size].astype(np.int64) + places).astype(np.uint8)
        if count:
            self.results = self.network.results(output.view(self.network.output.dtype), sent)

    def stop(self) -> None:
        pass


def types_of(network: TinyNetwork) -> Any:
    """The part of a `NetworkProgram` that the headers depend on."""
    given, found = network.input, network.output
    return SimpleNamespace(
        inputs={"input": TensorType(given.dtype, given.shape)},
        outputs={"output": TensorType(found.dtype, found.shape)},
    )


def answers(network: TinyNetwork, folder: Path, sent: bytes, problem: str = "") -> str:
    files = {
        "addresses.h": "#define CLOCK_HZ 50000000u\n",
        "network.h": NETWORK,
        "network_tensors.h": _tensors(types_of(network)),
        "task.h": task_header(network, types_of(network)),
        "stub.c": BOARD,
        "vta.h": "#define VTA_REG_CYCLES 0\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    sources = [SOURCE / "mlperf_tiny.c", folder / "stub.c", folder / "quantize.c"]
    # The runtime drives a machine that does not exist here: only its function for floats is needed.
    runtime = (RUNTIME / "vta_runtime.c").read_text()
    first, last = runtime.index("/* The nearest integer"), runtime.index("static int integer(")
    (folder / "quantize.c").write_text(f'#include "vta_runtime.h"\n{runtime[first:last]}')
    program = folder / "mlperf_tiny"
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined,address"]
    flags += [f"-D{name}={int(name == problem)}" for name in PROBLEMS]
    included = [f"-I{folder}", f"-I{SOURCE}", f"-I{RUNTIME}"]
    subprocess.run(["gcc", *flags, *included, *sources, "-o", program], check=True)
    return subprocess.run([program], input=sent, capture_output=True, check=True).stdout.decode()


def wanted(network: TinyNetwork, commands: list[bytes]) -> str:
    responder = Responder(FunctionBenchmark(network))  # type: ignore[arg-type]
    lines = [line for command in commands for line in responder.answer(command)]
    return "".join(f"{line}\r\n" for line in ["m-init-done", "m-ready", *lines])


def untimed(text: str) -> str:
    return re.sub(r"m-lap-us-\d+", "m-lap-us-", text)


def inputs_of(network: TinyNetwork, chance: random.Random) -> bytes:
    """Random bytes; of floats, half are ties between two integers."""
    if network.task.sent != "float32":
        return chance.randbytes(network.input_bytes)
    values = np.random.default_rng(chance.getrandbits(32)).normal(0, 5, network.task.inputs)
    values[:320] = (np.round(values[:320]) + 0.5) * network.input.scale
    values[0] = chance.choice((1e6, -0.0, np.inf, np.nan))
    return np.asarray(values, "<f4").tobytes()


def loads(data: bytes) -> list[bytes]:
    parts = [data[at : at + 31].hex().encode() for at in range(0, len(data), 31)]
    return [b"db load %d" % len(data), *(b"db " + part for part in parts)]


@pytest.mark.parametrize("name", MLPERF_TINY)
def test_results_are_those_of_the_server(name: str, tmp_path: Path) -> None:
    network = TinyNetwork.of(generate_tiny(name), name)
    chance = random.Random(name)
    commands = [b"name", b"profile", b"help", b"timestamp", b"results"]
    for inferences in (b"infer 3 2", b"infer"):
        commands += [*loads(inputs_of(network, chance)), b"db print", inferences, b"results"]
    # A new input leaves the results of the last inference in place.
    commands += [*loads(inputs_of(network, chance)), b"results", b"infer 1 0"]
    found = answers(network, tmp_path, b"%".join([*commands, b""]))
    assert untimed(found) == untimed(wanted(network, commands))


WORDS = (
    b"name db load print infer results 0 1 00 7 490 -1 1000001 99999999999 aB xyz 0g 123".split()
)


@each_seed(range(3))
def test_strange_commands_are_refused_with_the_same_words(seed: int, tmp_path: Path) -> None:
    network = TinyNetwork.of(generate_tiny("mlperf-keywords"), "keywords")
    chance = random.Random(seed)
    commands = [b"", b"  ", b"x" * 80, b"x" * 81, b"infer", b"db 00", b"db 0", b"unknown\x01\x7f"]
    for _ in range(300):
        words = chance.choices(WORDS, k=chance.randint(1, 5))
        commands.append(chance.choice((b" ", b"\r\n", b"  \t")).join(words))
        if chance.random() < 0.1:
            commands += loads(inputs_of(network, chance))
    found = answers(network, tmp_path, b"%".join([*commands, b""]))
    # The firmware has room for the network's input only.
    expected = wanted(network, commands).replace("from 1 to 27648", "from 1 to 490")
    assert untimed(found) == untimed(expected)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("HAS_NO_DATA", "e-[the data of the network are not in the board's memory]"),
        ("IS_WRONG", "e-[the machine differs in BATCH]"),
    ],
)
def test_a_board_without_its_network_says_so(problem: str, message: str, tmp_path: Path) -> None:
    network = TinyNetwork.of(generate_tiny("mlperf-streaming"), "streaming")
    commands = [*loads(bytes(1200)), b"infer", b""]
    lines = answers(network, tmp_path, b"%".join(commands), problem).splitlines()
    assert lines[:3] == [message, "m-init-done", "m-ready"]
    assert lines[-2:] == [
        "e-[The network is not ready: see the message after the start]",
        "m-ready",
    ]


def test_the_task_has_to_be_that_of_the_network() -> None:
    keywords, images = (
        TinyNetwork.of(generate_tiny(name), name) for name in ("mlperf-keywords", "mlperf-resnet")
    )
    with pytest.raises(TaskError, match=r"its inputs are int8\[1, 49, 10, 1\], and image is int8"):
        task_header(images, types_of(keywords))
