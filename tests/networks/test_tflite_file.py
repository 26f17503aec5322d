"""The builder writes the requested tensors and operators, and LiteRT runs its files."""

from __future__ import annotations

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from amaranth_vta.networks.tflite_file import TfliteFile
from amaranth_vta.networks.tflite_network import TfliteNetwork, reference
from amaranth_vta.sw.compiler.graph.load.tflite.reference_kernels import open_reference


def read(model: bytes) -> schema.ModelT:
    return schema.ModelT.InitFromPackedBuf(model, 0)


def sums() -> TfliteFile:
    """Twice the input plus constants."""
    file = TfliteFile("sums")
    x = file.input((1, 4), 0.5, 3, name="x", is_open=True)
    one = file.constant(np.array([1, 2, 3, 4], np.int8), 0.5, 0, name="one")
    two = file.constant(np.array([1, 2, 3, 4], np.int8), 0.5, 0, name="two", share=one)
    y, z = (file.tensor((1, 4), 1.0, -2, is_open=True) for _ in range(2))
    file.operator("ADD", [x, one], [y], fused_activation_function="RELU")
    file.operator("ADD", [y, two], [z])
    file.output(z)
    return file


def test_a_file_has_the_tensors_and_options_that_were_given() -> None:
    model = read(sums().bytes())
    (graph,) = model.subgraphs
    assert [item.name for item in graph.tensors][:3] == [b"x", b"one", b"two"]
    assert list(graph.tensors[0].shapeSignature) == [-1, 4]
    assert list(graph.tensors[0].quantization.zeroPoint) == [3]
    assert graph.tensors[1].buffer == graph.tensors[2].buffer
    first, second = (item.builtinOptions.fusedActivationFunction for item in graph.operators)
    assert (first, second) == (schema.ActivationFunctionType.RELU, 0)
    (code,) = model.operatorCodes
    assert (code.builtinCode, code.version) == (schema.BuiltinOperator.ADD, 2)


def test_reference_kernels_run_a_file() -> None:
    x = np.array([[3, 7, -128, 127]], np.int8)
    # In real numbers: max(0, (x − 3) / 2 + one / 2) + two / 2, for a scale of 1 and -2 for 0.
    first = np.maximum(0, np.floor((x.astype(int) - 3 + [1, 2, 3, 4]) / 2 + 0.5))
    wanted = np.clip(np.floor(first + np.array([1, 2, 3, 4]) / 2 + 0.5) - 2, -128, 127)
    (found,) = reference(sums().bytes(), x)
    np.testing.assert_array_equal(found, wanted)


def test_a_signature_names_inputs_and_outputs() -> None:
    file = sums()
    file.signature()
    signatures = open_reference(file.bytes()).get_signature_list()
    assert signatures == {"serving_default": {"inputs": ["x"], "outputs": ["main/4"]}}


def test_subgraphs_have_tensors_of_their_own() -> None:
    file = sums()
    with file.subgraph("other") as index:
        x = file.input((1, 2), 1.0)
        file.output(x)
    graphs = read(file.bytes()).subgraphs
    assert (index, len(graphs)) == (1, 2)
    assert [len(graph.tensors) for graph in graphs] == [5, 1]


def test_an_unknown_option_is_refused() -> None:
    file = TfliteFile()
    x, y = file.input((1, 2), 1.0), file.tensor((1, 2), 1.0)
    with pytest.raises(ValueError, match="ADD has no option stride_w"):
        file.operator("ADD", [x, x], [y], stride_w=1)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_scales_fit_the_results(dtype: str) -> None:
    net = TfliteNetwork(1, dtype)
    x = net.example_input(np.asarray(net.rng.normal(0, 1, (1, 12, 12, 3)), np.float32))
    y = net.conv(x, 16, (3, 3), act="NONE")
    sizes = dict.fromkeys(("stride_h", "stride_w", "filter_height", "filter_width"), 2)
    z = net.apply("MAX_POOL_2D", net.conv(y, 8), padding="VALID", **sizes)
    net.output(y, z)
    levels = net.rng.normal(0, 40, x.shape) + np.mean(x.limits)
    for values in reference(net.bytes(), np.clip(levels, *x.limits).astype(dtype)):
        assert values.dtype == dtype
        assert int(values.max()) - int(values.min()) > 150
