"""Small transformers in the forms that tools write: `FILES`.

Float networks are quantized by ONNX Runtime. Forms that tools for language models write (operators
of com.microsoft, weights of four bits in blocks) are assembled here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from .quantized_files import DYNAMIC, quantized

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
_MICROSOFT = "com.microsoft"
# Heads, elements of each, and their product.
HEADS, EACH = 4, 16
WIDE = HEADS * EACH
_STATIC: dict[str, Any] = {
    **{"quant_format": "QDQ", "activation_type": "QUInt8", "weight_type": "QInt8"},
    **{"per_channel": True, "reduce_range": False, "calibrate_method": "MinMax"},
}
_STEP, _ZERO = np.float32(0.03), np.uint8(128)


@dataclass(frozen=True)
class File:
    """A model, made with inputs by ``make``; the machine computes the ``share`` of its MACs, or
    more."""

    make: Callable[[], tuple[onnx.ModelProto, Feeds]]
    share: float


class Graph:
    """A network under construction. Inputs are given with their values."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.feeds: Feeds = {}
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[str] = []

    def input(self, name: str, value: Array, *sizes: int | str) -> str:
        """An input with ``value``, and with its shape unless ``sizes`` are given."""
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        self._inputs.append(helper.make_tensor_value_info(name, kind, sizes or value.shape))
        self.feeds[name] = value
        return name

    def normal(self, *shape: int) -> Array:
        return self.rng.normal(size=shape).astype(np.float32)

    def constant(self, value: Any) -> str:
        name = f"constant{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weights(self, rows: int, columns: int) -> str:
        return self.constant(self.normal(rows, columns) * np.float32(rows**-0.5))

    def numbers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; returns the name of its result, or of all ``outputs``. Operators whose name
        begins with ``ms.`` are of com.microsoft."""
        number = len(self._nodes)
        names = [f"t{number}"] if outputs == 1 else [f"t{number}_{at}" for at in range(outputs)]
        domain = _MICROSOFT if operator.startswith("ms.") else ""
        kind = operator.removeprefix("ms.")
        label = f"{kind}{number}"
        node = helper.make_node(kind, inputs, names, name=label, domain=domain, **attributes)
        self._nodes.append(node)
        return names[0] if outputs == 1 else names

    def output(self, *names: str) -> None:
        self._outputs += names

    def made(self, opset: int = 17) -> tuple[onnx.ModelProto, Feeds]:
        outputs = [helper.make_empty_tensor_value_info(name) for name in self._outputs]
        for item in outputs:
            item.type.tensor_type.elem_type = TensorProto.FLOAT
        graph = helper.make_graph(self._nodes, "g", self._inputs, outputs, self._constants)
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(_MICROSOFT, 1)]
        version = 8 if opset < 21 else 11
        return helper.make_model(graph, opset_imports=opsets, ir_version=version), self.feeds


Linear = Callable[[Graph, str, int, int], str]


def dense(g: Graph, x: str, rows: int, columns: int) -> str:
    """A product of floats."""
    return str(g.add("MatMul", x, g.weights(rows, columns)))


def quantized_dense(g: Graph, x: str, rows: int, columns: int) -> str:
    """A product between quantizations, with a scale per output."""
    weights = g.constant(g.rng.integers(-127, 128, (rows, columns)).astype(np.int8))
    scales = g.constant(g.rng.uniform(0.001, 0.003, columns).astype(np.float32))
    return str(g.add("MatMul", held(g, x), g.add("DequantizeLinear", weights, scales, axis=1)))


def four_bit_dense(g: Graph, x: str, rows: int, columns: int, block: int = 0) -> str:
    """A product by weights of int4, with a scale per output, or per ``block`` of rows as well."""
    weights = g.constant(g.rng.integers(-8, 8, (rows, columns)).astype(ml_dtypes.int4))
    shape = (-(-rows // block), columns) if block else (columns,)
    scales = g.constant(g.rng.uniform(0.02, 0.05, shape).astype(np.float32))
    how = {"axis": 0, "block_size": block} if block else {"axis": 1}
    return str(g.add("MatMul", held(g, x), g.add("DequantizeLinear", weights, scales, **how)))


def packed_dense(
    g: Graph,
    x: str,
    rows: int,
    columns: int,
    bits: int = 4,
    block: int = 32,
    level: int = 4,
    zero_points: bool = True,
) -> str:
    """A MatMulNBits."""
    blocks = -(-rows // block)

    def random(*shape: int) -> str:
        return g.constant(g.rng.integers(0, 256, shape).astype(np.uint8))

    packed = random(columns, blocks, block * bits // 8)
    scales = g.constant(g.rng.uniform(0.02, 0.05, columns * blocks).astype(np.float32))
    zeros = [random(columns * -(-blocks * bits // 8))] if zero_points else []
    how = {"K": rows, "N": columns, "bits": bits, "block_size": block, "accuracy_level": level}
    return str(g.add("ms.MatMulNBits", x, packed, scales, *zeros, **how))


def held(g: Graph, x: str) -> str:
    """Quantize and dequantize."""
    parameters = g.constant(_STEP), g.constant(_ZERO)
    return str(g.add("DequantizeLinear", g.add("QuantizeLinear", x, *parameters), *parameters))


def _norm(g: Graph, x: str) -> str:
    one, zero = g.constant(np.ones(WIDE, np.float32)), g.constant(np.zeros(WIDE, np.float32))
    return str(g.add("LayerNormalization", x, one, zero))


def _rms_norm(g: Graph, x: str) -> str:
    """RMSNorm as exporters compose it."""
    mean = g.add("ReduceMean", g.add("Pow", x, g.constant(np.float32(2))), axes=[-1])
    root = g.add("Sqrt", g.add("Add", mean, g.constant(np.float32(1e-5))))
    return str(g.add("Mul", g.add("Div", x, root), g.constant(np.ones(WIDE, np.float32))))


def _heads(g: Graph, x: str, count: int = HEADS) -> str:
    cut = g.add("Reshape", x, g.numbers(0, 0, count, EACH))
    return str(g.add("Transpose", cut, perm=[0, 2, 1, 3]))


def _angles(positions: int) -> tuple[Array, Array]:
    """Cosines and sines of RoPE (positions, half of a head)."""
    turns = np.outer(np.arange(positions), 100.0 ** (-np.arange(EACH // 2) / (EACH // 2)))
    return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)


def _rotated(g: Graph, x: str, first: int, length: int) -> str:
    """RoPE as exporters compose it, for positions from ``first`` on."""
    cosines, sines = (g.constant(np.tile(item[first:], (1, 2))) for item in _angles(first + length))
    half, end, axis = EACH // 2, EACH, g.numbers(3)
    low = g.add("Slice", x, g.numbers(0), g.numbers(half), axis)
    high = g.add("Slice", x, g.numbers(half), g.numbers(end), axis)
    turned = g.add("Concat", g.add("Neg", high), low, axis=3)
    return str(g.add("Add", g.add("Mul", x, cosines), g.add("Mul", turned, sines)))


def _mixed(g: Graph, query: str, key: str, value: str, length: int) -> str:
    """Causal attention of heads; the last positions are the queries'."""
    scores = g.add("MatMul", query, g.add("Transpose", key, perm=[0, 1, 3, 2]))
    scores = g.add("Div", scores, g.constant(np.float32(EACH**0.5)))
    mask = np.triu(np.full((length, length), -30, np.float32), 1)
    if length > 1:
        scores = g.add("Add", scores, g.constant(mask))
    mixed = g.add("MatMul", g.add("Softmax", scores, axis=-1), value)
    joined = g.add("Transpose", mixed, perm=[0, 2, 1, 3])
    return str(g.add("Reshape", joined, g.numbers(0, 0, WIDE)))


def _with_past(g: Graph, new: str, what: str, past: int, heads: int = HEADS) -> str:
    given = g.input(f"past_{what}", g.normal(1, heads, past, EACH))
    joined = str(g.add("Concat", given, new, axis=2))
    g.output(joined)
    return joined


def encoder(length: int = 12) -> Graph:
    """One layer of an encoder, with the normalization after the additions and Gelu by Erf."""
    g = Graph()
    x = g.input("x", g.normal(1, length, WIDE))
    query, key, value = (_heads(g, dense(g, x, WIDE, WIDE)) for _ in range(3))
    scores = g.add("MatMul", query, g.add("Transpose", key, perm=[0, 1, 3, 2]))
    shares = g.add("Softmax", g.add("Mul", scores, g.constant(np.float32(EACH**-0.5))), axis=-1)
    joined = g.add("Transpose", g.add("MatMul", shares, value), perm=[0, 2, 1, 3])
    mixed = dense(g, g.add("Reshape", joined, g.numbers(0, 0, WIDE)), WIDE, WIDE)
    x = _norm(g, g.add("Add", x, mixed))
    y = dense(g, x, WIDE, 2 * WIDE)
    erf = g.add("Erf", g.add("Div", y, g.constant(np.float32(2**0.5))))
    gelu = g.add("Mul", g.add("Mul", y, g.add("Add", erf, g.constant(np.float32(1)))), _half(g))
    g.output(_norm(g, g.add("Add", x, dense(g, gelu, 2 * WIDE, WIDE))))
    return g


def _half(g: Graph) -> str:
    return g.constant(np.float32(0.5))


def gpt(past: int = 15) -> Graph:
    """One layer of a decoder like GPT-2, which appends one token to a cache of ``past``."""
    g = Graph()
    x = g.input("x", g.normal(1, 1, WIDE))
    normed = _norm(g, x)
    query, key, value = (_heads(g, dense(g, normed, WIDE, WIDE)) for _ in range(3))
    key, value = _with_past(g, key, "key", past), _with_past(g, value, "value", past)
    x = g.add("Add", x, dense(g, _mixed(g, query, key, value, 1), WIDE, WIDE))
    wide = dense(g, _norm(g, x), WIDE, 2 * WIDE)
    g.output(g.add("Add", x, dense(g, g.add("Relu", wide), 2 * WIDE, WIDE)))
    return g


def llama(past: int = 15, length: int = 1) -> Graph:
    """One layer of a decoder like Llama: RMSNorm, RoPE, two heads of keys and values, SwiGLU."""
    g, few = Graph(), HEADS // 2
    x = g.input("x", g.normal(1, length, WIDE))
    normed = _rms_norm(g, x)
    query = _rotated(g, _heads(g, dense(g, normed, WIDE, WIDE)), past, length)
    key = _rotated(g, _heads(g, dense(g, normed, WIDE, few * EACH), few), past, length)
    value = _heads(g, dense(g, normed, WIDE, few * EACH), few)
    if past:
        key = _with_past(g, key, "key", past, few)
        value = _with_past(g, value, "value", past, few)
    key, value = (_repeated(g, item, past + length) for item in (key, value))
    x = g.add("Add", x, dense(g, _mixed(g, query, key, value, length), WIDE, WIDE))
    normed = _rms_norm(g, x)
    gate, up = (dense(g, normed, WIDE, 2 * WIDE) for _ in range(2))
    gated = g.add("Mul", g.add("Mul", gate, g.add("Sigmoid", gate)), up)
    g.output(g.add("Add", x, dense(g, gated, 2 * WIDE, WIDE)))
    return g


def _repeated(g: Graph, x: str, length: int) -> str:
    """Each head of keys or values, for two heads of queries."""
    wide = g.add("Unsqueeze", x, g.numbers(2))
    wide = g.add("Expand", wide, g.numbers(1, HEADS // 2, 2, length, EACH))
    return str(g.add("Reshape", wide, g.numbers(1, HEADS, length, EACH)))


def quantize(make: Callable[[], Graph], dynamic: bool) -> tuple[onnx.ModelProto, Feeds]:
    """The float network of ``make``, quantized by ONNX Runtime."""
    g = make()
    model, feeds = g.made()
    samples = [{name: g.normal(*value.shape) for name, value in feeds.items()} for _ in range(4)]
    options = _STATIC | ({"quant_format": DYNAMIC} if dynamic else {})
    return quantized(onnx.shape_inference.infer_shapes(model), [feeds, *samples], options), feeds


def opset_23(length: int = 6) -> tuple[onnx.ModelProto, Feeds]:
    """RMSNormalization, RotaryEmbedding and Attention of opset 23."""
    g = Graph()
    x = g.input("x", g.normal(1, length, WIDE))
    normed = g.add("RMSNormalization", x, g.constant(np.ones(WIDE, np.float32)))
    query, key, value = (quantized_dense(g, normed, WIDE, WIDE) for _ in range(3))
    tables = [g.constant(item[None]) for item in _angles(length)]
    query, key = (g.add("RotaryEmbedding", item, *tables, num_heads=HEADS) for item in (query, key))
    heads = {"q_num_heads": HEADS, "kv_num_heads": HEADS, "is_causal": 1}
    mixed = quantized_dense(g, g.add("Attention", query, key, value, **heads), WIDE, WIDE)
    g.output(g.add("Add", x, mixed))
    return g.made(23)


def _embedded(g: Graph, tokens: str) -> str:
    """Rows of a table of 32 tokens, of four bits in blocks of 32."""
    table = g.constant(g.rng.integers(0, 16, (32, WIDE)).astype(ml_dtypes.uint4))
    scales = g.constant(g.rng.uniform(0.1, 0.3, (32, WIDE // 32)).astype(np.float32))
    how = {"gather_axis": 0, "quantize_axis": 1, "block_size": 32}
    zeros = g.constant(g.rng.integers(6, 10, (32, WIDE // 32)).astype(ml_dtypes.uint4))
    return str(g.add("ms.GatherBlockQuantized", table, tokens, scales, zeros, **how))


def _lengths(g: Graph, mask: str) -> tuple[str, str]:
    """The position of the last token of each sequence, and the number of positions."""
    last = g.add("Sub", g.add("ReduceSum", mask, g.numbers(1), keepdims=0), g.numbers(1))
    count = g.add("Gather", g.add("Shape", mask), g.constant(np.array(1, np.int64)))
    last, count = (g.add("Cast", item, to=TensorProto.INT32) for item in (last, count))
    return last, count


def generative(
    linear: Linear, past: int = 11, length: int = 1, opset: int = 21, is_open: bool = False
) -> tuple[onnx.ModelProto, Feeds]:
    """A decoder of operators of com.microsoft, as tools for language models write it."""
    g, few, total = Graph(), HEADS // 2, past + length
    sizes: dict[str, tuple[int | str, ...]] = {
        "input_ids": ("batch", "sequence"),
        "attention_mask": ("batch", "total"),
    }
    sizes |= {f"past_{what}": ("batch", few, "past", EACH) for what in ("key", "value")}
    values: Feeds = {
        "input_ids": g.rng.integers(0, 32, (1, length)),
        "attention_mask": np.ones((1, total), np.int64),
        **{f"past_{what}": g.normal(1, few, past, EACH) for what in ("key", "value")},
    }
    for name, given in values.items():
        g.input(name, given, *(sizes[name] if is_open else ()))
    x = _embedded(g, "input_ids")
    lengths, count = _lengths(g, "attention_mask")
    cache = ["past_key", "past_value"]
    one = g.constant(np.ones(WIDE, np.float32))
    normed = g.add("SimplifiedLayerNormalization", x, one, axis=-1, epsilon=1e-5)
    query, key, value = (linear(g, normed, WIDE, n * EACH) for n in (HEADS, few, few))
    tables = [g.constant(item) for item in _angles(32)]
    mixed, *present = g.add(
        "ms.GroupQueryAttention",
        *(query, key, value, *cache, lengths, count, *tables),
        **{"outputs": 3, "num_heads": HEADS, "kv_num_heads": few, "do_rotary": 1},
    )
    skip = g.add(
        "ms.SkipSimplifiedLayerNormalization",
        *(x, linear(g, mixed, WIDE, WIDE), one),
        outputs=4,
        epsilon=1e-5,
    )
    gate, up = (linear(g, skip[0], WIDE, 2 * WIDE) for _ in range(2))
    gated = g.add("Mul", g.add("ms.QuickGelu", gate, alpha=1.0), up)
    g.output(g.add("Add", skip[3], linear(g, gated, 2 * WIDE, WIDE)), *present)
    return g.made(opset)


def whole_attention(
    dynamic: bool = True, mask: int = 0, past: int = 0, length: int = 8, **attributes: int
) -> tuple[onnx.ModelProto, Feeds]:
    """A QAttention of a dynamically quantized input, or an Attention of dequantized factors. The
    ``mask`` has this rank."""
    g, total = Graph(), past + length
    x = g.input("x", g.normal(1, length, WIDE))
    # Seven bits: without VNNI, ONNX Runtime saturates sums of two products of uint8 and int8.
    weights = g.constant(g.rng.integers(-64, 64, (WIDE, 3 * WIDE)).astype(np.int8))
    scale, zero = g.constant(np.float32(0.004)), g.constant(np.int8(0))
    bias = g.constant(g.normal(3 * WIDE) * np.float32(0.1))
    masks = [np.array([total - 2]), np.arange(total)[None] < total - 2]
    masks.append(g.rng.integers(0, 2, (1, length, total)))
    masked = g.input("mask", masks[mask - 1].astype(np.int32)) if mask else ""
    cache = g.input("past", g.normal(2, 1, HEADS, past, EACH)) if past else ""
    how = {"outputs": 2 if past else 1, "num_heads": HEADS, **attributes}
    if dynamic:
        integers, step, point = g.add("DynamicQuantizeLinear", x, outputs=3)
        given = (integers, weights, bias, step, scale, masked, point, zero, cache)
        results = g.add("ms.QAttention", *given, **how)
    else:
        real = g.add("DequantizeLinear", weights, scale, zero)
        results = g.add("ms.Attention", held(g, x), real, bias, masked, cache, **how)
    g.output(*(results if past else [results]))
    return g.made()


def single(linear: Linear, rows: int = WIDE, opset: int = 17) -> tuple[onnx.ModelProto, Feeds]:
    """One product."""
    g = Graph()
    g.output(linear(g, g.input("x", g.normal(2, 3, rows)), rows, 48))
    return g.made(opset)


def in_float16(model: onnx.ModelProto, feeds: Feeds) -> tuple[onnx.ModelProto, Feeds]:
    """``model`` with float16 in place of float32, in inputs, constants and outputs."""
    for item in model.graph.initializer:
        if item.data_type == TensorProto.FLOAT:
            half = numpy_helper.to_array(item).astype(np.float16)
            item.CopyFrom(numpy_helper.from_array(half, item.name))
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    real = np.dtype(np.float32)
    halves = {name: item.astype("f2") for name, item in feeds.items() if item.dtype == real}
    return model, feeds | halves


def _files() -> dict[str, File]:
    made: dict[str, File] = {}
    networks: dict[str, Callable[[], Graph]] = {
        "encoder": encoder,
        "a longer encoder": partial(encoder, 33),
        "decoder like GPT-2": gpt,
        "decoder like Llama": llama,
        "prefill of a decoder like Llama": partial(llama, 0, 16),
    }
    for name, make in networks.items():
        made[f"{name}, QDQ"] = File(partial(quantize, make, False), 1)
        made[f"{name}, dynamic"] = File(partial(quantize, make, True), 0.8)
    made["opset 23"] = File(opset_23, 0.9)
    for name, linear in {"int8": quantized_dense, "four bits": packed_dense}.items():
        made[f"com.microsoft, {name}"] = File(partial(generative, linear), 0.9)
        made[f"com.microsoft, {name}, prefill"] = File(partial(generative, linear, 0, 7), 0.9)
    made["QAttention"] = File(whole_attention, 0.9)
    made["Attention of dequantized factors"] = File(partial(whole_attention, False), 0.9)
    made["int4 per channel"] = File(partial(single, four_bit_dense, opset=21), 1)
    for block in (16, 64):
        by_blocks = partial(four_bit_dense, block=block)
        made[f"int4 in blocks of {block}"] = File(partial(single, by_blocks, 64, 21), 1)
    return made


FILES = _files()
