"""A decoder's machine gathers the row of a constant table at the place that the host computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.network_program import MoveWindows, RunHost
from tests.support.cached_attention import STATES, appending, appending_feeds

CONFIG = "tiny-extended"
ROWS, COLUMNS = 11, 24


def with_table(
    model: onnx.ModelProto,
    rows: int = ROWS,
    places: int = 1,
    outputs: tuple[str, ...] = ("picked",),
) -> onnx.ModelProto:
    """``model`` and a product, ``picked``, of rows of a table, whose places are the input
    ``at``."""
    rng = np.random.default_rng(3)
    constants: dict[str, Any] = {
        "table": rng.integers(-128, 128, (rows, COLUMNS), np.int8),
        "w": rng.integers(-128, 128, (COLUMNS, 5), np.int8),
        "scale": np.array(0.01, np.float32),
        "unit": np.array(1, np.float32),
        "zero": np.array(0, np.int8),
    }
    product = ("row_of", "scale", "zero", "w", "unit", "zero", "unit", "zero")
    shapes = {"row_of": (places, COLUMNS), "picked": (places, 5)}
    graph = model.graph
    graph.node.append(helper.make_node("Gather", ["table", "at"], ["row_of"], name="row"))
    graph.node.append(helper.make_node("QLinearMatMul", product, ["picked"]))
    graph.input.append(helper.make_tensor_value_info("at", TensorProto.INT64, (places,)))
    for name in outputs:
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.INT8, shapes[name]))
    for name, value in constants.items():
        graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def products(model: onnx.ModelProto) -> np.ndarray:
    """The product of each row of the table."""
    table, weights = (
        numpy_helper.to_array(item).astype(np.int64)
        for name in ("table", "w")
        for item in model.graph.initializer
        if item.name == name
    )
    sums = (table @ weights).astype(np.float32) * np.float32(0.01)
    return np.rint(sums).clip(-128, 127).astype(np.int8)


def is_on_host(session: Session) -> bool:
    """Whether the host gathers the row."""
    steps = session.program.steps
    return any(
        item.name == "row" for step in steps if isinstance(step, RunHost) for item in step.operators
    )


@pytest.mark.parametrize("device", ["functional", "rtl"])
def test_the_machine_gathers_a_row_at_any_place(device: str, tmp_path: Path) -> None:
    model = with_table(appending())
    (feeds,), wanted = appending_feeds(1), products(model)
    places = (*range(ROWS), -1, -ROWS)
    with Session(model, CONFIG, device, states=STATES) as session:
        assert not is_on_host(session)
        for place in places:
            assert session.check(feeds | {"at": np.array([place])}).mismatches == 0
            found = session.run(feeds | {"at": np.array([place])})["picked"]
            np.testing.assert_array_equal(found, wanted[[place]])
        with pytest.raises(ModelError, match="not as a place among 11 rows"):
            session.run(feeds | {"at": np.array([ROWS])})
        session.save(tmp_path / "gathered.vta")
    with Session.load(tmp_path / "gathered.vta") as loaded:
        found = loaded.run(feeds | {"at": np.array([7])})["picked"]
        np.testing.assert_array_equal(found, wanted[[7]])


@pytest.mark.parametrize(
    "options",
    [
        {"places": 2},
        {"rows": 50_000},  # 1.2 MB
        {"outputs": ("picked", "row_of")},
    ],
)
def test_the_host_gathers_other_rows(options: dict[str, Any]) -> None:
    model = with_table(appending(), **options)
    (feeds,), wanted = appending_feeds(1), products(model)
    places = np.arange(options.get("places", 1))
    with Session(model, CONFIG, states=STATES) as session:
        assert is_on_host(session)
        found = session.run(feeds | {"at": places})["picked"]
    np.testing.assert_array_equal(found, wanted[places])


def test_a_program_without_caches_remains_constant() -> None:
    graph = helper.make_graph([], "rows", [], [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with Session(with_table(model), CONFIG) as session:
        assert not any(isinstance(step, MoveWindows) for step in session.program.steps)
        assert session.check({"at": np.array([3])}).mismatches == 0
