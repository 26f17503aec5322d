"""The text protocol of MLPerf Tiny: answers to the commands of its runner."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

from amaranth_vta.errors import VtaError

from .benchmark import Benchmark
from .tasks import MAX_INPUT_BYTES

TERMINATOR = ord("%")
# Length limit of a command, without its terminator.
MAX_COMMAND = 80
# The protocol's name and version, which runners look for.
PROTOCOL = "ULPMark for tinyML Firmware V0.0.1"
MAX_INFERENCES = 1_000_000
WARMUPS = 10
BYTES_PER_LINE = 8
# A runner gives up on a device that is silent for 5 s.
_SILENT_SECONDS = 2.0
HELP = f"""\
{PROTOCOL}
name: the device
profile: the protocol and the task
timestamp: the time in microseconds
db load N: begin an input of N bytes
db HEX: append bytes to the input, two digits each
db print: the input
infer [N=1 [W={WARMUPS}]]: run W inferences to warm up, then N timed ones
results: the results of the last inference
help: this list"""


class RunnerCommandError(ValueError):
    """A command that cannot be executed."""


class Responder:
    """Answers commands with a ``benchmark``."""

    def __init__(self, benchmark: Benchmark) -> None:
        self._benchmark = benchmark
        self._input, self._size = bytearray(), 0
        self._thread = ThreadPoolExecutor(1)

    def answer(self, command: bytes) -> Iterator[str]:
        """The lines that answer ``command``, given without its terminator, as they come up: one
        that begins with ``e-`` for an error, last ``m-ready``. While inferences take long, empty
        lines keep the runner waiting.
        """
        try:
            if len(command) > MAX_COMMAND:
                raise RunnerCommandError(f"A command is longer than {MAX_COMMAND} characters")
            yield from self._lines(command.decode("ascii", "replace").split())
        except (RunnerCommandError, VtaError) as error:
            text = " ".join(str(error).split())
            yield f"e-[{''.join(char if char.isprintable() else '?' for char in text)}]"
        yield "m-ready"

    def _lines(self, words: list[str]) -> Iterator[str]:
        match words:
            case []:
                pass
            case ["name", *_]:
                yield "m-name-dut-[amaranth-vta]"
            case ["profile", *_]:
                yield f"m-profile-[{PROTOCOL}]"
                yield f"m-model-[{self._benchmark.network.task.name}]"
            case ["help", *_]:
                yield from HELP.splitlines()
            case ["timestamp", *_]:
                yield self._lap()
            case ["db", *rest]:
                yield from self._input_lines(rest)
            case ["infer", *counts]:
                yield from self._infer(counts)
            case ["results", *_]:
                yield self._results()
            case [unknown, *_]:
                raise RunnerCommandError(f"Unknown command: {unknown}")

    def _input_lines(self, words: list[str]) -> Iterator[str]:
        match words:
            case ["load", size, *_]:
                self._size = _number(size, 1, MAX_INPUT_BYTES, "number of bytes")
                self._input.clear()
                yield f"m-[Expecting {self._size} bytes]"
            case ["print", *_]:
                for start in range(0, len(self._input), BYTES_PER_LINE):
                    yield f"m-buffer-{self._input[start : start + BYTES_PER_LINE].hex('-')}"
            case [] | ["load"]:
                raise RunnerCommandError("db needs a subcommand, and db load a number of bytes")
            case [digits, *_]:
                self._append(digits)
                if len(self._input) == self._size:
                    yield "m-load-done"

    def _append(self, digits: str) -> None:
        """Append bytes to the input. The protocol ignores those beyond its size in the command that
        completes it.
        """
        try:
            added = bytes.fromhex(digits)
        except ValueError:
            raise RunnerCommandError(f"Not pairs of hex digits: {digits}") from None
        if len(self._input) == self._size:
            raise RunnerCommandError("The input has all its bytes; db load begins another one")
        self._input += added[: self._size - len(self._input)]

    def _infer(self, words: list[str]) -> Iterator[str]:
        count = _number(words[0], 1, MAX_INFERENCES, "number of inferences") if words else 1
        warmups = WARMUPS
        if len(words) > 1:
            warmups = _number(words[1], 0, MAX_INFERENCES, "number of warm-ups")
        task, needed = self._benchmark.network.task, self._benchmark.network.input_bytes
        if len(self._input) != needed:
            raise RunnerCommandError(
                f"{task.name} needs {needed} bytes; {len(self._input)} are loaded"
            )
        yield f"m-warmup-start-{warmups}"
        yield from self._run(warmups)
        yield "m-warmup-done"
        yield f"m-infer-start-{count}"
        yield self._lap()
        yield from self._run(count)
        yield self._lap()
        yield "m-infer-done"
        yield self._results()

    def _run(self, count: int) -> Iterator[str]:
        """Run inferences. In virtual time, take at least as long as the machine would: runners also
        measure real time.
        """
        benchmark, started = self._benchmark, time.monotonic()
        begin = benchmark.microseconds
        work = self._thread.submit(benchmark.infer, bytes(self._input), count)
        try:
            while not wait((work,), _SILENT_SECONDS).done:
                yield ""
        finally:
            benchmark.stop()
        work.result()
        ends = started + (benchmark.microseconds - begin) / 1e6
        while (rest := ends - time.monotonic()) > 0:
            time.sleep(min(rest, _SILENT_SECONDS))
            yield ""

    def _lap(self) -> str:
        return f"m-lap-us-{self._benchmark.microseconds}"

    def _results(self) -> str:
        if not self._benchmark.results:
            raise RunnerCommandError("There are no results before the first inference")
        return f"m-results-[{','.join(f'{value:.3f}' for value in self._benchmark.results)}]"


def _number(text: str, least: int, most: int, what: str) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise RunnerCommandError(f"The {what} is from {least} to {most}, not {text}")
    return int(text)
