"""The runner of MLPerf Tiny gets the results of the reference kernels and the machine's throughput,
and an error for every command that it cannot mean.

`Runner` is a client written from the published protocol (mlcommons/tiny, benchmark/api and
benchmark/runner).
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from amaranth_vta import cli
from amaranth_vta.networks.mlperf_tiny import tiny_model
from amaranth_vta.networks.tflite_file import TfliteFile, TfliteTensor
from amaranth_vta.serving.mlperf_tiny.benchmark import Benchmark
from amaranth_vta.serving.mlperf_tiny.protocol import Responder
from amaranth_vta.serving.mlperf_tiny.serial_line import SerialLine
from amaranth_vta.serving.mlperf_tiny.tasks import TinyNetwork
from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.load.tflite import ReferenceModel
from amaranth_vta.sw.runtime.network.model_error import ModelError

MHZ = 50.0


class Runner:
    """A client at the serial port ``path``; it gives up after a minute of silence."""

    def __init__(self, path: str) -> None:
        self._line = os.open(path, os.O_RDWR | os.O_NOCTTY)
        self._unread = b""

    def close(self) -> None:
        os.close(self._line)

    def send(self, text: bytes) -> None:
        os.write(self._line, text)

    def lines(self) -> list[str]:
        """The lines up to ``m-ready``, without it and without empty ones."""
        found: list[str] = []
        while True:
            while b"\n" not in self._unread:
                assert select.select([self._line], [], [], 60)[0], f"silent after {found}"
                self._unread += os.read(self._line, 1000)
            line, _, self._unread = self._unread.partition(b"\n")
            text = line.strip(b"\r\0").decode("ascii")
            if "m-ready" in text:
                return found
            if text:
                found.append(text)

    def command(self, text: str) -> list[str]:
        self.send(text.encode())
        self.send(b"%")
        return self.lines()

    def load(self, data: bytes) -> None:
        assert self.command(f"db load {len(data)}") == [f"m-[Expecting {len(data)} bytes]"]
        for start in range(0, len(data), 31):
            answered = self.command(f"db {data[start : start + 31].hex()}")
            assert answered == (["m-load-done"] if start + 31 >= len(data) else [])

    def infer(self, count: int, warmups: int) -> tuple[list[float], int]:
        """The results, and the microseconds from the first timestamp to the second."""
        lines = self.command(f"infer {count} {warmups}")
        laps = [int(line.removeprefix("m-lap-us-")) for line in lines if "m-lap-us-" in line]
        found = re.fullmatch(r"m-results-\[([^]]+)\]", lines[-1])
        assert found, lines
        assert [line for line in lines if "lap" not in line and "results" not in line] == [
            f"m-warmup-start-{warmups}",
            "m-warmup-done",
            f"m-infer-start-{count}",
            "m-infer-done",
        ]
        start, end = laps
        return [float(value) for value in found[1].split(",")], end - start


class Served:
    """A device under test in a thread of this process."""

    def __init__(self, data: bytes, device: str = "functional", mhz: float | None = MHZ) -> None:
        network = TinyNetwork.of(data, "network")
        self._session = Session(data, device=device)
        self._ends = threading.Event()
        self._line = SerialLine()
        responder = Responder(Benchmark(network, self._session, mhz))
        self._thread = threading.Thread(
            target=self._line.serve, args=(responder, self._ends.is_set)
        )
        self._thread.start()
        self.runner = Runner(self._line.path)

    @property
    def path(self) -> str:
        return self._line.path

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self.runner.close()
        self._line.close()
        self._session.close()


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    running: list[Served] = []

    def start(*arguments: Any, **keywords: Any) -> Served:
        running.append(Served(*arguments, **keywords))
        return running[-1]

    yield start
    for served in running:
        served.close()


def small(
    given: tuple[int, ...], count: int, dtype: str = "int8", scale: float | None = 0.05
) -> bytes:
    """A network whose outputs are the first elements of its input."""
    file = TfliteFile()
    _first(file, file.input(given, scale, 3, dtype), count)
    return file.bytes()


def adding() -> bytes:
    """A network whose outputs are the first elements of the sum of all earlier inputs."""
    file, given = TfliteFile(), (1, 30, 1, 40)

    def variable() -> TfliteTensor:
        handle = file.tensor((), dtype="resource")
        file.operator("VAR_HANDLE", [], [handle], container="", shared_name="sum")
        return handle

    x = file.input(given, 0.5, 0)
    with file.subgraph("clear") as clear:
        zeros = file.constant(np.zeros(given, np.int8), 0.5, 0)
        file.operator("ASSIGN_VARIABLE", [variable(), zeros], [])
    file.operator("CALL_ONCE", [], [], init_subgraph_index=clear)
    before, after = (file.tensor(given, 0.5, 0) for _ in range(2))
    handle = variable()
    file.operator("READ_VARIABLE", [handle], [before])
    file.operator("ADD", [before, x], [after])
    file.operator("ASSIGN_VARIABLE", [handle, after], [])
    _first(file, before, 3)
    return file.bytes()


def _first(file: TfliteFile, x: TfliteTensor, count: int) -> None:
    """Makes the first ``count`` elements of ``x`` the output."""
    kind = (x.scale, x.zero_point, x.dtype)
    flat = file.tensor((1, int(np.prod(x.shape))), *kind)
    file.operator("RESHAPE", [x, file.constant(np.array(flat.shape, np.int32))], [flat])
    y = file.tensor((1, count), *kind)
    ends = [file.constant(np.array(values, np.int32)) for values in ([0, 0], [1, count], [1, 1])]
    file.operator("STRIDED_SLICE", [flat, *ends], [y])
    file.output(y)


KEYWORDS = small((1, 49, 10, 1), 12)


def rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.3f}") for value in values]


@pytest.mark.parametrize(
    ("name", "task"),
    [
        *(("mlperf-keywords", "kws01"), ("mlperf-resnet", "ic01"), ("mlperf-wake-words", "vww01")),
        ("mlperf-streaming", "sww01"),
    ],
)
def test_classes_have_the_probabilities_of_the_reference_kernels(
    serve: Serve, name: str, task: str
) -> None:
    data = tiny_model(name, "")
    network, kernels = TinyNetwork.of(data, name), ReferenceModel(data)
    runner = serve(data).runner
    assert f"m-model-[{task}]" in runner.command("profile")
    rng = np.random.default_rng(0)
    for _ in range(3):
        sent = rng.integers(0, 256, network.input_bytes, np.uint8)
        runner.load(sent.tobytes())
        # Images are pixels from 0 to 255, and -128 to 127 for the network; features are int8.
        values = sent.view(np.int8) if task in ("kws01", "sww01") else sent.astype(int) - 128
        (wanted,) = kernels([values.astype(np.int8).reshape(network.input.shape)])
        found, _ = runner.infer(1, 0)
        assert found == rounded((wanted[0].astype(np.float32) + 128) / 256)
        assert runner.command("results")[0].startswith("m-results-[")


def test_anomalies_are_mean_squares_of_floats(serve: Serve) -> None:
    data = tiny_model("mlperf-anomaly", "")
    network, kernels = TinyNetwork.of(data, "anomaly"), ReferenceModel(data)
    runner = serve(data).runner
    assert "m-model-[ad01]" in runner.command("profile")
    rng = np.random.default_rng(0)
    for spread in (0.5, 1, 10):
        sent = rng.normal(0, spread, 640).astype("<f4")
        runner.load(sent.tobytes())
        scale, zero_point = network.input.scale, network.input.zero_point
        values = np.clip(np.round(sent / scale) + zero_point, -128, 127).astype(np.int8)
        (wanted,) = kernels([values.reshape(1, 640)])
        real = (wanted[0].astype(int) - network.output.zero_point) * float(network.output.scale)
        (found,), _ = runner.infer(1, 0)
        assert found == pytest.approx(np.mean((real - sent) ** 2), abs=1e-3, rel=1e-5)


def test_floats_that_no_int8_holds_are_saturated() -> None:
    network = TinyNetwork.of(small((1, 640), 640), "anomaly")
    sent = np.zeros(640, "<f4")
    sent[:8] = np.nan, np.inf, -np.inf, 1e30, 0.025, -0.025, 0.0249, 0.076
    assert network.quantized(sent.tobytes())[:8].tolist() == [3, 127, -128, 127, 4, 2, 3, 5]


@pytest.mark.parametrize(
    ("given", "count", "dtype", "byte", "wanted"),
    [
        ((1, 32, 32, 3), 10, "int8", 200, 72),
        ((1, 32, 32, 3), 10, "uint8", 200, 200),
        ((1, 49, 10, 1), 12, "int8", 200, -56),
        ((1, 49, 10, 1), 12, "uint8", 200, 72),
    ],
)
def test_pixels_are_uint8_and_features_int8(
    given: tuple[int, ...], count: int, dtype: str, byte: int, wanted: int
) -> None:
    network = TinyNetwork.of(small(given, count, dtype), "network")
    values = network.quantized(bytes([byte]) * network.input_bytes)
    assert set(values.tolist()) == {wanted}
    assert values.dtype == dtype


def test_the_throughput_is_that_of_the_machine(serve: Serve) -> None:
    """As the runner computes it, from the timestamps of five windows."""
    data = tiny_model("mlperf-keywords", "")
    with Session(data, device="estimate") as session:
        (name,) = session.inputs
        session.run({name: np.zeros((1, 49, 10, 1), np.int8)})
        cycles = session.cycles
    assert cycles
    runner = serve(data, "estimate").runner
    throughputs = []
    for window in range(5):
        runner.load(bytes([window]) * 490)
        begin = time.monotonic()
        _, microseconds = runner.infer(300, 10)
        # The runner also measures real time.
        assert time.monotonic() - begin >= microseconds / 1e6 * 310 / 300 * 0.99
        throughputs.append(300 / (microseconds / 1e6))
    assert median(throughputs) == pytest.approx(MHZ * 1e6 / cycles, rel=1e-4)


def test_time_is_real_without_a_clock(serve: Serve) -> None:
    runner = serve(KEYWORDS, mhz=None).runner
    runner.load(bytes(490))
    begin = time.monotonic()
    _, microseconds = runner.infer(100, 0)
    assert 0 < microseconds <= (time.monotonic() - begin) * 1e6


def test_a_model_without_cycles_takes_no_time(serve: Serve) -> None:
    runner = serve(KEYWORDS).runner
    runner.load(bytes(490))
    assert runner.infer(1_000_000, 10)[1] == 0


def test_networks_with_variables_run_each_inference(serve: Serve) -> None:
    runner = serve(adding()).runner
    runner.load(bytes([1]) * 1200)
    assert runner.infer(3, 2)[0] == [2.0] * 3
    assert runner.infer(1, 0)[0] == [2.5] * 3


def test_a_runner_waits_for_slow_inferences(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amaranth_vta.serving.mlperf_tiny.protocol._SILENT_SECONDS", 0.02)
    served = serve(KEYWORDS)
    run = Session.run

    def slow(session: Session, inputs: Any) -> Any:
        time.sleep(0.2)
        return run(session, inputs)

    monkeypatch.setattr(Session, "run", slow)
    served.runner.load(bytes(490))
    served.runner.send(b"infer 1 0%")
    time.sleep(0.15)
    received = os.read(served.runner._line, 1000)
    assert received.endswith(b"\r\n\r\n")
    assert served.runner.lines()[-1].startswith("m-results-")


def test_commands_of_the_protocol_are_answered(serve: Serve) -> None:
    runner = serve(KEYWORDS).runner
    assert runner.command("name") == ["m-name-dut-[amaranth-vta]"]
    assert runner.command("timestamp") == ["m-lap-us-0"]
    assert "infer" in " ".join(runner.command("help"))
    profile, model = runner.command("profile")
    assert re.fullmatch(r"m-profile-\[[^]]+\]", profile)
    assert model == "m-model-[kws01]"
    assert runner.command("db load 10") == ["m-[Expecting 10 bytes]"]
    assert runner.command("db 000102030405") == []
    assert runner.command("db 06070809FFff") == ["m-load-done"]  # the last two are ignored
    assert runner.command("db print") == ["m-buffer-00-01-02-03-04-05-06-07", "m-buffer-08-09"]
    # A command may be typed, and a lone terminator ends a broken one.
    assert runner.command("\r\n name \r\n") == ["m-name-dut-[amaranth-vta]"]
    assert runner.command("") == []
    runner.load(bytes(490))
    assert "m-warmup-start-10" in runner.command("infer 2")
    assert "m-infer-start-1" in runner.command("infer")


@pytest.mark.parametrize(
    "command",
    [
        *("unknown", "Name", "inferences 3", "\x00\x07", "e-[", "é", "x" * 80),
        *("x" * 81, "db " + "00" * 5000),
        *("db", "db load", "db load 0", "db load -1", "db load 27649", "db load x", "db load 1e2"),
        *("db 0", "db 0g", "db 00zz", "db 00"),
        *("infer 0", "infer -1", "infer x", "infer 1000001", "infer 1 -1", "infer 1 x", "infer"),
        *("results", "infer 1 0"),
    ],
)
def test_a_wrong_command_has_one_error(serve: Serve, command: str) -> None:
    runner = serve(KEYWORDS).runner
    (answer,) = runner.command(command)
    assert re.fullmatch(r"e-\[.+\]", answer)
    assert runner.command("name") == ["m-name-dut-[amaranth-vta]"]


def test_inputs_of_other_sizes_are_refused(serve: Serve) -> None:
    runner = serve(KEYWORDS).runner
    for size in (489, 491):
        runner.load(bytes(size))
        answer = runner.command("infer 1 0")
        assert answer == [f"e-[kws01 needs 490 bytes; {size} are loaded]"]
        assert runner.command("db 00") == [
            "e-[The input has all its bytes; db load begins another one]"
        ]
    assert runner.command("db load 490") == ["m-[Expecting 490 bytes]"]
    assert runner.command("infer 1 0") == ["e-[kws01 needs 490 bytes; 0 are loaded]"]


def test_a_fault_of_the_machine_is_an_error(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = serve(KEYWORDS).runner
    runner.load(bytes(490))

    def fail(*_: Any) -> Any:
        raise ModelError("two\nlines, % and é")

    monkeypatch.setattr(Session, "run", fail)
    lines = runner.command("infer 1 0")
    assert lines[-1] == "e-[two lines, % and ?]"
    assert not any(line.startswith("m-results") for line in lines)


def test_runners_come_and_go(serve: Serve) -> None:
    served = serve(KEYWORDS)
    served.runner.load(bytes(490))
    other = Runner(served.path)
    assert other.command("name") == ["m-name-dut-[amaranth-vta]"]
    other.close()
    assert served.runner.infer(1, 0)[0] == [-0.15] * 12


def test_only_networks_of_the_benchmark_are_accepted() -> None:
    with pytest.raises(ModelError, match=r"is not a network of MLPerf Tiny.* 490 → 12 \(kws01\)"):
        TinyNetwork.of(small((1, 4, 4, 1), 2), "other")
    with pytest.raises(ModelError, match="float32, and inputs and outputs must be int8 or uint8"):
        TinyNetwork.of(small((1, 49, 10, 1), 12, "float32", None), "float")
    with pytest.raises(ModelError, match="is not a TensorFlow Lite file"):
        TinyNetwork.of(b"\x08\x07" * 100, "model.onnx")
    with pytest.raises(ModelError, match="damaged"):
        TinyNetwork.of(KEYWORDS[:100], "cut")


def test_the_command_serves_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keywords.tflite"
    path.write_bytes(KEYWORDS)
    arguments = ["serve", "--mlperf-tiny", str(path), "--device", "estimate", "--clock", "25"]
    process = subprocess.Popen(
        [sys.executable, "-m", "amaranth_vta", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # Children of a process in the background would ignore the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    place = process.stdout.readline()
    assert place.startswith("kws01 on estimate at /dev/")
    assert process.stdout.readline().startswith("Time is cycles at 25 MHz, without that of ")
    runner = Runner(place.split()[-1])
    runner.load(bytes(490))
    assert runner.infer(1, 0)[0] == [-0.15] * 12
    runner.close()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert errors == "vta: interrupted\n"


def test_a_port_that_is_closed_ends_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keywords.tflite"
    path.write_bytes(KEYWORDS)
    theirs, ours = os.openpty()
    tty.setraw(ours)
    port = os.ttyname(ours)
    call = ["serve", "--mlperf-tiny", str(path), "--device", "functional", "--port", port]
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(cli.invoke(call)))
    thread.start()
    # Bytes sent before the port is open get lost.
    for _ in range(300):
        os.write(theirs, b"name%")
        if select.select([theirs], [], [], 0.1)[0]:
            break
    assert os.read(theirs, 100).startswith(b"m-name-dut")
    os.close(ours)
    os.close(theirs)
    thread.join(timeout=30)
    assert codes == [2]
    assert port in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--clock", "50"], "--clock is only for --mlperf-tiny"),
        (["--mlperf-tiny", "m.tflite", "--bind", "tcp://*:1"], "--bind is not for --mlperf-tiny"),
        (["--mlperf-tiny", "m.tflite"], "m.tflite: No such file or directory"),
        (["--mlperf-tiny", "pixels.tflite"], "pixels.tflite is not a TensorFlow Lite file"),
        (["--mlperf-tiny", "k.tflite", "--port", "k.tflite"], "k.tflite: this is not a serial"),
    ],
)
def test_wrong_options_are_refused(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pixels.tflite").write_bytes(bytes(100))
    Path("k.tflite").write_bytes(KEYWORDS)
    assert cli.invoke(["serve", "--device", "functional", *options]) == 2
    assert message in capsys.readouterr().err
