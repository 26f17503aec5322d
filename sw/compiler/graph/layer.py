"""What placement makes of the operators of a network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.compiler.build import Function

from .layout import TileLayout
from .network import Node

Image = tuple[int, int, int, int]
Bytes = npt.NDArray[np.uint8]


class NotHere(Exception):
    """Why an operator cannot be on the machine."""


@dataclass(frozen=True)
class Operand:
    """A tensor as a layer reads or writes it: of shape ``image`` (N, C, H, W), in ``layout``."""

    tensor: str
    image: Image
    layout: TileLayout

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes(self.image)

    @property
    def buffer(self) -> str:
        """A name for where it is."""
        return f"{self.tensor} in {self.layout}"


@dataclass(frozen=True)
class Layer:
    """An operator on the machine.

    The arguments of ``function`` are ``sources``, ``constants`` (bytes by name) and ``result``, in
    this order. ``macs`` are those of the network, without what padding to tiles adds.
    """

    name: str
    operator: str
    nodes: tuple[Node, ...]
    sources: tuple[Operand, ...]
    result: Operand
    function: Function
    constants: dict[str, Bytes]
    macs: int


@dataclass(frozen=True)
class HostNode:
    """An operator on the host, and why it is there."""

    node: Node
    reason: str


def identifier(name: str) -> str:
    """A name for the function of a node, whose own may have any characters."""
    return "".join(c if c.isalnum() else "_" for c in name) or "layer"
