"""Generates quantized networks with random weights, as costly to run as trained ones: `generate`.

The networks are built with ONNX's helpers, calibrated and quantized by ONNX Runtime, in various
formats; no file is loaded. This needs the packages of the extra ``networks``. Those of MLPerf Tiny
are TensorFlow Lite files: `generate_tiny`, which needs the extra ``tflite``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from amaranth_vta.extras import explain_missing_extras

from .generators import MLPERF_TINY, NETWORKS

if TYPE_CHECKING:
    from .generated_network import GeneratedNetwork

__all__ = ["MLPERF_TINY", "NETWORKS", "generate", "generate_tiny"]


@cache
def generate(name: str, size: int | None = None, width: float = 1.0) -> GeneratedNetwork:
    """The network ``name`` of `NETWORKS`, the same at each call.

    ``size`` is the size of its input, by default the network's own; ``width`` multiplies its
    channels. Raises `KeyError`, and `MissingExtra` if ONNX or ONNX Runtime is not installed.
    """
    generator = NETWORKS[name]
    with explain_missing_extras():
        from .generated_network import generated_network
    return generated_network(name, generator, size or generator.size, width)


@cache
def generate_tiny(name: str) -> bytes:
    """The network ``name`` of `MLPERF_TINY` as a TensorFlow Lite file, the same at each call.

    Raises `KeyError`, and `MissingExtra` if LiteRT is not installed.
    """
    what = MLPERF_TINY[name].what
    with explain_missing_extras():
        from .mlperf_tiny import tiny_model
    return tiny_model(name, what)
