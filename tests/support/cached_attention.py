"""Attention with caches to which a run appends rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

from amaranth_vta.quantize.integer_rows import INTEGER_OPSET, with_integer_rows

STATES = {"past_k": "next_k", "past_v": "next_v"}
WIDTH = 6  # not a multiple of the tiles of `tiny-extended`
MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[1, 2, {new}, {width}] q, float[1, 2, {new}, {width}] k, float[1, 2, {new}, {width}] v,
   float[1, 2, {past}, {width}] past_k, float[1, 2, {past}, {width}] past_v{input})
 => (float[1, 2, {new}, {width}] y{output}, float[1, 2, {past}, {width}] next_k,
     float[1, 2, {past}, {width}] next_v)
<float s = {{0.0517}}, float t = {{{share}}}, float u = {{0.0431}}, float one = {{1}},
 float large = {{-1e9}}, int8 z = {{0}}, int8 other = {{2}},
 int64[1] begin = {{{new}}}, int64[1] end = {{1000}}, int64[1] axis = {{2}}> {{
    all_k = Concat<axis = 2>(past_k, k)
    all_v = Concat<axis = 2>(past_v, v)
    next_k = Slice(all_k, begin, end, axis)
    next_v = Slice(all_v, begin, end, axis)
    qi = QuantizeLinear(q, s, z) qf = DequantizeLinear(qi, s, z)
    ki = QuantizeLinear({k}, s, {zero}) kf = DequantizeLinear(ki, s, {zero})
    vi = QuantizeLinear({v}, s, z) vf = DequantizeLinear(vi, s, z)
    turned = Transpose<perm = [0, 1, 3, 2]>(kf)
    scores = MatMul(qf, turned)
    si = QuantizeLinear(scores, s, z) sf = DequantizeLinear(si, s, z)
    {function}
    pi = QuantizeLinear(shares, t, z) pf = DequantizeLinear(pi, t, z)
    mixed = MatMul(pf, vf)
    yi = QuantizeLinear(mixed, u, z)
    y = DequantizeLinear(yi, u, z)
}}
"""


def attention(
    past: int = 7,
    new: int = 1,
    whole: bool = True,
    zero: str = "z",
    function: str = "shares = Softmax<axis = -1>(sf)",
    output: str = "",
    input: str = "",
    share: float = 0.00813,
    width: int = WIDTH,
) -> onnx.ModelProto:
    """Attention to ``past`` rows and ``new`` ones; unless ``whole``, to the last ``past``."""
    k, v = ("all_k", "all_v") if whole else ("next_k", "next_v")
    given = {"past": past, "new": new, "width": width, "k": k, "v": v, "zero": zero}
    names = {"function": function, "output": output, "input": input, "share": share}
    return parser.parse_model(MODEL.format(**names, **given))


def integer_attention(masked: bool = True, **options: Any) -> onnx.ModelProto:
    """`attention` whose Softmax is a graph of integers, of elements with a 1 in the mask."""
    return with_integer_rows(unconverted_attention(masked, **options))


def unconverted_attention(masked: bool = True, **options: Any) -> onnx.ModelProto:
    """`integer_attention` with the Softmax that is replaced."""
    if masked:
        options["input"] = ", int64[1, 8] mask"
        options["function"] = """m = Cast<to = 1>(mask) less = Sub(one, m)
            hidden = Mul(less, large) seen = Add(sf, hidden) shares = Softmax<axis = -1>(seen)"""
    model = attention(share=2**-7, **options)
    model.opset_import[0].version = INTEGER_OPSET
    return model


def projected(model: onnx.ModelProto, width: int) -> onnx.ModelProto:
    """``model`` with new keys and values that are results of products on the machine."""
    random = np.random.default_rng(width)
    graph, nodes = model.graph, []
    for name in "kv":
        weights = random.integers(-40, 40, (width, width)).astype(np.int8)
        graph.initializer.append(numpy_helper.from_array(weights, f"{name}_weights"))
        (given,) = [item for item in graph.input if item.name == name]
        given.name = f"{name}_in"
        for operator, inputs, output in (
            ("QuantizeLinear", [f"{name}_in", "s", "z"], f"{name}_0"),
            ("DequantizeLinear", [f"{name}_0", "s", "z"], f"{name}_1"),
            ("DequantizeLinear", [f"{name}_weights", "small", "z"], f"{name}_2"),
            ("MatMul", [f"{name}_1", f"{name}_2"], f"{name}_3"),
            ("QuantizeLinear", [f"{name}_3", "s", "z"], f"{name}_4"),
            ("DequantizeLinear", [f"{name}_4", "s", "z"], name),
        ):
            nodes.append(helper.make_node(operator, inputs, [output]))
    graph.initializer.append(numpy_helper.from_array(np.array(0.0123, np.float32), "small"))
    for node in reversed(nodes):
        graph.node.insert(0, node)
    return model


def appending(width: int = 8) -> onnx.ModelProto:
    """An attention whose new rows are results of layers, between products with a RowSoftmax."""
    return with_integer_rows(projected(unconverted_attention(width=width), width))


def random_feeds(
    new: int, runs: int, width: int = WIDTH, names: Sequence[str] = ("q", "k", "v")
) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(new)
    shape = (1, 2, new, width)
    return [
        {name: random.normal(0, 2, shape).astype(np.float32) for name in names} for _ in range(runs)
    ]


def appending_feeds(runs: int, width: int = 8) -> list[dict[str, Any]]:
    """Inputs of `appending`: rows, and masks of the eight places."""
    rng = np.random.default_rng(width)
    feeds = random_feeds(1, runs, width, ("q", "k_in", "v_in"))
    return [given | {"mask": rng.integers(0, 2, (1, 8))} for given in feeds]
