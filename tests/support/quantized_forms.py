"""Small quantized files, one for each form that quantized networks take: `FORMS`.

The float networks are written as text. ONNX Runtime's quantizer quantizes most of them; forms that
it never writes are assembled here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper, parser

from .few_bits import FewBits, small_channel
from .quantized_files import quantized

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
IMAGE: Shape = (1, 8, 10, 10)
_OPTIONS: dict[str, Any] = {
    **{"quant_format": "QDQ", "activation_type": "QUInt8", "weight_type": "QInt8"},
    **{"per_channel": False, "reduce_range": False, "calibrate_method": "MinMax"},
}


# Integers of few bits: least, greatest, and type.
_SMALL: dict[str, tuple[int, int, Any]] = {
    "int4": (-8, 7, ml_dtypes.int4),
    "uint4": (0, 15, ml_dtypes.uint4),
    "int2": (-2, 1, ml_dtypes.int2),
    "uint2": (0, 3, ml_dtypes.uint2),
}


@dataclass(frozen=True)
class Form:
    """A file, created by ``make``. The machine computes all of its MACs; the host runs no operators
    except ``host``, conversions and views.
    """

    make: Callable[[], onnx.ModelProto]
    host: frozenset[str] = frozenset()


def _constant(kind: str, numbers: Sequence[float], rng: np.random.Generator) -> Array:
    """A constant in a network's text. Arguments are a shape, except for the values of c, i, z, n,
    o, h.

    ``w(8, 3, 3, 3)`` is a random float weight, ``v(8)`` a vector of positive floats, ``c(0.5)`` a
    scalar, ``i(1, -1)`` an int64 vector; ``z(120)`` is a uint8 zero point, ``n(0)`` an int8 and
    ``h(0)`` an int16 one; ``k(8, 3)``, ``u(8, 3)`` and ``j(8)`` are random int8, uint8 and int32;
    ``o(1, 0)`` are booleans; ``small(8)`` is a vector of floats about 0.01, ``half(8)`` the same in
    float16. ``int4(8, 3)`` is random int4, but ``int4(1)`` is near the middle of the range;
    likewise the other types of `_SMALL`.
    """
    shape = [int(number) for number in numbers]
    if kind in _SMALL:
        low, high, dtype = _SMALL[kind]
        if shape == [1]:
            return np.array([(low + high) // 2 + 2], dtype)
        return rng.integers(low, high + 1, shape).astype(dtype)
    match kind:
        case "c":
            return np.array(numbers[0], np.float32)
        case "i":
            return np.array(shape, np.int64)
        case "z" | "n":
            return np.array(shape[0], np.uint8 if kind == "z" else np.int8)
        case "o":
            return np.array(shape, np.bool_)
        case "h":
            return np.array(shape[0], np.int16)
        case "w":
            return rng.normal(0, (int(np.prod(shape[1:])) or 1) ** -0.5, shape).astype(np.float32)
        case "v":
            return rng.uniform(0.3, 1.5, shape).astype(np.float32)
        case "small" | "half":
            return rng.uniform(0.003, 0.02, shape).astype("f4" if kind == "small" else "f2")
        case "k":
            return rng.integers(-100, 100, shape).astype(np.int8)
        case "u":
            return rng.integers(20, 220, shape).astype(np.uint8)
        case _:
            return rng.integers(-900, 900, shape).astype(np.int32)


def floats(text: str, shape: Shape = IMAGE, opset: int = 17) -> onnx.ModelProto:
    """A float network from x, of ``shape``, to y. For constants in ``text`` see `_constant`."""
    found: dict[str, Array] = {}

    def named(match: re.Match[str]) -> str:
        kind, numbers = match[1], [float(item) for item in match[2].split(",")]
        name = f"{kind}{len(found)}"
        found[name] = _constant(kind, numbers, np.random.default_rng(len(found)))
        return name

    body = re.sub(rf"\b([wvciznkujoh]|small|half|{'|'.join(_SMALL)})\(([-\d., e]+)\)", named, text)
    given = ", ".join(map(str, shape))
    nodes = parser.parse_graph(f"network (float[{given}] x) => (float y) {{ {body} }}")
    for number, node in enumerate(nodes.node):
        node.name = node.name or f"{node.op_type}{number}"
    nodes.initializer.extend(numpy_helper.from_array(value, name) for name, value in found.items())
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    version = 8 if opset < 21 else 10 if opset < 25 else 13
    model = helper.make_model(nodes, opset_imports=opsets, ir_version=version)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for node in model.graph.node:
        _clear_shapes(node)
    return model


def _clear_shapes(node: onnx.NodeProto) -> None:
    """Remove shapes of float inputs and outputs of subgraphs in ``node``; the text states none."""
    for attribute in node.attribute:
        for item in (*attribute.g.input, *attribute.g.output):
            if item.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
                item.type.tensor_type.ClearField("shape")
        for inner in attribute.g.node:
            _clear_shapes(inner)


def static(text: str, shape: Shape = IMAGE, opset: int = 17, **options: Any) -> onnx.ModelProto:
    """The network of ``text``, quantized with ``options`` of `quantize_static` or, if their names
    are capitalized, of its ``extra_options``.
    """
    return _quantized(floats(text, shape, opset), shape, options)


def _quantized(model: onnx.ModelProto, shape: Shape, options: dict[str, Any]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    samples = [{"x": rng.normal(0, 1, shape).astype(np.float32)} for _ in range(4)]
    chosen = dict(_OPTIONS)
    extra: dict[str, Any] = {}
    for name, value in options.items():
        (extra if name[0].isupper() else chosen)[name] = value
    model = onnx.shape_inference.infer_shapes(model)
    return quantized(model, samples, {**chosen, "extra_options": extra})


CONV = "y = Conv<pads=[1,1,1,1]>(x, w(8,8,3,3), v(8))"
# Precedes the operator under test, so that its operand is the result of a layer on the machine.
FIRST = "a = Conv(x, w(8,8,1,1), v(8))"
LAST = "y = Conv(z, w(4,8,1,1))"
HALVES = FIRST + "b = Conv(x, w(8,8,1,1), v(8))"


def _weights() -> dict[str, Form]:
    """Weights with zero points, nearly dead channels, and ways to store bias and parameters."""
    wide: dict[str, Any] = {"weight_type": "QUInt8", "WeightSymmetric": False}
    lines: dict[str, Callable[[], onnx.ModelProto]] = {
        "weights of uint8": partial(static, CONV, **wide),
        "weights of uint8, per channel": partial(static, CONV, per_channel=True, **wide),
        "weights of int8 with zero points": partial(static, CONV, WeightSymmetric=False),
        "weights of uint8 in QOperator form": partial(
            static, CONV, quant_format="QOperator", **wide
        ),
        "depthwise weights with zero points": partial(
            static, "y = Conv<group=8>(x, w(8,1,3,3), v(8))", **wide
        ),
        "a matrix with zero points": partial(
            static, "y = Gemm<transB=1>(x, w(10,24), v(10))", (3, 24), **wide
        ),
        "QuantizeBias=False": partial(static, CONV, QuantizeBias=False),
        "DedicatedQDQPair": partial(
            static, FIRST + "b = Sigmoid(a) y = Mul(a, b)", DedicatedQDQPair=True
        ),
        "AddQDQPairToWeight": partial(static, CONV, AddQDQPairToWeight=True),
        "ActivationSymmetric, int8": partial(
            static, CONV, ActivationSymmetric=True, activation_type="QInt8"
        ),
        "reduce_range": partial(static, CONV, reduce_range=True),
        "weights in Constant nodes": _weights_in_nodes,
        **{f"a channel of scale {scale:g}": partial(_dead, scale) for scale in (1e-9, 1e-12)},
        **{f"a channel of scale {scale:g}": partial(_dead, scale) for scale in (1e-35, 0)},
    }
    for name, bias in (
        ("in float", " bias = Identity(v(8)) "),
        ("of another scale", matrix("bias", "j(8)", "c(0.000123)")),
        ("of int8", matrix("bias", "k(8)", "c(0.004)")),
        ("of a scale per channel", matrix("bias", "j(8)", "v(8)")),
    ):
        text = qdq("a", "x", 0.03) + matrix("m", "k(8,8,3,3)") + bias
        text += "b = Conv(a, m, bias)" + qdq("y", "b", 0.05)
        lines[f"a bias {name}"] = partial(floats, text)
    return {name: Form(make) for name, make in lines.items()}


def _weights_in_nodes() -> onnx.ModelProto:
    """Weights in Constant nodes, as exporters write them: unless the file is preprocessed, the
    quantizer treats them as activations and adds QuantizeLinear after them.
    """
    model = floats(CONV)
    constants = [
        helper.make_node("Constant", [], [item.name], name=item.name, value=item)
        for item in model.graph.initializer
    ]
    nodes = [*constants, *model.graph.node]
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.node.extend(nodes)
    return _quantized(model, IMAGE, {})


def _dead(scale: float) -> onnx.ModelProto:
    """A Conv with a nearly dead channel: its weights have this ``scale``, and its bias is as large
    as in other channels.
    """
    text = qdq("a", "x", 0.03) + matrix("m", "k(8,8,3,3)", "v(8)") + matrix("o", "j(8)", "v(8)")
    model = floats(text + "b = Conv(a, m, o)" + qdq("y", "b", 0.05))
    weights, bias = (item for item in model.graph.initializer if item.name.startswith("v"))
    scales = np.full(8, 0.01, np.float32)
    scales[3] = scale
    for item, values in ((weights, scales), (bias, scales * np.float32(0.03))):
        item.CopyFrom(numpy_helper.from_array(values.astype(np.float32), item.name))
    return model


def _dimensions() -> dict[str, Form]:
    line, rows = (1, 8, 20), (3, 5, 24)
    lines: dict[str, tuple[str, Shape]] = {
        "Conv1d": ("y = Conv<pads=[1,1]>(x, w(12,8,3), v(12))", line),
        "Conv1d, dilated and grouped": ("y = Conv<group=2,dilations=[2]>(x, w(6,4,3))", line),
        "Conv1d, taps far apart": (
            "a = Conv(x, w(8,8,1)) y = Conv<dilations=[1024],pads=[2048,0]>(a, w(8,8,3), v(8))",
            (1, 8, 3000),
        ),
        "Conv1d, depthwise, taps far apart": (
            "a = Conv(x, w(8,8,1)) y = Conv<dilations=[2048],pads=[2048,0],group=8>(a, w(8,1,2))",
            (1, 8, 4096),
        ),
        "poolings of sequences": (
            "a = MaxPool<kernel_shape=[2],strides=[2]>(x) b = Conv(a, w(8,8,3), v(8))"
            "y = AveragePool<kernel_shape=[3]>(b)",
            line,
        ),
        "MatMul and Add": ("a = MatMul(x, w(24,10)) y = Add(a, v(10))", rows),
        "the bias first": ("a = MatMul(x, w(24,10)) y = Add(v(10), a)", rows),
    }
    return {name: Form(partial(static, *given)) for name, given in lines.items()}


def _elements() -> dict[str, Form]:
    lines = {
        "Add with a scalar": "y = Add(a, c(0.3))",
        "Sub with a scalar": "y = Sub(a, c(0.3))",
        "a scalar less a tensor": "y = Sub(c(0.3), a)",
        "Mul with a scalar": "y = Mul(a, c(0.125))",
        "Div by a scalar": "y = Div(a, c(5.6568))",
        "Add per channel": "y = Add(a, v(8,1,1))",
        "Mul per channel": "y = Mul(a, v(8,1,1))",
        "Div per channel": "y = Div(a, v(8,1,1))",
        "BatchNormalization by itself": "b = Relu(a)"
        "y = BatchNormalization(b, v(8), v(8), v(8), v(8))",
        "Sum of two": "b = Conv(x, w(8,8,1,1)) y = Sum(a, b)",
        "Mul of two": "b = Conv(x, w(8,8,1,1)) c = Sigmoid(b) y = Mul(a, c)",
        "a gate per channel": "b = GlobalAveragePool(a) c = Conv(b, w(8,8,1,1)) d = Sigmoid(c)"
        "y = Mul(a, d)",
        "Max of two": "b = Conv(x, w(8,8,1,1)) y = Max(a, b)",
        "border averages": "y = AveragePool<kernel_shape=[3,3],pads=[1,1,1,1]>(a)",
        "border averages, rounded up": "y = AveragePool<kernel_shape=[3,3],strides=[2,2],"
        "ceil_mode=1>(a)",
        "border averages, rounded up, of padding too": "y = AveragePool<kernel_shape=[3,3],"
        "strides=[2,3],pads=[1,1,0,1],ceil_mode=1,count_include_pad=1>(a)",
    }
    return {name: Form(partial(static, _between(text))) for name, text in lines.items()}


def _between(text: str) -> str:
    """``text``, which computes y from a, between two convolutions. Their inputs are quantized even
    if the quantizer does not support the operators of ``text``.
    """
    return FIRST + text.replace("y =", "z =") + LAST


def _moves() -> dict[str, Form]:
    lines = {
        "ConvTranspose": "y = ConvTranspose<strides=[2,2]>(x, w(8,6,2,2), v(6))",
        "ConvTranspose, dilated": "y = ConvTranspose<dilations=[2,2],pads=[1,1,1,1]>"
        "(x, w(8,6,3,3), v(6))",
        "ConvTranspose, grouped": "y = ConvTranspose<group=2,strides=[2,2]>(x, w(8,3,3,3))",
        "Split": FIRST + "b, c = Split<axis=1>(a, i(4,4)) d = Conv(b, w(4,4,1,1)) y = Add(c, d)",
        "Slice": FIRST + "b = Slice(a, i(1,2), i(9,8), i(2,3)) y = Conv(b, w(4,8,3,3))",
        "Transpose to channels last and back": "a = Transpose<perm=[0,2,3,1]>(x)"
        "b = Transpose<perm=[0,3,1,2]>(a) c = Conv(b, w(8,8,1,1)) d = Transpose<perm=[0,2,3,1]>(c)"
        "e = Relu(d) f = Transpose<perm=[0,3,1,2]>(e) y = Conv(f, w(4,8,1,1))",
        "Reshape": FIRST + "b = Reshape(a, i(1,8,5,20)) y = Conv(b, w(4,8,3,3))",
        "Flatten before a matrix": FIRST + "b = Flatten(a) y = Gemm<transB=1>(b, w(5,800))",
        "Identity and Dropout": FIRST + "b = Identity(a) c, m = Dropout(b) y = Conv(c, w(4,8,3,3))",
        "BatchNormalization behind Conv": FIRST
        + "y = BatchNormalization(a, v(8), v(8), v(8), v(8))",
        "a shuffle": HALVES + "c = Concat<axis=1>(a, b) d = Reshape(c, i(1,2,8,10,10))"
        "e = Transpose<perm=[0,2,1,3,4]>(d) f = Reshape(e, i(1,16,10,10)) y = Conv(f, w(4,16,1,1))",
        "Concat": HALVES + "c = Concat<axis=1>(a, b, a) y = Conv(c, w(4,24,1,1))",
        "Pad": FIRST + "b = Pad(a, i(0,0,1,1,0,0,1,1)) y = MaxPool<kernel_shape=[2,2]>(b)",
        "Resize": FIRST + "r = Constant<value_floats=[1.0,1.0,2.0,2.0]>() y = Resize<mode="
        '"nearest",coordinate_transformation_mode="asymmetric",nearest_mode="floor">(a, , r)',
    }
    return {name: Form(partial(static, text)) for name, text in lines.items()}


def _matrices() -> dict[str, Form]:
    """Matrix products in other notations, which the quantizer leaves in float."""
    einsum = 'b = Einsum<equation="{}">(a, {})' + qdq("y", "b", 0.2)
    matrices, stack = (2, 5, 24), (2, 3, 5, 24)
    lines: dict[str, tuple[str, Shape]] = {
        "Einsum by a matrix": (
            matrix("m", "k(24,8)") + einsum.format("bij,jk->bik", "m"),
            matrices,
        ),
        "Einsum of heads": (einsum.format("bhid,bhjd->bhij", "a"), stack),
        "Gemm of two tensors": ("b = Gemm<transB=1>(a, a)" + qdq("y", "b", 0.2), (6, 24)),
        "a stack of constant matrices": (
            matrix("m", "k(3,24,8)") + "b = MatMul(a, m)" + qdq("y", "b", 0.2),
            stack,
        ),
    }
    forms = {}
    for name, (text, shape) in lines.items():
        make = partial(floats, qdq("a", "x", 0.03) + text, shape)
        forms[name] = Form(make, frozenset({"Transpose"}))
    return forms


def _functions() -> dict[str, Form]:
    """Functions of one tensor, in all notations."""
    erf = "b = Div(a, c(1.4142135)) c = Erf(b) d = Add(c, c(1)) e = Mul(a, d) y = Mul(e, c(0.5))"
    tanh = (
        "b = Pow(a, c(3)) c = Mul(b, c(0.044715)) d = Add(a, c) e = Mul(d, c(0.7978846))"
        "f = Tanh(e) g = Add(f, c(1)) h = Mul(a, g) y = Mul(h, c(0.5))"
    )
    lines = {
        **{
            name: f"y = {name}(a)"
            for name in ("Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "LeakyRelu", "Elu", "Erf")
        },
        **{name: f"y = {name}(a)" for name in ("Exp", "Softplus", "Softsign", "Mish", "Selu")},
        **{name: f"y = {name}(a)" for name in ("Abs", "Neg", "Floor", "Sin", "Celu", "Gelu")},
        "Gelu by Erf": erf,
        "Gelu by Tanh": tanh,
        "Gelu, approximate": 'y = Gelu<approximate="tanh">(a)',
        "SiLU": "b = Sigmoid(a) y = Mul(a, b)",
        "HardSwish by HardSigmoid": "b = HardSigmoid<alpha=0.1666667,beta=0.5>(a) y = Mul(a, b)",
        "HardSwish by Clip": "b = Add(a, c(3)) d = Clip(b, c(0), c(6)) e = Mul(a, d)"
        "y = Div(e, c(6))",
        "Sqrt": "b = Relu(a) y = Sqrt(b)",
        "Log": "b = Abs(a) d = Add(b, c(1)) y = Log(d)",
        "a square": "y = Mul(a, a)",
        "a power": "b = Abs(a) y = Pow(b, c(1.5))",
        "Reciprocal": "b = Exp(a) y = Reciprocal(b)",
        "a composition": "b = Tanh(a) d = Mul(b, c(3)) e = Exp(d) f = Sqrt(e) y = Sub(f, a)",
        "PRelu per channel": "y = PRelu(a, v(8,1,1))",
    }
    forms = {name: Form(partial(static, _between(text), opset=20)) for name, text in lines.items()}
    # The quantizer cannot infer the type of their results, and leaves their consumers in float.
    for name in ("com.microsoft.FastGelu(d)", "com.microsoft.QuickGelu(d)"):
        text = qdq("a", "x", 0.03) + "b = Conv(a, m)" + qdq("d", "b", 0.05)
        text += f"e = {name}" + qdq("y", "e", 0.04)
        forms[name] = Form(partial(floats, matrix("m", "k(8,8,1,1)") + text))
    text = qdq("a", "x", 0.03) + "b = MatMul(a, m)" + qdq("d", "b", 0.05)
    text += "e = com.microsoft.BiasGelu(d, v(10))" + qdq("y", "e", 0.04)
    # A nonlinear function that differs per channel.
    forms["BiasGelu"] = Form(
        partial(floats, matrix("m", "k(24,10)") + text, (3, 24)), frozenset({"BiasGelu"})
    )
    return forms


def qdq(result: str, source: str, scale: float, zero: int = 120) -> str:
    """Quantization to uint8 and back."""
    given = f"c({scale}), z({zero})"
    integers = f"{result}_integers"
    return (
        f" {integers} = QuantizeLinear({source}, {given})"
        f" {result} = DequantizeLinear({integers}, {given}) "
    )


def matrix(name: str, values: str, scale: str = "c(0.01)") -> str:
    """Weights of int8."""
    return f" {name} = DequantizeLinear<axis=0>({values}, {scale}) "


def _attention() -> dict[str, Form]:
    def heads(scores: str = "") -> str:
        def part(name: str, perm: str) -> str:
            return (
                f"{name}0 = MatMul(x, w(16,16)) {name}1 = Add({name}0, v(16))"
                f"{name}2 = Reshape({name}1, i(1,12,2,8))"
                f"{name}3 = Transpose<perm={perm}>({name}2)"
            )

        return (
            part("q", "[0,2,1,3]")
            + part("k", "[0,2,3,1]")
            + part("l", "[0,2,1,3]")
            + "s0 = MatMul(q3, k3) s1 = Div(s0, c(2.828427))"
            + scores
            + "p = Softmax(s1) m = MatMul(p, l3) t = Transpose<perm=[0,2,1,3]>(m)"
            "r = Reshape(t, i(1,12,16)) o = MatMul(r, w(16,16)) f = Add(o, v(16))"
        )

    shape, kept = (1, 12, 16), frozenset({"Softmax", "Transpose", "LayerNormalization", "Add"})
    norm = "h = Add(x, f) y = LayerNormalization(h, v(16), v(16))"
    texts = {"attention": heads() + "y = Relu(f)", "attention and a norm": heads() + norm}
    kinds: dict[str, dict[str, Any]] = {
        "": {},
        " of int8": {"activation_type": "QInt8"},
        " of uint8 weights": {"weight_type": "QUInt8", "WeightSymmetric": False},
        " in QOperator form": {"quant_format": "QOperator"},
    }
    return {
        name + kind: Form(partial(static, text, shape, **options), kept | {"QLinearSoftmax"})
        for name, text in texts.items()
        for kind, options in kinds.items()
    }


def _operators() -> dict[str, Form]:
    """Operators of com.microsoft that the quantizer writes, and its own quantizations."""
    form: dict[str, Any] = {"quant_format": "QOperator"}
    lines = {
        "QLinearAdd": HALVES + "y = Add(a, b)",
        "QLinearMul": HALVES + "y = Mul(a, b)",
        "QLinearConcat": HALVES + "y = Concat<axis=1>(a, b)",
        "QLinearSigmoid": FIRST + "y = Sigmoid(a)",
        "QLinearLeakyRelu": FIRST + "y = LeakyRelu(a)",
        "QLinearAveragePool": FIRST + "y = AveragePool<kernel_shape=[2,2]>(a)",
        "QLinearAveragePool, borders": FIRST
        + "y = AveragePool<kernel_shape=[3,3],pads=[1,1,1,1]>(a)",
        "QLinearGlobalAveragePool": FIRST + "y = GlobalAveragePool(a)",
        "QGemm": FIRST + "b = Flatten(a) y = Gemm<transB=1>(b, w(5,800), v(5))",
        "QLinearSoftmax": FIRST + "b = Flatten(a) y = Softmax(b)",
        "behind com.microsoft": FIRST + "b = LeakyRelu(a) c = Concat<axis=1>(b, a)"
        "d = Sigmoid(c) y = Conv(d, w(4,16,3,3))",
    }
    host = {"QLinearSoftmax": frozenset({"QLinearSoftmax"})}
    forms = {
        name: Form(partial(static, text, **form), host.get(name, frozenset()))
        for name, text in lines.items()
    }
    text = (
        "a = com.microsoft.QuantizeLinear(x, c(0.03), z(128))"
        "b = com.microsoft.DequantizeLinear(a, c(0.03), z(128))"
        "d = com.microsoft.DequantizeLinear(k(6,8,3,3), c(0.01), n(0)) e = Conv(b, d)"
        "f = com.microsoft.QuantizeLinear(e, c(0.05), z(120))"
        "y = com.microsoft.DequantizeLinear(f, c(0.05), z(120))"
    )
    forms["quantizations of com.microsoft"] = Form(partial(floats, text))
    return forms


def _opsets() -> dict[str, Form]:
    """Opset versions. The oldest uses the quantization of com.microsoft, since ONNX has its own
    from opset 10 on.
    """
    forms = {
        f"opset {opset}": Form(partial(static, CONV, opset=opset))
        for opset in (10, 11, 12, 13, 18, 21, 23)
    }
    makers = _operators()["quantizations of com.microsoft"].make
    for opset in (7, 8, 9):
        forms[f"opset {opset}"] = Form(partial(makers, opset=opset))
    return forms


def _few_bits() -> dict[str, Form]:
    """Integers of few bits, as after quantization-aware training, and a channel whose scale is too
    small for its sums.
    """
    kinds = {
        "weights of 2 bits": FewBits(2, 4),
        "weights of 4 bits": FewBits(4, 4),
        "weights of 3 bits": FewBits(3, 8),
        "a bias behind weights of 4 bits": FewBits(4, 4, normalized=False, per_channel=True),
        "a bias behind weights of 2 bits": FewBits(2, 4, normalized=False),
        "depthwise weights of 4 bits": FewBits(4, 4, depthwise=True),
        "weights of 4 bits, powers of two": FewBits(4, 4, normalized=False, shifts=True),
    }
    forms = {name: Form(kind.model, frozenset({"Clip"})) for name, kind in kinds.items()}
    forms["a channel of scale 1e-6"] = Form(small_channel)
    forms["a column of scale 1e-6"] = Form(partial(small_channel, convolves=False))
    return forms


FORMS: dict[str, Form] = {
    **_weights(),
    **_few_bits(),
    **_dimensions(),
    **_elements(),
    **_moves(),
    **_matrices(),
    **_functions(),
    **_attention(),
    **_operators(),
    **_opsets(),
}
