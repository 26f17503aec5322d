"""Quantization parameters of float tensors between integers, as held by the machine."""

from __future__ import annotations

from amaranth_vta.sw.compiler.graph.canonical.quantization import (
    QuantizationParameters,
    parameters_of,
)
from amaranth_vta.sw.compiler.graph.canonical.why_float import moved_too_far, why_in_float
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import Quantized
from amaranth_vta.sw.runtime.network.tile_layout import offset

from .layer import Unsupported

# Operators allowed between a product and the quantization of its result.
_BEHIND_SUMS = frozenset({"Add", "Clip", "DequantizeLinear", "Relu", "Reshape"})


def dequantized(network: Network, name: str) -> tuple[str, Quantized]:
    """The tensor of 8-bit integers that is dequantized to the float tensor ``name``, and its
    quantization. Raises `Unsupported` if there is none."""
    if reason := why_in_float(network, name):
        require_rounded(network, name)
        raise Unsupported(reason)
    producer = network.maker(name)
    parameters = parameters_of(network, producer, "DequantizeLinear")
    assert producer is not None
    assert parameters is not None
    return producer.inputs[0], quantized(parameters)


def require_rounded(network: Network, name: str) -> None:
    """Raise `Unsupported` if a float tensor is the result of a product that was not requantized
    because rounding its bias could move results too far."""
    producer = network.maker(name)
    while producer is not None and producer.operator in _BEHIND_SUMS:
        producer = next(filter(None, map(network.maker, producer.reads)), None)
    if producer is not None and producer.name in network.rounding.refused:
        raise Unsupported(f"of {producer.name}, {moved_too_far(network, producer)}")


def quantized(parameters: QuantizationParameters) -> Quantized:
    """The quantization of the integers held by the machine."""
    zero = int(parameters.zero.item()) - offset(parameters.zero.dtype)
    return Quantized(float(parameters.scale.item()), zero)
