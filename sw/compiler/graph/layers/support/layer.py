"""Results of placement: layers on the machine, and nodes on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import lcm

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.nest.ir import Dma, walk
from amaranth_vta.sw.runtime.memory import Motion
from amaranth_vta.sw.runtime.network.tile_layout import Array
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
class Ring:
    """A ring buffer that the machine keeps: the variable ``source``, as ``operand``, whose buffer
    has its name. Its rows are in dimension ``axis`` of the image. If it is a ``copy`` of values,
    that dimension is the last of a single matrix, with all columns of a row side by side.
    """

    source: str
    operand: TiledTensor
    axis: int
    copy: bool = False

    @property
    def variable(self) -> TiledTensor:
        """The variable before a run."""
        return replace(self.operand, tensor=f"{self.source}_rows" if self.copy else self.source)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.operand.image[self.axis]

    def pack(self, value: Array) -> Bytes:
        """Pack the variable's ``value``."""
        if self.copy:
            value = value.reshape(-1, self.rows, value.shape[-1]).swapaxes(1, 2)
        return self.operand.pack(np.ascontiguousarray(value))


@dataclass(frozen=True)
class RowTable:
    """A constant of which a run reads one row, held as ``operand``, an image per row."""

    operand: TiledTensor

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.operand.image[0]


# The number of the result among the arguments of a layer that are in windows.
RESULT = -1


@dataclass(frozen=True)
class WindowSlices:
    """An argument of a layer in a ring buffer or table: for place 0, slices of ``nbytes`` bytes at
    ``offsets``, in this order. They move by ``motion`` to the place in the host tensor ``place``.
    """

    held: Ring | RowTable
    offsets: tuple[int, ...]
    nbytes: int
    motion: Motion
    place: str


@dataclass(frozen=True)
class Layer:
    """A layer on the machine, which runs ``nodes``.

    The arguments of its function are ``sources``, ``constants`` (bytes by name) and ``result``, in
    this order; ``find_function`` builds it, only for layers that are not fused with others.
    ``macs`` are the network's, without padding to whole tiles. If it has ``runs``, the result is
    their bytes in this order, except for padding. ``first`` are layers that run before it and whose
    results have no other reader. ``in_windows`` are arguments in ring buffers and tables, by the
    index of the source or `RESULT`. If it has a ``second`` result, that is its last argument.
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
    in_windows: dict[int, WindowSlices] = field(default_factory=dict)
    second: TiledTensor | None = None

    @property
    def results(self) -> tuple[TiledTensor, ...]:
        """The tensors that it produces."""
        return (self.result,) if self.second is None else (self.result, self.second)

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads, places in ring buffers and tables included."""
        places = (slices.place for slices in self.in_windows.values())
        return (*(source.tensor for source in self.sources), *places)

    @property
    def makes(self) -> tuple[str, ...]:
        """The tensors that it produces, by name."""
        return tuple(result.tensor for result in self.results)

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

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads."""
        return self.node.reads

    @property
    def makes(self) -> tuple[str, ...]:
        """The tensors that it produces."""
        return self.node.outputs


@dataclass(frozen=True)
class RingWrite(HostNode):
    """A ScatterElements by which the host writes new rows of a variable to the machine's memory.
    Its ``node`` reads the rows and their places, one-dimensional; products read the first of
    ``rings``, and the second is a copy.
    """

    rings: tuple[Ring, ...]


def forms_read(items: Sequence[Layer | HostNode]) -> dict[str, TiledTensor]:
    """The form in which ``items`` read a tensor, for each tensor that only layers read and that all
    of them read in the same form."""
    forms: dict[str, list[TiledTensor | None]] = {}
    for item in items:
        if isinstance(item, Layer):
            for source in item.sources:
                forms.setdefault(source.tensor, []).append(source)
        else:
            for name in item.reads:
                forms.setdefault(name, []).append(None)
    return {
        name: first
        for name, (first, *others) in forms.items()
        if first is not None and all(other == first for other in others)
    }


def identifier(name: str) -> str:
    """Convert the name of a node, which may have any characters, to an identifier."""
    return "".join(c if c.isalnum() else "_" for c in name) or "layer"
