"""Results of placement: layers on the machine, and nodes on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes, TiledTensor


class Unsupported(Exception):
    """The machine cannot run an operator. Has the reason, and in ``nodes`` the names of other nodes
    that cannot run for the same reason."""

    def __init__(self, reason: str, nodes: Sequence[Node] = ()) -> None:
        super().__init__(reason)
        self.nodes = frozenset(node.name for node in nodes)


@dataclass(frozen=True)
class Layer:
    """A layer on the machine, which runs ``nodes``.

    The arguments of its function are ``sources``, ``constants`` (bytes by name) and ``result``, in
    this order; ``find_function`` builds it, only for layers that are not fused with others.
    ``macs`` are the network's, without padding to whole tiles. If it ``joins``, the result is the
    concatenated bytes of its sources. ``first`` are layers that run before it and whose results
    have no other reader.
    """

    name: str
    operator: str
    nodes: tuple[Node, ...]
    sources: tuple[TiledTensor, ...]
    result: TiledTensor
    find_function: Callable[[], Function]
    constants: dict[str, Bytes]
    macs: int
    joins: bool = False
    first: tuple[Layer, ...] = ()

    @cached_property
    def function(self) -> Function:
        return self.find_function()


@dataclass(frozen=True)
class HostNode:
    """An operator on the host, and the reason why it runs there."""

    node: Node
    reason: str


def identifier(name: str) -> str:
    """Convert the name of a node, which may have any characters, to an identifier."""
    return "".join(c if c.isalnum() else "_" for c in name) or "layer"
