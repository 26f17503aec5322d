"""Exported transformers: computed second factors, functions of rows, and embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from amaranth_vta.networks.attention import _attention
from amaranth_vta.networks.float_network import FloatNetwork, Value
from amaranth_vta.quantize.quantizer import Options, quantize
from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.network_file import save_network
from tests.support.exported_c import exported

CONFIG = "pynq-extended"
OPTIONS = {
    "integers": Options(symmetric_activations=True, integer_only=True),
    "uint8": Options(unsigned_activations=True),
}


def inputs(model: onnx.ModelProto, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for item in model.graph.input:
        shape = tuple(size.dim_value for size in item.type.tensor_type.shape.dim)
        if item.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            found[item.name] = rng.integers(-2, 2, shape)
        else:
            found[item.name] = rng.normal(0, 1, shape).astype(np.float32)
    return found


def encoder(net: FloatNetwork, size: int) -> list[Value]:
    """One layer of attention between tokens, and a classifier of the first."""
    tokens = net.tokens("tokens", size)
    x = net.node("Gather", net.normal("embeddings", 50, net.channels(128)), tokens, rms=1.0)
    x = net.norm(net.add(x, _attention(net, x, heads=2)))
    first = net.node("Gather", x, net.constant("first", 0, "int64"), axis=1)
    return [net.gemm(first, 2)]


@pytest.mark.parametrize("options", ["uint8", pytest.param("integers", marks=pytest.mark.nightly)])
def test_an_encoder_equals_the_session(options: str, tmp_path: Path) -> None:
    """For these inputs no float32 value is so close to a tie that it rounds otherwise."""
    net = FloatNetwork("test", 1, opset=20, width=0.25)
    model = net.model(*encoder(net, 20))
    made = quantize(model, [inputs(model, 0)], OPTIONS[options]).model
    given = inputs(model, 1)
    program, in_c = exported(made.SerializeToString(), CONFIG, tmp_path)
    found = in_c.run([given[name] for name in program.inputs], [*program.outputs.values()])
    save_network(program, tmp_path / "network.vta")
    with Session.load(tmp_path / "network.vta") as session:
        wanted = session.run(given)
    for name, values in zip(program.outputs, found, strict=True):
        np.testing.assert_array_equal(values, wanted[name])
