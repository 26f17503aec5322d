"""Options that write a file or a folder create missing parent folders, except `vta replay
--outputs`, whose exit code scripts rely on."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta import cli
from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.remote.keys import Keys

TINY = PRESETS["tiny"]
DECODER = """<ir_version: 8, opset_import: ["": 17]>
g (int64[1, 1] input_ids, int64[1, m] attention_mask, float[1, p, 4] past_0)
=> (float[1, 1, 4] logits, float[1, q, 4] present_0)
<float[4, 4] table = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1},
 int8[4, 4] w = {0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0}, float s = {1}, int8 z = {0}> {
    e = Gather(table, input_ids)
    i = QuantizeLinear(e, s, z)
    o = QLinearMatMul(i, s, z, w, s, z, s, z)
    logits = DequantizeLinear(o, s, z)
    present_0 = Concat<axis = 1>(past_0, logits)
}
"""
SPEC = """
networks = ["conv.onnx"]
base = "tiny"
memory = "ideal"
rtl = 0
[parameters]
LOG_BUS_WIDTH = [6]
[search]
method = "grid"
"""
# For each command: its other arguments, and a path for each option that writes.
CALLS: dict[str, tuple[str, dict[str, str]]] = {
    "verilog": ("--config tiny", {"-o": "vta.v", "--split": "split", "--waivers": "vta.vlt"}),
    "header": ("--config tiny", {"-o": "vta.h"}),
    "estimate-area": ("tiny", {"--json": "area.json"}),
    "build": ("pynq-z1-ps --config tiny", {"-o": "project", "--json": "build.json"}),
    "compile": ("conv.onnx --config tiny", {"-o": "conv.vta"}),
    "export": ("conv.vta", {"-o": "c"}),
    "run": (
        "conv.onnx --config tiny --device pysim",
        {
            **{"--outputs": "outputs.npz", "--json": "run.json", "--trace": "trace.json"},
            **{"--waves": "waves.vcd", "--report": "report"},
        },
    ),
    "generate": (
        "decoder.onnx --config tiny --device pysim --prompt-ids 1 --max-new-tokens 1",
        {"--json": "generate.json", "--trace": "trace.json"},
    ),
    "compare": ("run.json run.json", {"--html": "compare.html", "--json": "compare.json"}),
    "replay": (
        "image.npz --device pysim",
        {"--json": "replay.json", "--trace": "trace.json", "--waves": "waves.vcd"},
    ),
    "bench": ("mlp --config tiny", {"--json": "bench.json", "--trace": "trace.json"}),
    "quantize": ("float.onnx", {"-o": "int8.onnx"}),
    "tune": ("conv.onnx --candidates 4 --jobs 1", {"-o": "tuned.json", "--json": "tune.json"}),
    "explore": ("spec.toml --jobs 1", {"-o": "explored"}),
    "fuzz": ("--programs 1 --devices functional --config tiny", {"--json": "fuzz.json"}),
    "examples": ("own-operator", {"-o": "examples"}),
}
# Arguments and options that name inputs.
READ = {
    **{
        "bench": {"--models"},
        "compare": {"first", "second"},
        "compile": {"model", "--tuned"},
        "disasm": {"image"},
    },
    **{"explore": {"spec_path"}, "export": {"file"}, "program": {"file"}, "replay": {"images"}},
    **{"build": {"--network", "--mlperf-tiny"}, "classify": {"file", "--inputs"}},
    **{"quantize": {"model", "--calibrate"}, "show": {"model"}, "tune": {"model"}},
    "generate": {"model", "--tokenizer"},
    "run": {"model", "--inputs", "--tuned", "--labels", "--float"},
    "serve": {"--mlperf-tiny", "--port"},
}
# Options with separate tests below.
APART = {
    **{"bench": {"--save"}, "fuzz": {"--keep"}, "serve": {"--keys"}},
    "classify": {"--outputs", "--waves"},
    "replay": {"--outputs"},
}
# `vta tune` writes no file if the compiler's own schedules are the best.
MAY_BE_MISSING = {"tuned.json"}


def network(quantized: bool) -> onnx.ModelProto:
    """A 1×1 convolution, of int8 or of float32."""
    kind = TensorProto.INT8 if quantized else TensorProto.FLOAT
    dtype = np.int8 if quantized else np.float32
    constants: dict[str, np.ndarray] = {"weights": 2 * np.eye(4, dtype=dtype).reshape(4, 4, 1, 1)}
    node = helper.make_node("Conv", ["x", "weights"], ["y"])
    if quantized:
        constants |= {"scale": np.array(1, np.float32), "zero": np.array(0, np.int8)}
        scaled = ["x", "scale", "zero", "weights", "scale", "zero", "scale", "zero"]
        node = helper.make_node("QLinearConv", scaled, ["y"])
    shape = [1, 4, 4, 4]
    graph = helper.make_graph(
        [node],
        "conv",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the input files of the commands."""
    monkeypatch.chdir(tmp_path)
    onnx.save(network(True), "conv.onnx")
    onnx.save(network(False), "float.onnx")
    onnx.save(onnx.parser.parse_model(DECODER), "decoder.onnx")
    Path("spec.toml").write_text(SPEC)
    finish = isa.instruction_set(TINY).encode(isa.Finish()).to_bytes(16, "little")
    dram = np.zeros(2048, np.uint8)
    dram[: len(finish)] = np.frombuffer(finish, np.uint8)
    ProgramImage(TINY, dram, 0, 1, None).save("image.npz")
    return tmp_path


def test_every_option_that_names_a_path_is_one_of_these() -> None:
    for name, command in cli.vta.commands.items():
        paths = {item.opts[0] for item in command.params if isinstance(item.type, click.Path)}
        written = set(CALLS[name][1]) if name in CALLS else set()
        assert paths == written | READ.get(name, set()) | APART.get(name, set()), name


@pytest.mark.parametrize("name", CALLS)
def test_an_output_in_folders_that_do_not_exist_is_written(folder: Path, name: str) -> None:
    rest, outputs = CALLS[name]
    if name == "export":
        assert cli.invoke(["compile", "conv.onnx", "--config", "tiny", "-o", "conv.vta"]) == 0
    if name == "compare":
        assert cli.invoke(["run", "conv.onnx", "--device", "estimate", "--json", "run.json"]) == 0
    arguments = [name, *rest.split()]
    for option, file in outputs.items():
        arguments += [option, f"new/{option}/{file}"]
    assert cli.invoke(arguments) == 0
    for option, file in outputs.items():
        assert Path("new", option, file).exists() or file in MAY_BE_MISSING
    assert not list(folder.rglob(".*.part"))


def test_a_network_is_saved_to_a_new_folder(folder: Path) -> None:
    assert cli.invoke(["bench", "mlp", "--save", "new/folder/mlp.onnx"]) == 0
    assert Path("new/folder/mlp.onnx").exists()


def test_keys_are_made_in_a_new_folder(folder: Path) -> None:
    Keys("new/keys").client("one", "tcp://here:1")
    assert Path("new/keys/clients").is_dir()


def test_a_folder_to_keep_programs_in_appears_with_the_first(folder: Path) -> None:
    options = ["--programs", "1", "--devices", "functional", "--config", "tiny"]
    assert cli.invoke(["fuzz", *options, "--keep", "new/kept"]) == 0
    assert not Path("new").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        "run none.onnx --outputs new/a/y.npz --json new/a/b/run.json --report new/report",
        "compile none.onnx -o new/a/x.vta",
        "export none.vta -o new/a/b",
        "quantize conv.onnx -o new/int8.onnx",
        "replay none.npz --waves new/a.vcd",
    ],
)
def test_a_command_that_fails_leaves_no_folder(
    folder: Path, arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.invoke(arguments.split()) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not Path("new").exists()


def test_memory_after_a_replay_needs_a_folder_that_exists(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    path = Path("new") / "outputs.npz"
    assert cli.invoke(["replay", "image.npz", "--device", "pysim", "--outputs", str(path)]) == 2
    assert f"--outputs {path} cannot be written: No such file" in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before
    path.parent.mkdir()
    assert cli.invoke(["replay", "image.npz", "--device", "pysim", "--outputs", str(path)]) == 0
    assert path.exists()
