"""Scales, zero points and names of quantized models, against the float model in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from amaranth_vta.quantize.accuracy import accuracy
from amaranth_vta.quantize.preprocessing import UniqueNames
from amaranth_vta.quantize.quantizer import Options, QuantizedModel, prepare, quantize
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import with_outputs

Samples = list[dict[str, np.ndarray]]
OPTIONS = {
    "default": Options(),
    "per tensor": Options(per_channel=False),
    "powers of two": Options(power_of_two=True),
    "unsigned": Options(unsigned_activations=True),
    "percentile": Options(percentile=98),
}


def network() -> tuple[onnx.ModelProto, Samples]:
    """A network with signed, positive, negative and skewed activations, and weights whose channels
    have different ranges.
    """
    rng = np.random.default_rng(5)

    def constant(name: str, *shape: int) -> onnx.TensorProto:
        values = rng.normal(0, 0.2, shape) * np.geomspace(0.1, 3, shape[0]).reshape(-1, *[1] * 3)
        return numpy_helper.from_array(values.astype(np.float32), name)

    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 5, 8, 8] x) => (float[1, 4, 8, 8] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            b = Relu(a)
            c = Conv(b, v)
            d = Sigmoid(c)
            e = Conv(d, u)
            f = Mul(e, e)
            g = Conv(f, t)
            y = Tanh(g)
        }
    """)
    model.graph.initializer.extend(
        [constant("w", 7, 5, 3, 3), constant("v", 6, 7, 1, 1), constant("u", 9, 6, 1, 1)]
    )
    model.graph.initializer.append(constant("t", 4, 9, 1, 1))
    return model, [
        {"x": rng.gamma(0.7, 2, (1, 5, 8, 8)).astype(np.float32) - np.float32(0.2)}
        for _ in range(6)
    ]


@dataclass(frozen=True)
class Scaled:
    """A quantized activation: the values of the float model, sorted, and its parameters."""

    name: str
    values: np.ndarray
    scale: float
    zero_point: int
    low: int
    high: int


def activations(quantized: QuantizedModel, samples: Samples) -> Iterator[Scaled]:
    model = quantized.float_model
    constants = constants_of(quantized.model)
    parameters = {
        node.input[0].removesuffix("_QuantizeLinear_Input"): node.input[1:]
        for node in quantized.model.graph.node
        if node.op_type == "QuantizeLinear"
    }
    names = [name for name in parameters if name != "x"]
    session = onnxruntime.InferenceSession(with_outputs(model, names))
    runs = [session.run(names, sample) for sample in samples]
    found = {name: [run[index] for run in runs] for index, name in enumerate(names)}
    found["x"] = [sample["x"] for sample in samples]
    for name, (scale, zero_point) in parameters.items():
        values = np.sort(np.concatenate([item.reshape(-1) for item in found[name]]))
        limits = np.iinfo(constants[zero_point].dtype)
        yield Scaled(
            name,
            values.astype(np.float64),
            constants[scale].item(),
            constants[zero_point].item(),
            limits.min,
            limits.max,
        )


def constants_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}


@pytest.mark.parametrize("name", OPTIONS)
def test_ranges_of_activations_are_covered_and_no_wider_than_needed(name: str) -> None:
    options = OPTIONS[name]
    model, samples = network()
    found = list(activations(quantize(model, samples, options), samples))
    # Except with powers of two, a Relu is fused into the convolution.
    assert {item.name for item in found} >= {"x", "b", "c", "d", "e", "f", "g"}
    for item in found:
        values = item.values
        if item.name == "a":  # the Relu's output determines the range
            values = np.maximum(values, 0)
        cut = (
            0 if options.percentile is None else int(values.size * (100 - options.percentile) / 200)
        )
        wanted_low, wanted_high = min(values[cut], 0), max(values[-1 - cut], 0)
        # Rounding the zero point moves both ends by up to half a step.
        low = (item.low - item.zero_point - 0.51) * item.scale
        high = (item.high - item.zero_point + 0.51) * item.scale
        assert low <= wanted_low <= wanted_high <= high, item.name
        if options.power_of_two:
            reach = max(-wanted_low, wanted_high)
            assert np.frexp(item.scale)[0] == 0.5
            assert item.zero_point == 0
            assert reach <= 127 * item.scale < 2 * reach
        else:
            slack = 1e-6 if options.percentile is None else 1 / 128
            assert item.scale <= (wanted_high - wanted_low) / 255 * (1 + slack), item.name


@pytest.mark.parametrize("name", OPTIONS)
def test_weights_are_within_half_a_step(name: str) -> None:
    """Per-channel scales are along the output channels, each as fine as its range allows."""
    options = OPTIONS[name]
    model, samples = network()
    quantized = quantize(model, samples, options).model
    constants, weights = constants_of(quantized), constants_of(model)
    seen = set()
    for node in quantized.graph.node:
        name = node.input[0].removesuffix("_quantized")
        if node.op_type != "DequantizeLinear" or name not in weights:
            continue
        seen.add(name)
        weight, scale = weights[name], constants[node.input[1]]
        assert not constants[node.input[2]].any()
        one_each = options.per_channel and not options.power_of_two
        assert scale.shape == ((len(weight),) if one_each else ())
        reach = np.abs(weight).max(axis=(1, 2, 3)) if one_each else np.abs(weight).max()
        assert (reach <= 127 * scale * (1 + 1e-6)).all()
        assert (127 * scale < reach * (2 if options.power_of_two else 1 + 1e-6)).all()
        steps = scale.reshape(-1, 1, 1, 1) if one_each else scale
        dequantized = constants[node.input[0]].astype(np.float64) * steps
        assert (np.abs(dequantized - weight) <= steps / 2 * (1 + 1e-6)).all()
    assert seen == set("wvut")


@pytest.mark.parametrize("per_channel", [True, False])
def test_weights_of_4_bits_have_scales_per_output_channel(per_channel: bool) -> None:
    model, samples = network()
    options = Options(per_channel=per_channel, int4_weights=True)
    quantized = quantize(model, samples, options).model
    assert {item.version for item in quantized.opset_import if not item.domain} == {21}
    types = {item.name: item.data_type for item in quantized.graph.initializer}
    constants, weights = constants_of(quantized), constants_of(model)
    for name, weight in weights.items():
        assert types[f"{name}_quantized"] == onnx.TensorProto.INT4
        scale = constants[f"{name}_scale"]
        assert scale.shape == ((len(weight),) if per_channel else ())
        steps = scale.reshape(-1, 1, 1, 1)
        dequantized = constants[f"{name}_quantized"].astype(np.float64) * steps
        assert (np.abs(dequantized - weight) <= steps / 2 * (1 + 1e-6)).all()


@pytest.mark.parametrize(
    ("name", "decibels"), [("default", 28), ("per tensor", 27), ("powers of two", 21)]
)
def test_outputs_are_as_accurate_as_eight_bits_allow(name: str, decibels: float) -> None:
    model, samples = network()
    quantized = quantize(model, samples, OPTIONS[name])
    (output,) = (item for item in accuracy(quantized, samples) if item.is_output)
    assert output.decibels > decibels


def test_a_clip_whose_bounds_exclude_zero_is_kept() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y)
        <float[2, 2, 1, 1] w = {1, -2, 3, 4}, float low = {0.5}, float high = {2}>
        { c = Conv(x, w) l = Clip(c, low, high) y = Conv(l, w) }
    """)
    rng = np.random.default_rng(6)
    samples = [{"x": rng.normal(0, 1, (1, 2, 4, 4)).astype(np.float32)} for _ in range(4)]
    assert output_decibels(model, samples, samples) > 30


def output_decibels(
    model: onnx.ModelProto,
    samples: Samples,
    judged: Samples,
    options: Options | None = None,
) -> float:
    quantized = quantize(model, samples, options or Options())
    return min(item.decibels for item in accuracy(quantized, judged) if item.is_output)


@pytest.mark.parametrize("options", [Options(), Options(unsigned_activations=True)])
@pytest.mark.parametrize("activation", ["Relu(c)", "Clip(c, low, high)", "Clip(c, low)"])
def test_an_activation_that_is_zero_in_all_samples_stays(activation: str, options: Options) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)
        <float low = {{0}}, float high = {{6}}> {{
            c = Conv(x, w, bias)
            r = {activation}
            d = Conv(x, v)
            s = Add(r, d)
            y = Conv(s, v)
        }}
    """)
    rng = np.random.default_rng(7)
    for name, shape in (("w", (4, 4, 1, 1)), ("v", (4, 4, 1, 1))):
        values = rng.normal(0, 0.5, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    bias = np.full(4, -9, np.float32)
    model.graph.initializer.append(numpy_helper.from_array(bias, "bias"))
    samples = [{"x": rng.normal(0, 1, (1, 4, 8, 8)).astype(np.float32)} for _ in range(4)]
    quantized = quantize(model, samples, options)
    assert quantized.zero == ["r"]
    found = {item.name: item for item in accuracy(quantized, samples)}
    assert found["y"].decibels > 30
    assert not found["r"].has_signal
    # For inputs that make it nonzero, the guessed scale is coarse but usable.
    awake = [{"x": 3 * sample["x"]} for sample in samples]
    assert output_decibels(model, samples, awake, options) > 5


def test_a_percentile_keeps_an_activation_that_is_mostly_zero() -> None:
    """99.95 % of its values are zero."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 1, 100, 100] x) => (float[1, 1, 100, 100] y)
        <float[1, 1, 1, 1] w = {1}, float[1] b = {-1}>
        { c = Conv(x, w, b) r = Relu(c) y = Conv(r, w) }
    """)
    x = np.zeros((1, 1, 100, 100), np.float32)
    x[0, 0, 0, :5] = [2, 3, 4, 5, 6]
    quantized = quantize(model, [{"x": x}], Options(percentile=99.9))
    found = {item.name: item.decibels for item in accuracy(quantized, [{"x": np.minimum(x, 2)}])}
    assert found["y"] > 5


# Names.

NAMES = [
    # The copy of a shared bias is called b0.
    "g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) <float[2] b = {1, -1}> "
    "{ b0 = Conv(x, w, b) t = Sigmoid(b0) b1 = Conv(t, w, b) y = Conv(b1, w, b) }",
    "g (float[1, 2, 4, 4] x, float x_scale) => (float[1, 2, 4, 4] y) "
    "{ c = Conv(x, w) y = Mul(c, x_scale) }",
    "g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] x_DequantizeLinear_Output) "
    "{ x_QuantizeLinear_Output = Conv(x, w) "
    "x_DequantizeLinear_Output = Conv(x_QuantizeLinear_Output, w) }",
    "g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] w_quantized, float[1, 2, 4, 4] y) "
    "{ w_quantized = Conv(x, w) y_QuantizeLinear_Input = Sigmoid(w_quantized) "
    "y = Conv(y_QuantizeLinear_Input, w) }",
    # Our own unique names.
    "g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) "
    "{ wACCENT1ACCENT = Conv(x, w) y = Conv(wACCENT1ACCENT, w) }",
]


@pytest.mark.parametrize("text", NAMES)
@pytest.mark.parametrize("form", [Options(), Options(power_of_two=True), Options(operators=True)])
def test_names_of_the_model_do_not_meet_those_of_the_quantizer(text: str, form: Options) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    weights = np.array([1, -2, 3, 4], np.float32).reshape(2, 2, 1, 1)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    for node in model.graph.node:  # the parser does not support such names
        node.input[:] = [name.replace("ACCENT", "`") for name in node.input]
        node.output[:] = [name.replace("ACCENT", "`") for name in node.output]
    rng = np.random.default_rng(8)
    shapes = {
        item.name: [size.dim_value for size in item.type.tensor_type.shape.dim]
        for item in model.graph.input
    }
    samples = [
        {name: rng.normal(1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(4)
    ]
    quantized = quantize(model, samples, form)
    onnx.checker.check_model(quantized.model, full_check=True)
    for item, other in ((model, quantized.model), (prepare(model), quantized.float_model)):
        assert [i.name for i in item.graph.input] == [i.name for i in other.graph.input]
        assert [i.name for i in item.graph.output] == [i.name for i in other.graph.output]
    found = accuracy(quantized, samples)
    assert {item.name for item in found if item.is_output} == {i.name for i in model.graph.output}
    assert min(item.decibels for item in found) > 15


def test_an_operator_is_left_in_float_by_its_name_or_that_of_its_result() -> None:
    model, samples = network()
    for name in ("c", "second"):
        next(node for node in model.graph.node if "c" in node.output).name = "second"
        quantized = quantize(model, samples, Options(in_float=(name,))).model
        (product,) = (node for node in quantized.graph.node if node.name == "second")
        assert product.input[1] == "v"
    with pytest.raises(ModelError, match="there is no operator or tensor z to leave in float"):
        quantize(model, samples, Options(in_float=("z",)))


def test_a_branch_reads_a_quantized_tensor() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 2, 4, 4] x, bool c) => (float[1, 2, 4, 4] y)
        <float[2, 2, 1, 1] w = {1, -2, 3, 4}> {
            a = Conv(x, w)
            b = If (c) <
                then_branch = t () => (float[1, 2, 4, 4] o) { k = Relu(a) o = Conv(k, w) },
                else_branch = e () => (float[1, 2, 4, 4] o) { k = Sigmoid(a) o = Conv(k, w) }
            >
            a_scale = Conv(b, w)
            y = Sigmoid(a_scale)
        }
    """)
    rng = np.random.default_rng(13)
    samples = [
        {"x": rng.normal(0, 1, (1, 2, 4, 4)).astype(np.float32), "c": np.array(number % 2 == 0)}
        for number in range(4)
    ]
    quantized = quantize(model, samples, Options())
    onnx.checker.check_model(quantized.model, full_check=True)
    assert output_decibels(model, samples, samples) > 30


def test_products_after_operators_of_com_microsoft_are_quantized() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[N, 8] x) => (float[N, 8] y) {
            h = com.microsoft.QuickGelu(x)
            y = MatMul(h, w)
        }""")
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 1, (8, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    samples = [{"x": rng.normal(0, 1, (3, 8)).astype(np.float32)}]
    result = quantize(model, samples, Options()).model
    quantized = [node.input[0] for node in result.graph.node if node.op_type == "QuantizeLinear"]
    assert "h" in quantized


def test_operators_whose_values_are_not_finite_are_left_in_float() -> None:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 2])
    nodes = [helper.make_node("Relu", ["x"], ["huge"]), helper.make_node("Neg", ["huge"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = [{"x": np.full((1, 2), np.inf, np.float32)}]
    quantized = quantize(model, samples, Options()).model
    assert [node.op_type for node in quantized.graph.node] == ["Relu", "Neg"]


def test_messages_of_the_quantizer_have_the_names_of_the_model() -> None:
    model, _ = network()
    names = UniqueNames(model)
    assert names.tensor("w") not in ("w", names.tensor("v"))
    assert names.readable(f"no scale for {names.tensor('w')}_scale") == "no scale for w_scale"
