"""Networks with open dimensions are compiled for each shape of inputs."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from amaranth_vta import cli
from amaranth_vta.session import InputError, Session, random_inputs
from amaranth_vta.session.shaped_networks import ShapedNetworks
from amaranth_vta.sim.devices import RunOptions, open_device
from amaranth_vta.sw.runtime.array_file import write_arrays
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session
from tests.support.transformer_files import WIDE, Feeds, Graph, generative, quantized_dense

# Sizes of the cache and of the new tokens: a prefill, then two tokens.
SHAPES = ((0, 5), (5, 1), (6, 1))
decoder = partial(generative, quantized_dense, is_open=True)


def product(*sizes: int | str) -> tuple[onnx.ModelProto, Feeds]:
    g = Graph()
    x = g.input("x", g.normal(1, 6, WIDE), *sizes)
    g.output(quantized_dense(g, x, WIDE, 16))
    return g.made()


def rows(count: int) -> Feeds:
    return {"x": np.ones((1, count, WIDE), np.float32)}


def test_each_shape_is_compiled_when_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = decoder()
    reference = exact_session(model.SerializeToString())
    with Session(model, "pynq-extended") as session:
        for past, length in (*SHAPES, SHAPES[0]):
            _, inputs = decoder(past, length)
            outputs = session.run(inputs)
            wanted = reference.run(list(outputs), inputs)
            for got, expected in zip(outputs.values(), wanted, strict=True):
                np.testing.assert_allclose(got, expected, atol=1e-5)
            assert session.check(inputs).mismatches == 0
            assert session.inputs["input_ids"].shape == (None, length)
    warnings = [item for item in caplog.records if item.levelno == logging.WARNING]
    assert [item.getMessage() for item in warnings] == [
        "the inputs have a new shape (sequence=1, total=6, past=5); the network is compiled for "
        "each new shape"
    ]


def test_a_shape_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VTA_CACHE", str(tmp_path))
    model, _ = product(1, "rows", WIDE)
    for _ in range(2):
        with Session(model, "pynq-extended") as session:
            for count in (4, 6, 4):
                session.run(rows(count))
        assert len(list((tmp_path / "networks").glob("*.vta"))) == 2


def test_given_sizes_are_compiled_at_once() -> None:
    model, inputs = product(1, "rows", WIDE)
    with Session(model, "pynq-extended", dimensions={"rows": 6}) as session:
        assert session.program.layer_count == 1
        assert session.check(inputs).ok
        assert session.check(rows(3)).ok


def test_a_dimension_without_a_name_is_that_of_its_input() -> None:
    model, inputs = product(1, "rows", WIDE)
    model.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    with Session(model, "pynq-extended") as session:
        assert session.check(inputs).ok
    with Session(model, "pynq-extended", dimensions={"x.1": 4}) as session:
        assert random_inputs(session)["x"].shape == (1, 4, WIDE)


def test_an_open_number_of_images_and_an_open_length() -> None:
    model, _ = product("images", "rows", WIDE)
    with Session(model, "pynq-extended") as session:
        for shape in ((3, 4, WIDE), (2, 7, WIDE)):
            outputs = session.run({"x": np.ones(shape, np.float32)})
            assert [item.shape for item in outputs.values()] == [(*shape[:2], 16)]


def test_one_open_device_holds_all_shapes() -> None:
    model, _ = product(1, "rows", WIDE)
    with Session(model, "pynq-extended", dimensions={"rows": 1}) as session:
        config = session.config
    device = open_device("functional", config, 1 << 20)
    with Session(model, config, device) as session:
        first = session.run(rows(2))
        session.run(rows(5))
        again = session.run(rows(2))
    for name, value in first.items():
        np.testing.assert_array_equal(again[name], value)


def test_sizes_are_needed_before_the_first_run() -> None:
    model, _ = decoder()
    with Session(model, "pynq-extended", dimensions={"past": 3, "total": 5}) as session:
        assert "open until its first run" in repr(session)
        message = r"dimension 1 \(sequence\) is open; give its size: --dim sequence=SIZE, or inputs"
        with pytest.raises(ModelError, match=message):
            _ = session.layers
    message = (
        "give the sizes of all open dimensions: --dim sequence=SIZE --dim total=SIZE --dim past"
    )
    with (
        Session(model, "pynq-extended") as session,
        pytest.raises(ModelError, match=message),
    ):
        random_inputs(session)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"sequence": 0, "total": 3, "past": 3}, "sequence cannot be 0: the input input_ids would"),
        ({"sequence": 1, "total": 0, "past": 3}, "total cannot be 0: the input attention_mask"),
    ],
)
def test_only_a_cache_may_be_empty(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Session(decoder()[0], "pynq-extended", dimensions=sizes)
    with pytest.raises(ModelError, match="rows cannot be 0: the input x would have no elements"):
        Session(product(1, "rows", WIDE)[0], "pynq-extended", dimensions={"rows": 0})
    with Session(
        decoder(0, 5)[0], "pynq-extended", dimensions={"sequence": 5, "total": 5, "past": 0}
    ) as session:
        assert session.check(decoder(0, 5)[1]).ok


def test_waves_are_of_one_shape(tmp_path: Path) -> None:
    model, _ = product(1, "rows", WIDE)
    sizes = {"rows": 1}
    with Session(model, "pynq-extended", dimensions=sizes) as session:
        assert isinstance(session._networks, ShapedNetworks)
        session._networks._options = RunOptions(waves=tmp_path / "waves.vcd")
        with pytest.raises(InputError, match="waves are written for one shape"):
            session.run(rows(2))


def test_the_command_of_the_message_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, inputs = decoder()
    path = str(tmp_path / "decoder.onnx")
    onnx.save(model, path)
    command = ["run", path, "--config", "pynq-extended", "--check"]
    assert cli.invoke(command) == 2
    error = capsys.readouterr().err
    options = [word for word in error.split() if "=SIZE" in word]
    assert options == ["sequence=SIZE", "total=SIZE", "past=SIZE,"]
    sizes = ["--config", "pynq-extended"]
    for name, size in {"sequence": 2, "total": 5, "past": 3}.items():
        sizes += ["--dim", f"{name}={size}"]
    assert cli.invoke(["compile", path, *sizes, "-o", str(tmp_path / "decoder.vta")]) == 0
    assert cli.invoke(["show", path, *sizes]) == 0
    assert cli.invoke(["run", path, *sizes, "--check"]) == 0
    arrays = str(tmp_path / "inputs.npz")
    with open(arrays, "wb") as file:
        write_arrays(file, inputs)
    assert cli.invoke([*command, "--inputs", arrays]) == 0
    capsys.readouterr()
    assert cli.invoke([*command, "--inputs", arrays, *sizes]) == 2
    assert "--dim sequence=2, but the inputs have sequence=1" in capsys.readouterr().err
