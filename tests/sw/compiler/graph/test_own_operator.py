"""Operators that a user adds to the compiler of networks."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.layers.support.layer import Unsupported
from amaranth_vta.sw.compiler.graph.plan import placement

EXAMPLE = Path(__file__).parents[4] / "examples" / "own_operator.py"
DOMAIN = "example.magnitudes"


@pytest.fixture(autouse=True)
def _registered_for_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_LAYERS", dict(placement._LAYERS))


@pytest.fixture
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


@pytest.fixture
def schema() -> Any:
    """Register type inference for the results of an operator from another domain."""
    schema = onnx.defs.OpSchema(
        "Magnitude",
        DOMAIN,
        1,
        inputs=[onnx.defs.OpSchema.FormalParameter("x", "T")],
        outputs=[onnx.defs.OpSchema.FormalParameter("y", "T")],
        type_constraints=[("T", ["tensor(int8)"], "eight bits")],
    )

    def as_its_input(context: Any) -> None:
        context.set_output_type(0, context.get_input_type(0))

    schema.set_type_and_shape_inference_function(as_its_input)
    onnx.defs.register_schema(schema)
    yield
    onnx.defs.deregister_schema("Magnitude", 1, DOMAIN)


def images(batch: int = 3) -> Any:
    return np.random.default_rng(7).normal(0, 2, (batch, 20, 6, 5)).astype(np.float32)


def test_the_example_says_that_its_operator_runs_on_the_machine(
    capsys: pytest.CaptureFixture[str], example: dict[str, Any]
) -> None:
    example["main"]()
    out = capsys.readouterr().out
    # The report lists MACs for layers on the machine, and "host" for the others.
    assert re.search(r"^magnitude +Abs +0$", out, re.MULTILINE)
    assert re.search(r"^quantize +QuantizeLinear +host$", out, re.MULTILINE)
    assert "\n0 of 1,200 elements differ" in out


@pytest.mark.parametrize("config", ["tiny", "batch2", "pynq"])
def test_an_added_operator_equals_onnx_runtime(config: str, example: dict[str, Any]) -> None:
    with Session(example["network"](), config) as session:
        assert session.check({"x": images()}).ok
        placed = [layer.name for layer in session.layers if layer.placed_on == "machine"]
    assert "magnitude" in placed


@pytest.mark.usefixtures("schema")
def test_an_operator_may_be_of_any_domain(example: dict[str, Any]) -> None:
    placement.register_operator("Magnitude", DOMAIN)(example["magnitude"])
    model = example["network"]()
    with Session(model, "tiny") as session:
        expected = session.run({"x": images()})["y"]
    (node,) = [node for node in model.graph.node if node.op_type == "Abs"]
    node.op_type, node.domain = "Magnitude", DOMAIN
    model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    with Session(model, "tiny") as session:
        np.testing.assert_array_equal(session.run({"x": images()})["y"], expected)


def test_without_registration_the_operator_is_the_hosts(example: dict[str, Any]) -> None:
    del placement._LAYERS["", "Abs"]
    with Session(example["network"](), "tiny") as session:
        reasons = {layer.name: layer.reason for layer in session.layers}
    assert reasons["magnitude"] == "the machine has no Abs"


def test_an_operator_that_declines_runs_on_the_host_with_its_reason(
    example: dict[str, Any],
) -> None:
    @placement.register_operator("Abs")
    def decline(*_: Any) -> Any:
        raise Unsupported("not today")

    with Session(example["network"](), "tiny") as session:
        assert session.check({"x": images()}).ok
        reasons = {layer.name: layer.reason for layer in session.layers}
    assert reasons["magnitude"] == "not today"


def test_a_registration_takes_the_place_of_what_was_there(
    qdq: Callable[..., Any],
) -> None:
    seen = []

    @placement.register_operator("MaxPool")
    def pool(node: Any, tensors: Any) -> Any:
        seen.append(node.name)
        raise Unsupported("seen")

    model = qdq((1, 16, 4, 4)).qdq(2**-5).node("MaxPool", kernel_shape=[2, 2]).model()
    Session(model, "tiny").close()
    assert len(seen) == 1
