"""Quantized networks with random weights, as costly as trained ones: `generate`.

They are built with ONNX's helpers and quantized by ONNX Runtime with calibration, each in another
way; no file is loaded. Generating one needs the packages of the extra ``networks``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from amaranth_vta.extras import explain_missing_extras

from .generators import NETWORKS

if TYPE_CHECKING:
    from .generated_network import GeneratedNetwork

__all__ = ["NETWORKS", "generate"]


@cache
def generate(name: str, size: int | None = None, width: float = 1.0) -> GeneratedNetwork:
    """The network ``name`` of `NETWORKS`, always the same.

    ``size`` is that of its input, by default the network's own; ``width`` multiplies its channels.
    Raises `KeyError`, and `MissingExtra` if ONNX or ONNX Runtime is not installed.
    """
    generator = NETWORKS[name]
    with explain_missing_extras():
        from .generated_network import generated_network
    return generated_network(name, generator, size or generator.size, width)
