"""Second factors that layers store stay on the machine if their columns fill tiles; other products,
and those with zero points, are exact too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from amaranth_vta.session import Session, random_inputs
from amaranth_vta.sw.runtime.network.network_program import RunLayer, ToHost

CONFIG = "pynq-extended"


def attention(
    groups: int, rows: int, columns: int, transposed: bool, zeros: tuple[int, int] = (0, 0)
) -> onnx.ModelProto:
    """A product of ``a`` by ``b`` and ``c``, which a layer concatenates."""
    inner, outer = (columns, rows) if transposed else (rows, columns)
    constants: dict[str, Any] = {
        "scale": np.array(0.002, np.float32),
        "one": np.array(1, np.float32),
        "a_zero": np.array(zeros[0], np.int8),
        "b_zero": np.array(zeros[1], np.int8),
        "y_zero": np.array(3, np.int8),
    }
    factor = "m"
    nodes = [helper.make_node("Concat", ["b", "c"], ["m"], axis=2)]
    if transposed:
        nodes.append(helper.make_node("Transpose", ["m"], ["t"], perm=[0, 1, 3, 2]))
        factor = "t"
    product = ("a", "scale", "a_zero", factor, "one", "b_zero", "one", "y_zero")
    nodes.append(helper.make_node("QLinearMatMul", product, ["y"], name="product"))
    shapes = {
        "a": (1, groups, 1, inner),
        "b": (1, groups, rows - 1, columns),
        "c": (1, groups, 1, columns),
    }
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info(name, 3, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("y", 3, (1, groups, 1, outer))],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def read_by_host(model: onnx.ModelProto) -> set[str]:
    """The tensors that the host reads in a checked run with random inputs."""
    random = np.random.default_rng(0)
    with Session(model, CONFIG) as session:
        for _ in range(2):
            inputs = {
                name: random.permutation(value.reshape(-1)).reshape(value.shape)
                for name, value in random_inputs(session).items()
            }
            assert session.check(inputs).mismatches == 0
        assert any(
            isinstance(step, RunLayer) and step.name == "product" for step in session.program.steps
        )
        return {step.tensor for step in session.program.steps if isinstance(step, ToHost)}


def projected(rows: int, transposed: bool, zero: int = 0) -> onnx.ModelProto:
    """A product of ``a`` by two heads of 16 columns, which a product computes from ``b``."""
    rng = np.random.default_rng(rows)
    constants: dict[str, Any] = {
        "scale": np.array(0.002, np.float32),
        "one": np.array(1, np.float32),
        "zero": np.array(0, np.int8),
        "a_zero": np.array(zero, np.int8),
        "w": rng.integers(-99, 99, (32, 32)).astype(np.int8),
        "heads": np.array([1, rows, 2, 16]),
    }
    perm = [0, 2, 3, 1] if transposed else [0, 2, 1, 3]
    projection = ("b", "scale", "zero", "w", "one", "zero", "one", "zero")
    product = ("a", "scale", "a_zero", "t", "one", "zero", "one", "zero")
    nodes = [
        helper.make_node("QLinearMatMul", projection, ["p"]),
        helper.make_node("Reshape", ["p", "heads"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=perm),
        helper.make_node("QLinearMatMul", product, ["y"], name="product"),
    ]
    kind = onnx.TensorProto.INT8
    inner, outer = (16, rows) if transposed else (rows, 16)
    shapes = {"a": (1, 2, 5, inner), "b": (1, rows, 32)}
    graph = helper.make_graph(
        nodes,
        "projected",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("y", kind, (1, 2, 5, outer))],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("rows", [5, 24, 32])
def test_heads_of_a_projection_do_not_pass_the_host(rows: int, transposed: bool) -> None:
    assert read_by_host(projected(rows, transposed)) == {"y"}


@pytest.mark.parametrize("transposed", [True, False])
def test_the_design_computes_the_same(transposed: bool) -> None:
    model = projected(5, transposed)
    with Session(model, "tiny-extended") as session, Session(model, "tiny-extended", "rtl") as rtl:
        inputs = random_inputs(session)
        want = session.check(inputs)
        assert want.mismatches == 0
        np.testing.assert_array_equal(rtl.run(inputs)["y"], want.outputs["y"])


@pytest.mark.parametrize("transposed", [True, False])
def test_heads_with_a_zero_point_pass_the_host(transposed: bool) -> None:
    assert read_by_host(projected(32, transposed, zero=3)) > {"y"}


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize(
    ("groups", "rows", "columns"),
    [(1, 16, 16), (3, 32, 16), (2, 16, 48), (5, 80, 32), (2, 24, 16), (3, 5, 48)],
)
def test_a_stored_factor_does_not_pass_the_host(
    groups: int, rows: int, columns: int, transposed: bool
) -> None:
    assert read_by_host(attention(groups, rows, columns, transposed)) == {"y"}


@pytest.mark.parametrize("transposed", [True, False])
def test_a_factor_whose_columns_do_not_fill_tiles_passes_the_host(transposed: bool) -> None:
    assert read_by_host(attention(2, 16, 24, transposed)) > {"y"}


@pytest.mark.parametrize("zeros", [(-128, 0), (0, 5), (-7, 9)])
def test_products_with_zero_points_are_exact(zeros: tuple[int, int]) -> None:
    assert read_by_host(attention(2, 32, 16, True, zeros)) > {"y"}
