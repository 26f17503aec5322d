"""Quantized networks with random weights, which cost what trained ones do: `generate`.

They are made here, by ONNX's own helpers, and quantized by ONNX Runtime with calibration, each in
its own way; no file is loaded. Packages of the extra ``networks`` are needed when one is made.
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

    ``size`` is that of its input if not its own; ``width`` multiplies its channels. Raises
    `KeyError`, and `MissingExtra` where ONNX or ONNX Runtime is not installed.
    """
    generator = NETWORKS[name]
    with explain_missing_extras():
        from .generated_network import generated_network
    return generated_network(name, generator, size or generator.size, width)
