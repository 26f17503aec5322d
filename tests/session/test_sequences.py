"""Sequences of tensors, inside networks and as outputs, as ONNX Runtime computes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from amaranth_vta import cli
from amaranth_vta.session import Session
from amaranth_vta.session.comparison import _report
from amaranth_vta.session.sequences import flattened
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network
from amaranth_vta.sw.runtime.array_file import write_arrays
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session
from tests.support.transformer_files import WIDE, Feeds, Graph, quantized_dense


def network(rows: int = 4) -> tuple[onnx.ModelProto, Feeds]:
    """Splits an input of ``rows`` before a product on the machine, and takes elements after it;
    the outputs are a sequence of products, an empty sequence, and an array."""
    g = Graph()
    x = g.input("x", g.normal(1, rows, WIDE))
    parts = g.add("SplitToSequence", x, axis=1)
    last = g.add("SequenceAt", parts, g.constant(np.int64(-1)))
    product = quantized_dense(g, last, WIDE, WIDE)
    products = g.add("SequenceInsert", g.add("SequenceEmpty"), product)
    first = g.add("SequenceAt", parts, g.constant(np.int64(0)))
    products = g.add("SequenceInsert", products, g.add("Add", product, first))
    g.output(g.add("ConcatFromSequence", products, axis=1))
    model, feeds = g.made()
    empty = helper.make_node("SequenceErase", [parts, "zero"], ["few"])
    model.graph.node.append(empty)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0, np.int64), "zero"))
    for name in (products, "few"):
        item = helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None)
        model.graph.output.append(item)
    return model, feeds


@pytest.mark.parametrize("rows", [1, 4])
def test_sequences_are_lists_of_arrays(rows: int, tmp_path: Path) -> None:
    model, inputs = network(rows)
    wanted = exact_session(model.SerializeToString()).run(None, inputs)
    with Session(model, "pynq-extended") as session:
        outputs = session.run(inputs)
        assert session.program.layer_count == 1
        report = session.check(inputs)
        assert report.ok
        assert report.mismatches == 0
        assert report.elements == sum(item.size for item in flattened(outputs).values())
        session.save(tmp_path / "network.vta")
    with Session.load(tmp_path / "network.vta") as session:
        loaded = session.run(inputs)
    for found in (outputs, loaded):
        for value, expected in zip(found.values(), wanted, strict=True):
            assert isinstance(value, list) == isinstance(expected, list)
            assert len(value) == len(expected)
            for item, other in zip(value, expected, strict=True):
                np.testing.assert_allclose(item, other, atol=1e-5)


def test_each_element_is_compared() -> None:
    model, inputs = network()
    loaded = load_network(model, 1)
    same = {"few[0]": inputs["x"], "few[1]": inputs["x"]}
    assert _report(same, same, loaded).mismatches == 0
    other = {"few[0]": inputs["x"] + np.float32(1)}
    assert _report(other, same, loaded).mismatches == 2 * inputs["x"].size


def test_the_command_names_elements(tmp_path: Path) -> None:
    model, inputs = network()
    path = str(tmp_path / "network.onnx")
    onnx.save(model, path)
    with open(tmp_path / "in.npz", "wb") as file:
        write_arrays(file, inputs)
    files = ["--inputs", str(tmp_path / "in.npz"), "--outputs", str(tmp_path / "out.npz")]
    assert cli.invoke(["run", path, "--config", "pynq-extended", "--check", *files]) == 0
    names = [item.name for item in model.graph.output]
    found = np.load(tmp_path / "out.npz")
    assert set(found) == {
        names[0],
        *(f"{names[1]}[{number}]" for number in range(2)),
        *(f"few[{number}]" for number in range(3)),
    }
    np.testing.assert_array_equal(found["few[2]"], inputs["x"][:, 3:])
    assert cli.invoke(["show", path, "--config", "pynq-extended"]) == 0


def test_inputs_are_tensors() -> None:
    model, _ = network()
    given = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [1, 4])
    model.graph.input.append(given)
    with pytest.raises(ModelError, match="input s is not a tensor"):
        Session(model, "pynq-extended")
