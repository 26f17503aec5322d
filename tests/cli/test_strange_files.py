"""Damaged and hostile files give a one-sentence error and a defined exit code."""

from __future__ import annotations

import io
import json
import resource
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from time import process_time
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta.cli import invoke
from amaranth_vta.sw.runtime.archive import write_archive
from amaranth_vta.sw.runtime.array_file import ArrayFile, write_arrays
from amaranth_vta.sw.runtime.network.network_file import KIND

Refused = Callable[..., str]
CASES = 250
CONFIG = ("--config", "tiny-extended")


def _fuzz() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "fuzz_files.py"
    spec = spec_from_file_location("fuzz_files", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["fuzz_files"] = module  # dataclasses look up their module here
    spec.loader.exec_module(module)
    return module


FUZZ = _fuzz()


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Refused:
    """Run a command that must refuse a file, and return its message; {} in the arguments is
    replaced by the path of a file with ``contents``.
    """

    def run(contents: bytes | Any, *arguments: str) -> str:
        path = tmp_path / "file"
        data = contents.SerializeToString() if isinstance(contents, onnx.ModelProto) else contents
        path.write_bytes(data)
        assert invoke([item.replace("{}", str(path)) for item in arguments]) == 2
        text = capsys.readouterr().err
        assert text.startswith("vta: ")
        assert text.count("\n") == 1
        return text

    return run


def test_damaged_and_hostile_files_end_with_a_code_that_means_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VTA_FILE_LIMIT", FUZZ.FILE_LIMIT)
    FUZZ.prepare(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    codes = set()
    for number in range(CASES):
        run = FUZZ.begun(number, 2, tmp_path)
        started = process_time()
        codes.add(code := invoke(run.arguments))
        assert code in FUZZ.ALLOWED, (number, run.arguments, capfd.readouterr().err)
        assert process_time() - started < FUZZ.SECONDS, (number, run.arguments)
        run.file.unlink()
    assert codes >= {0, 2, 3}
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown / 1024 < FUZZ.MEGABYTES


def network() -> onnx.ModelProto:
    model: onnx.ModelProto = FUZZ.small_model(on_host=True)
    return model


def test_outputs_may_have_the_names_of_numpys_parameters(tmp_path: Path) -> None:
    model = network()
    names, (output,) = {"file", "allow_pickle"}, model.graph.output
    for name in names:
        model.graph.node.append(helper.make_node("Identity", [output.name], [name]))
        model.graph.output.add().CopyFrom(output)
        model.graph.output[-1].name = name
    path, outputs = tmp_path / "model.onnx", tmp_path / "y.npz"
    path.write_bytes(model.SerializeToString())
    assert invoke(["run", str(path), *CONFIG, "--outputs", str(outputs)]) == 0
    with np.load(outputs) as results:
        assert names < set(results.files)


def test_a_bound_that_is_not_a_number_is_left_to_the_host(tmp_path: Path) -> None:
    model = network()
    for node in model.graph.node:
        if node.op_type == "Relu":
            node.op_type = "Clip"
            node.input.append("bound")
    model.graph.initializer.append(numpy_helper.from_array(np.array(np.nan, np.float32), "bound"))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert invoke(["compile", str(path), *CONFIG, "-o", str(tmp_path / "out.vta")]) == 0


def test_zero_points_that_are_not_as_many_as_scales_are_left_to_the_host(
    tmp_path: Path,
) -> None:
    model = network()
    (add,) = (node for node in model.graph.node if node.op_type == "Add")
    makers = {name: node for node in model.graph.node for name in node.output}
    for name in add.input:
        makers[name].input[2] = "several"
    zeros = np.zeros(2, np.int8)
    model.graph.initializer.append(numpy_helper.from_array(zeros, "several"))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert invoke(["compile", str(path), *CONFIG, "-o", str(tmp_path / "out.vta")]) == 0


def test_a_host_operator_that_fails_is_an_error_of_the_model(refused: Refused) -> None:
    model = network()
    model.graph.initializer.append(numpy_helper.from_array(np.array([7, 7]), "shape"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "three"))
    model.graph.node.append(helper.make_node("Reshape", ["three", "shape"], ["odd"]))
    model.graph.output.append(helper.make_tensor_value_info("odd", TensorProto.FLOAT, ["n", "m"]))
    refused(model, "run", "{}", *CONFIG)


def test_a_tensor_that_no_memory_holds_is_refused(refused: Refused) -> None:
    model = network()
    model.graph.initializer.append(numpy_helper.from_array(np.array([1 << 20, 1 << 20]), "shape"))
    model.graph.node.append(helper.make_node("ConstantOfShape", ["shape"], ["huge"]))
    model.graph.output.append(helper.make_tensor_value_info("huge", TensorProto.FLOAT, ["n", "m"]))
    assert "tensor huge takes 4,398,046,511,104 bytes" in refused(model, "run", "{}", *CONFIG)


def external(model: onnx.ModelProto, location: str, **more: str) -> None:
    """Move the first constant of ``model`` into another file."""
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=value)


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "absent", "."])
def test_data_in_other_files_are_below_the_model(location: str, refused: Refused) -> None:
    model = network()
    external(model, location)
    refused(model, "run", "{}", *CONFIG)


def test_data_in_other_files_count_towards_the_limit(
    tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    external(model, "large")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2 << 20)
    monkeypatch.setenv("VTA_FILE_LIMIT", "1M")
    assert "in other files takes 2,097,152 bytes" in refused(model, "run", "{}", *CONFIG)


def compiled(change: Callable[[dict[str, Any], dict[str, np.ndarray]], None]) -> bytes:
    """A compiled network after ``change``, with the right checksum."""
    file = io.BytesIO()
    FUZZ.write_network(FUZZ.compilation.compile(network(), CONFIG[1]).program, file)
    arrays = ArrayFile(file).read_all()
    header = json.loads(str(arrays.pop("header")))
    header.pop("checksum")
    change(header, arrays)
    file = io.BytesIO()
    write_archive(file, KIND, header, arrays)
    return file.getvalue()


def test_a_part_for_the_host_names_no_other_file(
    tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_bytes(bytes(1 << 12))

    def change(_: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        model = onnx.load_model_from_string(arrays["model_0"].tobytes())
        external(model, "secret")
        arrays["model_0"] = np.frombuffer(model.SerializeToString(), np.uint8)

    assert "in another file" in refused(compiled(change), "run", "{}")


def _steps(kind: str, **values: Any) -> Callable[[dict[str, Any], dict[str, np.ndarray]], None]:
    def change(header: dict[str, Any], _: dict[str, np.ndarray]) -> None:
        for step in header["steps"]:
            if step["kind"] == kind:
                step.update(values)

    return change


def _launch(**values: Any) -> Callable[[dict[str, Any], dict[str, np.ndarray]], None]:
    return lambda header, _: header["launches"][0].update(values)


def _buffer(**values: Any) -> Callable[[dict[str, Any], dict[str, np.ndarray]], None]:
    return lambda header, _: header["buffers"][0].update(values)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_steps("layer", streams=[0, 9]), "runs streams range(0, 9) of 3"),
        (_steps("layer", macs=-1), "has a size or count of -1"),
        (_steps("layer", name=7), "is not a name"),
        (_steps("to_machine", buffer="elsewhere"), "there is no buffer elsewhere"),
        (_steps("host", inputs=["nothing"]), "no step produces nothing, which the host reads"),
        (_launch(stream=4), "a launch runs a stream that does not exist"),
        (_launch(streams=[0, 4]), "a launch runs no layers"),
        (_launch(ends=[1, 2]), "a launch has layers that store nothing"),
        (_launch(ends=[1, "2"]), "a launch has a size or count of '2'"),
        (_buffer(size=1 << 50), "the memory that it needs takes"),
        (_buffer(size=1), "exceed the buffer"),
        (_buffer(role="input or so"), "is malformed"),
        (lambda header, _: header.update(open_batch=3), "open_batch is neither"),
        (
            lambda _, arrays: arrays.update(words_0=arrays["words_0"][:, :1]),
            "its stream 0 is malformed",
        ),
        (lambda _, arrays: arrays["buffer_0"].fill(99), "uses buffers that it does not have"),
        (lambda header, _: header.clear(), "it has no 'buffers'"),
        (lambda header, _: header["outputs"].update(z={"dtype": "O", "shape": []}), "z is of obj"),
    ],
)
def test_a_compiled_network_fits_together(change: Any, problem: str, refused: Refused) -> None:
    assert problem in refused(compiled(change), "run", "{}")


@pytest.mark.parametrize("command", [("config", "/dev/zero"), ("run", "/dev/zero")])
def test_a_file_without_an_end_is_refused(
    command: tuple[str, ...], refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VTA_FILE_LIMIT", "1M")
    refused(b"", *command)


def test_a_key_that_is_there_twice_is_refused(refused: Refused) -> None:
    text = b'{"LOG_BATCH": 0, "LOG_BATCH": 1}'
    assert "it has the key 'LOG_BATCH' twice" in refused(text, "config", "{}")


def test_a_few_kilobytes_that_unpack_to_gigabytes_are_refused(refused: Refused) -> None:
    file = io.BytesIO()
    write_arrays(file, {"dram": np.zeros(1 << 26, np.uint8)}, compressed=True)
    data = bytearray(file.getvalue())
    assert len(data) < 1 << 17
    # The size declared in the archive's directory is checked before the data are read.
    at = data.index(b"PK\x01\x02") + 24
    data[at : at + 4] = (0xFFFF0000).to_bytes(4, "little")
    assert "takes 4,294,901,760 bytes" in refused(bytes(data), "replay", "{}")
