"""Exported TensorFlow Lite networks, on the functional model, against LiteRT's kernels."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.export.network import export
from amaranth_vta.networks import generate_tiny
from amaranth_vta.networks.generators import MLPERF_TINY
from amaranth_vta.networks.tflite_network import reference
from amaranth_vta.session.compilation import compile as compile_network
from tests.support.exported_c import RISCV, STANDARDS, STRICT, ZIG, exported
from tests.support.seeds import each_seed
from tests.support.tflite_files import DrawnNetwork, TfliteCase, case, file_case
from tests.support.tflite_graphs import in_sequence, kept_by_host, random_graph, stateful_graph

CONFIG = "pynq-extended"


def assert_exact(given: TfliteCase, folder: Path) -> None:
    program, network = exported(given.model, CONFIG, folder)
    for run, wanted in zip(given.runs, given.wanted, strict=True):
        for found, values in zip(
            network.run(run, [*program.outputs.values()]), wanted, strict=True
        ):
            np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("name", MLPERF_TINY)
def test_mlperf_tiny_is_exact(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.tflite"
    file.write_bytes(generate_tiny(name))
    assert_exact(file_case(file, 3, 1), tmp_path)


@each_seed(range(1000, 1006), daily=3)
def test_random_graphs_are_exact(seed: int, tmp_path: Path) -> None:
    assert_exact(random_graph(seed), tmp_path)


@pytest.mark.parametrize("name", ["mlperf-keywords", "mlperf-resnet"])
def test_they_compile_for_risc_v(name: str, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    for file, data in export(compile_network(generate_tiny(name), CONFIG).program).items():
        (tmp_path / file).write_bytes(data)
    files = [str(tmp_path / file) for file in ("network.c", "vta_runtime.c")]
    command = [*ZIG, *RISCV, *STANDARDS["c99"], *STRICT, "-Os", "-Wl,--entry=network_run"]
    subprocess.run([*command, *files, "-o", str(tmp_path / "network.elf")], check=True)


@each_seed(range(4))
def test_float_inputs_and_outputs_are_exact(seed: int, tmp_path: Path) -> None:
    """QUANTIZE rounds ties away from zero: half of the inputs are ties."""
    net = DrawnNetwork(seed, "uint8" if seed % 2 else "int8")
    scale = 2.0 ** -net.integer(1, 6)
    real = net.input((1, 12), dtype="float32")
    net.keep(real, np.asarray(net.rng.normal(0, 1, (1, 12)), np.float32))
    net.inputs.append(real)
    x = net.apply("QUANTIZE", real, at=(scale, net.integer(-9, 9) + 128 * (seed % 2)))
    result = case(net, "float", "", [net.apply("DEQUANTIZE", net.dense(x, 7), dtype="float32")])
    for number, (run,) in enumerate(result.runs):
        run[:, ::2] = (np.floor(run[:, ::2] / scale) + 0.5) * scale
        result.wanted[number] = reference(result.model, run)
    assert_exact(result, tmp_path)


@each_seed(range(3))
def test_variables_are_kept_and_reset(seed: int, tmp_path: Path) -> None:
    assert_kept_and_reset(stateful_graph(seed), tmp_path)


def test_variables_of_the_host_are_kept_and_reset(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    runs = [[rng.integers(-128, 128, (1, 6), np.int8)] for _ in range(6)]
    given = in_sequence("of the host", kept_by_host(), runs)
    assert compile_network(given.model, CONFIG).program.states
    assert_kept_and_reset(given, tmp_path)


def assert_kept_and_reset(given: TfliteCase, tmp_path: Path) -> None:
    program, network = exported(given.model, CONFIG, tmp_path)
    for _ in range(2):
        for run, wanted in zip(given.runs, given.wanted, strict=True):
            (found,) = network.run(run, [*program.outputs.values()])
            np.testing.assert_array_equal(found, wanted[0])
        network.reset()


def test_a_network_without_variables_has_no_reset(tmp_path: Path) -> None:
    exported(generate_tiny("mlperf-keywords"), CONFIG, tmp_path)
    (header,) = tmp_path.glob("*/net.h")
    assert "reset" not in header.read_text()
