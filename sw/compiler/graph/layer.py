"""What placement makes of the operators of a network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.compiler.build import Function

from .layout import Array, Image, TileLayout
from .network import Node
from .packing import Packing

Bytes = npt.NDArray[np.uint8]


class NotHere(Exception):
    """Why an operator cannot be on the machine."""


@dataclass(frozen=True)
class Operand:
    """A tensor as a layer reads or writes it: of shape ``image`` (N, C, H, W), in ``layout``.

    With a ``packing`` the host has packed it before, which only the network's layer knows of.
    """

    tensor: str
    image: Image
    layout: TileLayout
    packing: Packing | None = None

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes(self.packing.image(self.image) if self.packing else self.image)

    @property
    def buffer(self) -> str:
        """A name for where it is."""
        return f"{self.tensor} in {self.layout}" + (f", {self.packing}" if self.packing else "")

    def pack(self, data: Array) -> Bytes:
        """The bytes of the host's ``data``, whose elements are those of the image."""
        images = data.reshape(self.image)
        return self.layout.pack(self.packing.pack(images) if self.packing else images)


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
