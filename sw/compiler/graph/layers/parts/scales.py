"""Quantization of the float tensors between integers, as the machine's operators take it."""

from __future__ import annotations

import numpy as np

from amaranth_vta.sw.compiler.graph.canonical.quantization import (
    BYTE_TYPES,
    QuantizationParameters,
    parameters_of,
)
from amaranth_vta.sw.compiler.graph.canonical.why_float import moved_too_far
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.operators.parts.fixed_point import Quantized
from amaranth_vta.sw.runtime.network.tile_layout import offset

from .layer import Unsupported

# Operators that may follow a product before its result is quantized.
_BEHIND_SUMS = frozenset({"Add", "Clip", "DequantizeLinear", "Relu", "Reshape"})


def dequantized(network: Network, name: str) -> tuple[str, Quantized]:
    """The tensor of 8-bit integers that the float tensor ``name`` is dequantized from, and its
    quantization. Raises `Unsupported` if there is none."""
    producer = network.maker(name)
    parameters = parameters_of(network, producer, "DequantizeLinear")
    require_rounded(network, name)
    require_no_whole_sum(network, name)
    if producer is None or parameters is None or not parameters.per_tensor:
        raise Unsupported(f"its operand {name} is in float")
    if parameters.zero.dtype not in BYTE_TYPES:
        raise Unsupported(f"its operand {name} is of {parameters.zero.dtype}")
    return producer.inputs[0], quantized(parameters)


def require_no_whole_sum(network: Network, name: str) -> None:
    """Raises `Unsupported` if a float tensor is the sums of a product, scaled."""
    parameters = parameters_of(network, network.maker(name), "DequantizeLinear")
    if parameters is not None and parameters.zero.dtype == np.int32:
        raise Unsupported(f"its operand {name} is a product's result, which nothing quantizes")


def require_rounded(network: Network, name: str) -> None:
    """Raises `Unsupported` if a float tensor is the result of a product that was not requantized
    because rounding its bias could move results too far."""
    producer = network.maker(name)
    while producer is not None and producer.operator in _BEHIND_SUMS:
        producer = next(filter(None, map(network.maker, producer.reads)), None)
    if producer is not None and producer.name in network.rounding.refused:
        raise Unsupported(f"of {producer.name}, {moved_too_far(network, producer)}")


def quantized(parameters: QuantizationParameters) -> Quantized:
    """The quantization of the integers that the machine holds."""
    zero = int(parameters.zero.item()) - offset(parameters.zero.dtype)
    return Quantized(float(parameters.scale.item()), zero)
