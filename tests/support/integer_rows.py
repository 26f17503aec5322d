"""Functions of rows between quantizations, written as integer graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta.quantize.integer_rows import with_integer_rows

Array = npt.NDArray[Any]


def qdq_rows(
    function: str,
    shape: tuple[int, ...],
    scales: tuple[float, float],
    dtype: type[np.integer] = np.int8,
    zeros: tuple[int, int] = (0, 0),
    seed: int = 0,
    mask: tuple[int, ...] = (),
) -> onnx.ModelProto:
    """A ``function`` of ``x``, integers, between DequantizeLinear and QuantizeLinear, whose result
    is ``y``. Functions are Softmax, of elements with a 1 in the input ``mask`` if that has a shape,
    LayerNormalization, and rms, composed of several operators.
    """
    rng = np.random.default_rng(seed)
    size = shape[-1]
    constants = {
        "x_scale": np.array(scales[0], np.float32),
        "y_scale": np.array(scales[1], np.float32),
        "x_zero": np.array(zeros[0], dtype),
        "y_zero": np.array(zeros[1], dtype),
        "gamma": rng.lognormal(0, 0.3, size).astype(np.float32),
        "beta": rng.normal(0, 0.2, size).astype(np.float32),
        "epsilon": np.array(1e-5, np.float32),
        "axes": np.array([-1]),
        "one": np.array(1, np.float32),
        "large": np.array(-1e9, np.float32),
    }
    if seed % 2:
        constants["gamma"] *= rng.choice([-1, 1], size).astype(np.float32)
    nodes = [helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["a"])]
    match function:
        case "Softmax" if mask:
            nodes += [
                helper.make_node("Cast", ["mask"], ["visible"], to=TensorProto.FLOAT),
                helper.make_node("Sub", ["one", "visible"], ["less"]),
                helper.make_node("Mul", ["less", "large"], ["hidden"]),
                helper.make_node("Add", ["a", "hidden"], ["seen"]),
                helper.make_node("Softmax", ["seen"], ["b"], name="rows"),
            ]
        case "Softmax":
            nodes.append(helper.make_node("Softmax", ["a"], ["b"], name="rows"))
        case "LayerNormalization":
            given = ["a", "gamma", "beta"]
            nodes.append(helper.make_node(function, given, ["b"], name="rows"))
        case _:
            nodes += [
                helper.make_node("Mul", ["a", "a"], ["square"]),
                helper.make_node("ReduceMean", ["square", "axes"], ["mean"]),
                helper.make_node("Add", ["mean", "epsilon"], ["above"]),
                helper.make_node("Sqrt", ["above"], ["root"]),
                helper.make_node("Div", ["a", "root"], ["quotient"]),
                helper.make_node("Mul", ["quotient", "gamma"], ["b"], name="rows"),
            ]
    nodes.append(helper.make_node("QuantizeLinear", ["b", "y_scale", "y_zero"], ["y"]))
    kind = TensorProto.INT8 if dtype == np.int8 else TensorProto.UINT8
    read = {name for node in nodes for name in node.input}
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    if mask:
        inputs.append(helper.make_tensor_value_info("mask", TensorProto.INT8, mask))
    graph = helper.make_graph(
        nodes,
        "rows",
        inputs,
        [helper.make_tensor_value_info("y", kind, shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in read],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def integer_rows(*arguments: Any, **options: Any) -> onnx.ModelProto:
    """The integer graph of `qdq_rows`."""
    return in_integers(qdq_rows(*arguments, **options))


def in_integers(model: onnx.ModelProto) -> onnx.ModelProto:
    """`with_integer_rows` of a ``model``, checked."""
    made = with_integer_rows(model)
    onnx.checker.check_model(made)
    return made


def random_rows(shape: tuple[int, ...], dtype: type[np.integer], seed: int) -> Array:
    """Rows of different means and deviations, some of them of equal elements."""
    rng = np.random.default_rng(seed)
    rows = int(np.prod(shape[:-1]))
    mean, deviation = rng.uniform(-40, 40, (rows, 1)), rng.uniform(1, 60, (rows, 1))
    deviation[rng.random((rows, 1)) < 0.02] = 0
    values = np.rint(rng.normal(mean, deviation, (rows, shape[-1])))
    limits = np.iinfo(dtype)
    middle = 128 if dtype == np.uint8 else 0
    return np.clip(values + middle, limits.min, limits.max).astype(dtype).reshape(shape)
