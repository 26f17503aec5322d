"""Results of placement: layers on the machine, and nodes on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.nest.ir import Dma, walk
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes, TiledTensor

_LEAST_CYCLES = 16


class Unsupported(Exception):
    """The machine cannot run an operator. Has the reason, and in ``nodes`` the names of other nodes
    that cannot run for the same reason."""

    def __init__(self, reason: str, nodes: Sequence[Node] = ()) -> None:
        super().__init__(reason)
        self.nodes = frozenset(node.name for node in nodes)


@dataclass(frozen=True)
class ByteRun:
    """The ``nbytes`` consecutive bytes from ``begin`` of the source with index ``source``."""

    source: int
    begin: int
    nbytes: int


def least_run(config: Config) -> int:
    """Minimum average size of runs, in bytes, that readers load from their sources. Shorter runs
    are copied, since each run takes a separate LOAD.
    """
    return _LEAST_CYCLES * config.bus_bytes


@dataclass(frozen=True)
class Layer:
    """A layer on the machine, which runs ``nodes``.

    The arguments of its function are ``sources``, ``constants`` (bytes by name) and ``result``, in
    this order; ``find_function`` builds it, only for layers that are not fused with others.
    ``macs`` are the network's, without padding to whole tiles. If it has ``runs``, the result is
    their bytes in this order, except for padding. ``first`` are layers that run before it and whose
    results have no other reader.
    """

    name: str
    operator: str
    nodes: tuple[Node, ...]
    sources: tuple[TiledTensor, ...]
    result: TiledTensor
    find_function: Callable[[], Function]
    constants: dict[str, Bytes]
    macs: int
    runs: tuple[ByteRun, ...] = ()
    first: tuple[Layer, ...] = ()

    @cached_property
    def function(self) -> Function:
        return self.find_function()

    @property
    def joins(self) -> bool:
        """Whether the result is the concatenation of all sources."""
        whole = (ByteRun(number, 0, source.nbytes) for number, source in enumerate(self.sources))
        return bool(self.runs) and self.runs == tuple(whole)

    def reads_in_units_of(self, source: int) -> int:
        """The number of bytes of which all offsets and sizes of this layer's loads from a source
        are multiples."""
        nest, config = self.function.lowered.nest, self.function.config
        memories = {
            part.memory
            for part in walk(nest.body)
            if isinstance(part, Dma) and part.dram is nest.args[source]
        }
        return lcm(*(config.memory(memory).element_bytes for memory in memories))


@dataclass(frozen=True)
class HostNode:
    """An operator on the host, and the reason why it runs there."""

    node: Node
    reason: str


@dataclass(frozen=True)
class RingWrite(HostNode):
    """A ScatterElements by which the host writes new rows of a variable to the machine's memory.
    Its ``node`` reads the rows and their places, one-dimensional; ``operand`` is the variable after
    the write, as products read it, and ``axis`` the dimension of its image.
    """

    source: str
    operand: TiledTensor
    axis: int


def identifier(name: str) -> str:
    """Convert the name of a node, which may have any characters, to an identifier."""
    return "".join(c if c.isalnum() else "_" for c in name) or "layer"
