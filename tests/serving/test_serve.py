"""A machine on another computer: the same results, one client at a time, and admitted clients
only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from amaranth_vta import cli
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.serving.machine import ServingLimits
from amaranth_vta.serving.server import Server
from amaranth_vta.sim.devices import DeviceError, close_device, open_device
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.remote.client import RemoteDevice, RemoteError
from amaranth_vta.sw.remote.keys import Credentials, KeyFileError, Keys
from amaranth_vta.sw.remote.messages import packed, unpacked

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples/digits/digits.onnx"
VECTOR = sorted((ROOT / "tests/golden/vectors").glob("tiny*.npz"))[0]
TINY = PRESETS["tiny"]
LIMITS = ServingLimits(memory_bytes=1 << 20, run_seconds=30, idle_seconds=60)


class Served:
    """A server in a thread of this process."""

    def __init__(
        self, folder: Path, limits: ServingLimits = LIMITS, device: str = "functional"
    ) -> None:
        self.said: list[str] = []
        self.keys = Keys(folder)
        self._ends = threading.Event()
        self.server = Server(self.keys, "tcp://127.0.0.1:*", device, limits, self.said.append)
        self._thread = threading.Thread(target=self.server.serve, args=(self._ends.is_set,))
        self._thread.start()

    def credentials(self, name: str = "client") -> Credentials:
        return Credentials.load(self.keys.client(name, self.server.address))

    def open(self, name: str = "client", size: int = 4096) -> RemoteDevice:
        return RemoteDevice(TINY, size, self.credentials(name))

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self.server.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    running: list[Served] = []

    def start(limits: ServingLimits = LIMITS, device: str = "functional") -> Served:
        running.append(Served(tmp_path / f"keys{len(running)}", limits, device))
        return running[-1]

    yield start
    for served in running:
        served.close()


def test_a_program_does_there_what_it_does_here(serve: Callable[..., Served]) -> None:
    image = ProgramImage.load(VECTOR)
    served = serve()
    results = []
    for device in (
        open_device("functional", image.config, image.dram.size),
        RemoteDevice(image.config, image.dram.size, served.credentials()),
    ):
        device.write(0, image.dram)
        result = device.run(image.insn_addr, image.insn_count)
        results.append((device.read(0, image.dram.size), replace(result, seconds=0)))
        close_device(device)
    assert (results[0][0] == results[1][0]).all()
    assert results[0][1] == results[1][1]


def test_a_network_runs_there(
    serve: Callable[..., Served],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Counters and cycles come from the served device."""
    served = serve(device="estimate")
    monkeypatch.setenv("VTA_REMOTE", str(served.keys.client("ada", served.server.address)))
    cycles = []
    for device in ("remote", "estimate"):
        call = ["run", str(DIGITS), "--config", "tiny-extended", "--device", device]
        assert cli.invoke([*call, "--check", "--json", "-"]) == 0
        cycles.append(json.loads(capsys.readouterr().out)["cycles"])
    assert cycles[0] == cycles[1] > 0


def test_clients_have_the_machine_in_turn(serve: Callable[..., Served]) -> None:
    served = serve()
    first = served.open("first")
    first.write(0, b"secret")
    turns: list[str] = []

    def second() -> None:
        device = served.open("second")
        turns.append("second")
        turns.append(device.read(0, 6).tobytes().hex())
        device.close()

    thread = threading.Thread(target=second)
    thread.start()
    time.sleep(0.5)
    turns.append("first")
    first.close()
    thread.join(timeout=30)
    # The second client sees nothing of the first one's memory.
    assert turns == ["first", "second", "00" * 6]


def test_many_clients_at_once_all_get_their_own_results(serve: Callable[..., Served]) -> None:
    """Eight clients in parallel take three turns each, and abandon one of them halfway."""
    served = serve()
    image = ProgramImage.load(VECTOR)
    local = open_device("functional", image.config, image.dram.size)
    local.write(0, image.dram)
    local.run(image.insn_addr, image.insn_count)
    expected = local.read(0, image.dram.size)
    rest = expected.size  # offset of bytes that differ per client
    known = [served.credentials(f"client{number}") for number in range(8)]
    outcomes: list[bool] = []

    def use(number: int) -> None:
        own = np.random.default_rng(number).integers(0, 255, 4096, np.uint8)
        for turn in range(3):
            device = RemoteDevice(image.config, rest + own.size, known[number])
            device.write(rest, own)
            if turn == 1:
                device.close()
                continue
            device.write(0, image.dram)
            result = device.run(image.insn_addr, image.insn_count)
            same = np.array_equal(device.read(0, rest), expected)
            outcomes.append(
                result.fault is None and same and np.array_equal(device.read(rest, own.size), own)
            )
            device.close()

    threads = [threading.Thread(target=use, args=(number,)) for number in range(len(known))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert outcomes == [True] * 16


def test_a_killed_client_leaves_the_machine(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve()
    path = served.keys.client("killed", served.server.address)
    code = (
        "import sys, time\n"
        "from amaranth_vta.hw.config import PRESETS\n"
        "from amaranth_vta.sw.remote.client import RemoteDevice\n"
        "from amaranth_vta.sw.remote.keys import Credentials\n"
        "RemoteDevice(PRESETS['tiny'], 64, Credentials.load(sys.argv[1]))\n"
        "print('open', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    process.kill()
    process.wait()
    process.stdout.close()
    served.open("next").close()
    assert any("is gone" in line for line in served.said)


def test_an_idle_client_gives_way(serve: Callable[..., Served]) -> None:
    served = serve(replace(LIMITS, idle_seconds=0.3))
    idle = served.open("idle")
    served.open("next").close()
    with pytest.raises(RemoteError, match="no machine is open; an idle machine may be given"):
        idle.read(0, 1)
    idle.close()


def test_a_killed_server_is_noticed(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    arguments = ["serve", "--device", "functional", "--keys", str(keys)]
    process = subprocess.Popen(
        [sys.executable, "-m", "amaranth_vta", *arguments, "--bind", "tcp://127.0.0.1:*"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("functional at tcp://127.0.0.1:")
    line = process.stdout.readline()
    assert line == f"VTA_REMOTE={keys}/clients/client.json vta run MODEL.onnx --device remote\n"
    assert (keys / "clients/client.json").stat().st_mode & 0o077 == 0
    device = RemoteDevice(TINY, 64, Credentials.load(keys / "clients/client.json"))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with pytest.raises(RemoteError, match=r"the server at .* is gone"):
        device.read(0, 1)
    device.close()


def test_only_known_keys_are_admitted(serve: Callable[..., Served], tmp_path: Path) -> None:
    served, other = serve(), Keys(tmp_path / "other")
    stranger = Credentials.load(other.client("stranger", served.server.address))
    with pytest.raises(RemoteError, match="does not know this key, or is another"):
        RemoteDevice(TINY, 64, replace(stranger, server=served.keys.server.public))
    # A server that is not the one that wrote the file.
    with pytest.raises(RemoteError, match="does not know this key, or is another"):
        RemoteDevice(TINY, 64, replace(served.credentials(), server=other.server.public))
    served.open().close()


def test_a_removed_client_is_no_longer_admitted(serve: Callable[..., Served]) -> None:
    served = serve()
    credentials = served.credentials("gone")
    RemoteDevice(TINY, 64, credentials).close()
    served.keys.client("gone", "").unlink()
    with pytest.raises(RemoteError, match="does not know this key"):
        RemoteDevice(TINY, 64, credentials)


def test_limits_hold(serve: Callable[..., Served]) -> None:
    served = serve(ServingLimits(memory_bytes=1 << 20, run_seconds=1e-9, idle_seconds=60))
    with pytest.raises(RemoteError, match="more than the 1,048,576 allowed"):
        served.open(size=(1 << 20) + 64)
    image = ProgramImage.load(VECTOR)
    device = RemoteDevice(image.config, image.dram.size, served.credentials())
    device.write(0, image.dram)
    result = device.run(image.insn_addr, image.insn_count, time_limit=100)
    assert result.fault is not None
    assert result.fault.cause == "timeout"
    with pytest.raises(ValueError, match="are not within"):
        device.read(image.dram.size, 100)
    device.close()


def test_malformed_requests_are_answered_and_do_no_harm(serve: Callable[..., Served]) -> None:
    served = serve()
    credentials = served.credentials()
    good = served.open("good")
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.curve_serverkey = credentials.server.encode()
    socket.curve_publickey = credentials.public.encode()
    socket.curve_secretkey = credentials.secret.encode()
    socket.connect(credentials.address)
    config = TINY.to_dict()
    opening = {"do": "open", "version": 1, "config": config, "memory_bytes": 64, "dram": "ideal"}
    nonsense: list[list[bytes | memoryview]] = [
        [b""],
        [b"{", b""],
        [b"[]", b""],
        [b"[" * 60_000, b""],
        [b" " * 1_100_000, b""],
        packed({"do": "read", "address": 0, "size": 1}),
        packed({}),
    ]
    for parts in nonsense:
        socket.send_multipart(parts)
        while "wait" in (answer := unpacked(socket.recv_multipart())[0]):
            pass
        assert "error" in answer
    good.write(0, b"fine")
    assert good.read(0, 4).tobytes() == b"fine"
    good.close()
    changes: list[dict[str, Any]] = [
        {"config": []},
        {"config": {"LOG_BATCH": 99}},
        {"dram": "sram"},
        {"version": 0},
        {"memory_bytes": -1},
        {"memory_bytes": "1"},
    ]
    for change in changes:
        socket.send_multipart(packed({**opening, **change}))
        while "wait" in (answer := unpacked(socket.recv_multipart())[0]):
            pass
        assert "error" in answer, change
    socket.send_multipart(packed(opening))
    while "reply" not in (answer := unpacked(socket.recv_multipart())[0]):
        pass
    for wrong in (
        {"do": "read", "address": -1, "size": 1},
        {"do": "read", "address": 0, "size": 1 << 40},
        {"do": "read", "address": 60, "size": 10},
        {"do": "write", "address": 1 << 70},
        {"do": "run", "insn_addr": 0, "insn_count": "all"},
        {"do": "run", "insn_addr": 0, "insn_count": 1, "time_limit": "long"},
        {"do": "run", "insn_addr": 0, "insn_count": 1, "watched": [-1]},
        {"do": "run", "insn_addr": 0, "insn_count": 1, "watched": 3},
        {"do": "execute"},
        opening,
    ):
        socket.send_multipart(packed(wrong, b"xxxxxxxx"))
        while "reply" not in (answer := unpacked(socket.recv_multipart())[0]):
            pass
        assert "error" in answer, wrong
    context.destroy(linger=0)
    served.open("next").close()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"address": 3}'])
def test_a_file_that_has_no_keys_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "client.json"
    path.write_text(text)
    with pytest.raises(KeyFileError, match="is not a key file written by `vta serve`"):
        Credentials.load(path)
    keys = asdict(Credentials("tcp://a:1", "k" * 40, "k" * 40, "k" * 39))
    path.write_text(json.dumps(keys))
    with pytest.raises(KeyFileError):
        Credentials.load(path)


def test_without_a_file_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VTA_REMOTE", raising=False)
    with pytest.raises(DeviceError, match="VTA_REMOTE in the environment does not name a"):
        open_device("remote", TINY, 64)


def test_large_transfers_are_cut(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amaranth_vta.sw.remote.client._PART", 100)
    device = serve().open()
    data = np.random.default_rng(0).integers(0, 255, 1001, np.uint8)
    device.write(7, data)
    assert (device.read(7, 1001) == data).all()
    device.close()
