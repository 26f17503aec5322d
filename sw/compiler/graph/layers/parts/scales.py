"""Quantization of the float tensors between integers, as the machine's operators take it."""

from __future__ import annotations

from amaranth_vta.sw.compiler.graph.canonical.quantization import (
    QuantizationParameters,
    parameters_of,
)
from amaranth_vta.sw.compiler.graph.canonical.why_float import why_in_float
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.operators.parts.fixed_point import Quantized
from amaranth_vta.sw.runtime.network.tile_layout import offset

from .layer import Unsupported


def dequantized(network: Network, name: str) -> tuple[str, Quantized]:
    """The tensor of 8-bit integers that the float tensor ``name`` is dequantized from, and its
    quantization. Raises `Unsupported` if there is none."""
    if reason := why_in_float(network, name):
        raise Unsupported(reason)
    producer = network.maker(name)
    parameters = parameters_of(network, producer, "DequantizeLinear")
    assert producer is not None
    assert parameters is not None
    return producer.inputs[0], quantized(parameters)


def quantized(parameters: QuantizationParameters) -> Quantized:
    """The quantization of the integers that the machine holds."""
    zero = int(parameters.zero.item()) - offset(parameters.zero.dtype)
    return Quantized(float(parameters.scale.item()), zero)
