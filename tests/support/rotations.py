"""Rotary position embeddings between quantizations, in forms that exporters write."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser, shape_inference

from tests.support.integer_rows import in_integers

POSITIONS = 512
# How cosines `c` and sines `s` (positions, elements) follow from positions.
WAVES = {
    "constant": "c = Slice(cosines, zero, count, zero) s = Slice(sines, zero, count, zero)",
    "gathered": "c = Gather(cosines, places) s = Gather(sines, places)",
    "computed": """p = Cast<to = 1>(places) one = Constant<value_ints = [1]>()
        column = Unsqueeze(p, one) half = Mul(column, frequencies)
        angles = Concat<axis = -1>(half, half) cc = Cos(angles) ss = Sin(angles)
        c = Mul(cc, scaling) s = Mul(ss, scaling)""",
}
# How x', `turned`, is computed from `x`.
_HALVES = "negated = Neg(second) turned = Concat<axis = -1>(negated, first)"
ORDERS = {
    "split": f"first, second = Split<axis = -1>(x, sizes) {_HALVES}",
    "slices": f"""first = Slice(x, zero, half_size, last) second = Slice(x, half_size, size, last)
        {_HALVES}""",
    "gather": "reversed = Gather<axis = -1>(x, order) turned = Neg(reversed)",
}
SUMS = {
    "x first": "a = Mul(x, c) b = Mul(turned, s) y = Add(a, b)",
    "x last": "a = Mul(c, x) b = Mul(s, turned) y = Add(b, a)",
}


def qdq_rotation(
    shape: tuple[int, ...] = (1, 2, 3, 32),
    waves: str = "gathered",
    order: str = "split",
    total: str = "x first",
    scales: tuple[float, float] = (0.0517, 0.0613),
    zeros: tuple[int, int] = (0, 0),
    scaling: float = 1.0,
    dtype: str = "int8",
) -> onnx.ModelProto:
    """The rotation of ``xi``, integers of ``shape`` (…, positions, elements), to ``yi``. The input
    ``places`` has the positions.
    """
    size = shape[-1]
    frequencies = 1e4 ** (-np.arange(0, size, 2) / size)
    angles = np.tile(np.outer(np.arange(POSITIONS), frequencies), 2)
    constants: dict[str, Any] = {
        "cosines": (scaling * np.cos(angles)).astype(np.float32),
        "sines": (scaling * np.sin(angles)).astype(np.float32),
        "frequencies": frequencies.astype(np.float32),
        "scaling": np.array(scaling, np.float32),
        "sizes": np.array([size // 2, size // 2]),
        "zero": np.array([0]),
        "count": np.array(shape[-2:-1]),
        "half_size": np.array([size // 2]),
        "size": np.array([size]),
        "last": np.array([-1]),
        "order": np.arange(size)[::-1].copy(),
    }
    dimensions = ", ".join(map(str, shape))
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["": 18]>
        g ({dtype}[{dimensions}] xi, int64[{shape[-2]}] places) => ({dtype}[{dimensions}] yi)
        <float xs = {{{scales[0]}}}, float ys = {{{scales[1]}}},
         {dtype} xz = {{{zeros[0]}}}, {dtype} yz = {{{zeros[1]}}}> {{
            {WAVES[waves]}
            x = DequantizeLinear(xi, xs, xz)
            {ORDERS[order]}
            {SUMS[total]}
            yi = QuantizeLinear(y, ys, yz)
        }}""")
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items() if name in read
    )
    model = shape_inference.infer_shapes(model, strict_mode=True)
    onnx.checker.check_model(model)
    return model


def integer_rotation(*arguments: Any, **options: Any) -> onnx.ModelProto:
    """The integer graph of `qdq_rotation`."""
    return in_integers(qdq_rotation(*arguments, **options))


def random_inputs(model: onnx.ModelProto, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x, places = (
        [size.dim_value for size in item.type.tensor_type.shape.dim] for item in model.graph.input
    )
    rows = np.clip(rng.normal(0, 50, x).round(), -128, 127).astype(np.int8)
    return {"xi": rows, "places": rng.integers(0, POSITIONS, places)}
