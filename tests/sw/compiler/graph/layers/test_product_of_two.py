"""Products of two computed tensors, as in attention: on the machine, and equal to ONNX Runtime in
every element, with any zero points, and for stacks of matrices and of rows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

from amaranth_vta.report.layer_report import LayerReport
from amaranth_vta.session import Session, random_inputs
from amaranth_vta.sw.runtime.array_file import FileLimitError
from amaranth_vta.sw.runtime.network.factors import FactorBias, FactorWeights
from amaranth_vta.sw.runtime.network.network_file import load_network
from amaranth_vta.sw.runtime.network.network_program import Step, ToMachine
from amaranth_vta.sw.runtime.network.validation import validate
from tests.support.quantized_forms import floats, qdq, static
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]
INT8, UINT8 = np.dtype(np.int8), np.dtype(np.uint8)


def product(
    first: tuple[int, ...],
    second: tuple[int, ...],
    dtypes: tuple[Any, Any] = (UINT8, UINT8),
    zeros: tuple[int, int, int] = (0, 0, 0),
    scale: float = 0.001,
) -> onnx.ModelProto:
    """A QLinearMatMul of inputs ``a`` and ``b`` with these shapes and the effective scale
    ``scale``.
    """
    kinds = [helper.np_dtype_to_tensor_dtype(dtype) for dtype in dtypes]
    constants: dict[str, Array] = {
        "one": np.array(1, np.float32),
        "scale": np.array(scale, np.float32),
        **{
            f"{name}_zero": np.array(zero, dtype)
            for name, zero, dtype in zip("aby", zeros, (*dtypes, dtypes[0]), strict=True)
        },
    }
    inputs = ("a", "scale", "a_zero", "b", "one", "b_zero", "one", "y_zero")
    graph = helper.make_graph(
        [helper.make_node("QLinearMatMul", inputs, ["y"], name="product")],
        "two",
        [
            helper.make_tensor_value_info("a", kinds[0], first),
            helper.make_tensor_value_info("b", kinds[1], second),
        ],
        [helper.make_tensor_value_info("y", kinds[0], None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def checked(
    model: onnx.ModelProto, config: str = "tiny-extended", device: str = "functional"
) -> LayerReport:
    """Compare the product with ONNX Runtime in two runs; return its layer report."""
    with Session(model, config, device) as session:
        for seed in range(2):
            report = session.check(numbers(session, seed))
            assert report.mismatches == 0
            assert np.unique(report.outputs["y"]).size > 2
        (layer,) = [layer for layer in session.layers if layer.name == "product"]
        return layer


def numbers(session: Session, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    found = {}
    for name, info in session.inputs.items():
        limits = np.iinfo(info.dtype)
        sizes = [size or 1 for size in info.shape]
        found[name] = rng.integers(limits.min, limits.max, sizes, info.dtype, endpoint=True)
    return found


def drawn(seed: int) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    stack = tuple(int(size) for size in rng.integers(1, 4, rng.integers(0, 3)))
    rows, summed, outputs = (int(size) for size in rng.integers(1, 40, 3))
    dtype = (INT8, UINT8)[seed % 2]
    limits = np.iinfo(dtype)
    zeros = [int(zero) for zero in rng.integers(limits.min, limits.max, 3, endpoint=True)]
    if rng.random() < 0.3:
        zeros[1] = 0 if dtype == INT8 else 128  # this zero point takes one term
    middle = limits.min + 128
    mean = (zeros[0] - middle) * (zeros[1] - middle) * summed
    scale = rng.uniform(50, 200) / (abs(mean) + 5500 * summed**0.5)
    model = product(
        (*stack, rows, summed),
        (*(stack if rng.random() < 0.8 else ()), summed, outputs),
        (dtype, dtype),
        (zeros[0], zeros[1], zeros[2]),
        scale,
    )
    return model


@each_seed(range(12), daily=4)
def test_a_product_is_exact(seed: int) -> None:
    assert checked(drawn(seed)).placed_on == "machine"


@each_seed(range(12, 15))
def test_a_product_is_exact_on_rtl(seed: int) -> None:
    assert checked(drawn(seed), device="rtl").placed_on == "machine"


@pytest.mark.parametrize("config", ["pynq-extended", "block32"])
def test_a_product_is_exact_with_larger_tiles(config: str) -> None:
    model = product((2, 3, 20, 50), (2, 3, 50, 40), (INT8, INT8), (3, 0, -6), 2**-10)
    layer = checked(model, config)
    assert layer.placed_on == "machine"
    assert layer.macs_per_run == 2 * 3 * 20 * 50 * 40


def test_without_requantize_scales_are_powers_of_two() -> None:
    model = product((3, 6, 20), (3, 20, 9), (INT8, INT8), (3, -7, 2), 2**-9)
    assert checked(model, "tiny").placed_on == "machine"
    model = product((3, 6, 20), (3, 20, 9), (INT8, INT8), (3, -7, 2), 0.003)
    assert "is not a power of two" in checked(model, "tiny").reason


def test_rows_are_whole_tiles_of_several_images() -> None:
    shapes = (INT8, INT8), (3, -7, 2), 2**-9
    assert checked(product((3, 6, 20), (3, 20, 9), *shapes), "batch2").placed_on == "machine"
    layer = checked(product((3, 7, 20), (3, 20, 9), *shapes), "batch2")
    assert layer.reason == "its 7 rows are not a multiple of BATCH, 2"


@pytest.mark.parametrize("shapes", [((8,), (8, 16)), ((3, 5, 8), (8,))])
def test_a_vector_is_a_matrix(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    assert checked(product(*shapes)).placed_on == "machine"


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (product((4, 8), (8, 4), (UINT8, INT8)), "one of its factors is int8 and the other uint8"),
    ],
)
def test_what_the_host_has_says_why(model: onnx.ModelProto, reason: str) -> None:
    layer = checked(model)
    assert layer.placed_on == "host"
    assert reason in layer.reason


def test_a_zero_point_takes_one_more_tile_of_outputs() -> None:
    """A ninth tile after eight; only the lowest zero point needs two terms, which double the
    work."""
    cycles = {}
    for zero in (128, 127, 0):
        model = product((2, 128, 64), (2, 64, 128), zeros=(9, zero, 5), scale=2e-4)
        layer = checked(model, "pynq-extended", "estimate")
        assert layer.cycles is not None
        cycles[zero] = layer.cycles
    assert 1.02 * cycles[128] < cycles[127] < 1.2 * cycles[128]
    assert cycles[0] > 1.5 * cycles[128]


def test_a_compiled_product_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "product.vta"
    with Session(drawn(1), "tiny-extended") as session:
        inputs = numbers(session, 3)
        expected = session.run(inputs)["y"]
        session.save(path)
        assert load_network(path).steps == session.program.steps
        layouts = [layer for layer in session.layers if layer.operator == "layout"]
        assert {layer.reason.partition(":")[0] for layer in layouts} == {
            "second factors as weights",
            "sums of second factors as bias",
        }
    with Session.load(path) as loaded:
        np.testing.assert_array_equal(loaded.run(inputs)["y"], expected)


@pytest.mark.parametrize(
    ("kind", "changes", "problem"),
    [
        (FactorWeights, {"terms": 0}, "has a size or count of 0"),
        (FactorWeights, {"zero_point": 128}, "has a zero point of 128"),
        (FactorWeights, {"block": 1 << 40}, "as weights"),
        (FactorBias, {"batch": -1}, "has a size or count of -1"),
        (FactorBias, {"rest": (1 << 31,)}, "has a constant of 2147483648"),
        (FactorBias, {"added": 0.5}, "has a constant of 0.5"),
    ],
)
def test_a_file_that_says_something_else_is_refused(
    kind: type[FactorWeights | FactorBias], changes: dict[str, Any], problem: str
) -> None:
    with Session(drawn(1), "tiny-extended") as session:
        program = session.program

    def changed(step: Step) -> Step:
        packing = step.operand.packing if isinstance(step, ToMachine) else None
        if not isinstance(step, ToMachine) or not isinstance(packing, kind):
            return step
        return replace(step, operand=replace(step.operand, packing=replace(packing, **changes)))

    validate(program)
    with pytest.raises((ValueError, FileLimitError), match=problem):
        validate(replace(program, steps=tuple(map(changed, program.steps))))


@pytest.mark.parametrize(
    "text",
    [
        "y = MatMul(a, w(3,8,6))",
        "y = MatMul(a, w(1,8,6))",
        "y = Add(a, w(3,5,8))",
        "b = MatMul(a, w(3,8,6)) y = MatMul(b, w(3,6,2))",
    ],
)
def test_constant_operands_are_packed_once(text: str, tmp_path: Path) -> None:
    """The host does not pack them again in each run."""
    model = static("a = MatMul(x, w(8,8))" + text, (3, 5, 8))
    path = tmp_path / "saved.vta"
    with Session(model, "tiny-extended") as session:
        inputs = random_inputs(session)
        report = session.check(inputs)
        session.save(path)
        written = [step for step in session.program.steps if isinstance(step, ToMachine)]
        on_host = {layer.operator for layer in session.layers if layer.placed_on == "host"}
    assert report.ok
    assert [step.operand.tensor for step in written] == ["x_QuantizeLinear_Output"]
    assert on_host <= {"QuantizeLinear", "DequantizeLinear"}
    with Session.load(path) as loaded:
        np.testing.assert_array_equal(loaded.run(inputs)["y"], report.outputs["y"])


@pytest.mark.parametrize("turned", [False, True])
def test_gemm_of_two_tensors_is_their_product(turned: bool) -> None:
    text = qdq("q", "x", 0.03) + "a = Reshape(q, i(6,12)) n = Neg(q)" + qdq("r", "n", 0.03)
    text += f"b = Reshape(r, i({'6,12' if turned else '12,6'}))"
    text += f"g = Gemm<transB={int(turned)}>(a, b)" + qdq("y", "g", 0.2)
    with Session(floats(text, (72,)), "tiny-extended") as session:
        assert session.check(random_inputs(session)).ok
        machine = [layer.operator for layer in session.layers if layer.placed_on == "machine"]
    assert "QLinearMatMul" in machine
