"""The accuracy of a quantized model against the float model: signal-to-noise ratios, per tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log10

import numpy as np
import onnx
from onnx import helper

from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from amaranth_vta.sw.runtime.network.tile_layout import Array

_DEQUANTIZED = "_DequantizeLinear_Output"


@dataclass(frozen=True)
class Accuracy:
    """The signal-to-noise ratio, in decibels, of the quantized model's tensor against ``name`` of
    the float model, which ``operator`` makes; infinite if both are equal."""

    name: str
    operator: str
    decibels: float
    is_output: bool


def accuracy(
    model: onnx.ModelProto, quantized: onnx.ModelProto, samples: Sequence[Mapping[str, Array]]
) -> list[Accuracy]:
    """The accuracy of all tensors that both models have, in the order of the float ``model``."""
    outputs = {item.name for item in model.graph.output}
    known = {name for node in quantized.graph.node for name in node.output}
    pairs = {}
    for node in model.graph.node:
        for name in node.output:
            if f"{name}{_DEQUANTIZED}" in known:
                pairs[name] = (node.op_type, f"{name}{_DEQUANTIZED}")
            elif name in outputs:
                pairs[name] = (node.op_type, name)
    signal, noise = dict.fromkeys(pairs, 0.0), dict.fromkeys(pairs, 0.0)
    float_session = exact_session(_showing(model, pairs))
    int_session = exact_session(_showing(quantized, [other for _, other in pairs.values()]))
    for sample in samples:
        want = run_session(float_session, pairs, sample)
        got = run_session(int_session, [other for _, other in pairs.values()], sample)
        for name, (_, other) in pairs.items():
            wanted = want[name].astype(np.float64)
            signal[name] += float((wanted**2).sum())
            noise[name] += float(((wanted - got[other]) ** 2).sum())
    return [
        Accuracy(name, operator, _decibels(signal[name], noise[name]), name in outputs)
        for name, (operator, _) in pairs.items()
    ]


def _showing(model: onnx.ModelProto, names: Sequence[str] | Mapping[str, object]) -> bytes:
    """The bytes of ``model`` with these tensors as outputs."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    there = {item.name for item in shown.graph.output}
    shown.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for name in names if name not in there
    )
    return shown.SerializeToString()


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return inf
    return 10 * log10(signal / noise) if signal > 0 else -inf
