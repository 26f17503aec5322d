"""A compiled network: a program for the machine, models for the host, and steps that use both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.runtime.dram_pages import opened_pages
from amaranth_vta.sw.runtime.events import Events, events
from amaranth_vta.sw.runtime.program import Program
from amaranth_vta.sw.runtime.work import Work

from .model_error import ModelError
from .tensor_type import TensorType
from .tile_layout import Array
from .tiled_tensor import TiledTensor


@dataclass(frozen=True)
class OnHost:
    """An operator that runs on the host, the reason, and its multiplications per run."""

    name: str
    operator: str
    reason: str
    macs: int = 0


@dataclass(frozen=True)
class KnownRuns:
    """Results of a part of the network that were computed at compile time: ``inputs`` and
    ``outputs`` by name, with a first dimension for the runs. Inputs may be of a smaller type.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    # By the bytes of their inputs, the numbers of runs; empty before the first look-up.
    _numbers: dict[tuple[bytes, ...], int] = field(default_factory=dict, repr=False, compare=False)

    def results(self, feeds: Mapping[str, Array]) -> dict[str, Array] | None:
        """The outputs for the inputs ``feeds``, of the shapes of the runs; None if these are not
        among the runs.
        """
        if not self._numbers:
            known = [array.astype(feeds[name].dtype) for name, array in self.inputs.items()]
            for number, arrays in enumerate(zip(*known, strict=True)):
                self._numbers[tuple(array.tobytes() for array in arrays)] = number
        found = self._numbers.get(tuple(feeds[name].tobytes() for name in self.inputs))
        if found is None:
            return None
        return {name: known[found] for name, known in self.outputs.items()}


@dataclass(frozen=True)
class RunHost:
    """Runs ``model``, a part of the network as ONNX, on the host, unless the results are ``known``;
    inputs and outputs are names.
    """

    model: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: tuple[OnHost, ...]
    known: KnownRuns | None = None


@dataclass(frozen=True)
class RunLayer:
    """Runs ``streams`` of the program, which belong to one layer. ``macs`` are the network's,
    without padding to tiles. If machines share the layer, ``beside`` has the streams of machines 1,
    2, …, and ``work`` is the total of all machines.
    """

    name: str
    operator: str
    macs: int
    streams: range
    work: Work
    beside: tuple[range, ...] = ()

    @property
    def machines(self) -> int:
        """Number of machines that share the layer."""
        return 1 + len(self.beside)

    @property
    def all_streams(self) -> tuple[int, ...]:
        """The streams of all machines."""
        return tuple(chain(self.streams, *self.beside))


@dataclass(frozen=True)
class ToMachine:
    """Packs the host tensor named by ``operand`` into tiles and writes them to ``buffer``."""

    operand: TiledTensor
    buffer: str


@dataclass(frozen=True)
class ToHost:
    """Reads ``operand``, tiles in ``buffer``, and unpacks them to the host's ``tensor``."""

    tensor: str
    type: TensorType
    operand: TiledTensor
    buffer: str


@dataclass(frozen=True)
class WriteRows:
    """Writes the host tensor ``rows`` to ``operand``, a stack of matrices that is in ``buffer`` as
    weights. The host tensor ``places`` has their numbers in dimension ``axis`` of the image: 1 for
    inputs, 2 for outputs. If ``stacked`` is not 0, the host tensor has rows of that many matrices
    in sequence, whose inputs are side by side in the image; then the axis is 2.
    """

    operand: TiledTensor
    buffer: str
    rows: str
    places: str
    axis: int
    stacked: int = 0


@dataclass(frozen=True)
class MoveWindows:
    """Moves ``windows`` of the program to the place, less than ``count``, that is the only element
    of the host tensor ``place``.
    """

    windows: tuple[str, ...]
    place: str
    count: int


Step = RunHost | RunLayer | ToMachine | ToHost | WriteRows | MoveWindows
# Units of a launch: consecutive layers of the network, or one layer.
LAUNCHES = ("network", "layer")


@dataclass(frozen=True)
class Launch:
    """A ``stream`` of the program that joins ``streams`` of consecutive layers, one per layer; all
    are indices. ``ends`` has the end of each layer in it, as a number of instructions.
    """

    stream: int
    streams: range
    ends: tuple[int, ...]


@dataclass(frozen=True)
class State:
    """A variable of the network: a run reads it as ``source`` and writes it as ``result``. Before
    the first run it is ``initial``. If ``places`` is not 0, it is the next of so many places in
    ring buffers.
    """

    source: str
    result: str
    initial: Array
    places: int = 0

    def after(self, masked: int) -> Array:
        """The initial value for a first run whose first ``masked`` rows are masked: in a ring
        buffer these are at the last places, so that the first token is at place 0 in any case.
        """
        return (self.initial - masked) % self.places if self.places else self.initial


@dataclass(frozen=True)
class KeptTensor:
    """A variable that stays in device memory between runs: ``operand``, tiles in ``buffer``. The
    contents of the buffer in the program are its initial value.
    """

    operand: TiledTensor
    buffer: str


@dataclass(frozen=True)
class NetworkProgram:
    """``steps`` in order; ``program`` contains the streams and buffers that they use.

    ``launches`` join the streams of consecutive layers. ``constants`` contains outputs that do not
    depend on an input, and constants that are written to the machine as activations. With
    ``open_batch`` the first dimension of inputs is an arbitrary number of images; each run takes
    as many as the machine's BATCH. Variables are neither inputs nor outputs: the host holds
    ``states`` between runs, the machine ``kept``. If ``machines`` share the layers of each image,
    a launch starts on all of them once its predecessor is done on all of them. A decoder for single
    tokens may have a ``block``, the same decoder for runs of several tokens (`with_block`).
    """

    program: Program
    steps: tuple[Step, ...]
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    constants: Mapping[str, Array]
    open_batch: bool
    launches: tuple[Launch, ...] = ()
    states: tuple[State, ...] = ()
    kept: tuple[KeptTensor, ...] = ()
    machines: int = 1
    block: NetworkProgram | None = None

    @property
    def config(self) -> Config:
        return self.program.config

    @property
    def has_variables(self) -> bool:
        """Whether the results of a run depend on earlier runs."""
        return bool(self.states or self.kept)

    def shared_with(self, other: NetworkProgram) -> frozenset[str]:
        """The buffers that both networks may share on a device: their variables and constants with
        equal contents. Raises `ModelError` if the variables differ in form.
        """
        shared = self.program.shared_with(other.program)
        forms = [
            {item.source: (item.initial.dtype, item.initial.shape) for item in network.states}
            for network in (self, other)
        ]
        kept = {item.buffer for item in self.kept}
        if forms[0] != forms[1] or self.kept != other.kept or not kept <= shared:
            raise ModelError(
                "both networks have variables of different shapes or layouts, so they cannot share "
                "them"
            )
        return shared

    def with_block(self, block: NetworkProgram) -> NetworkProgram:
        """This network, a decoder for single tokens, with a ``block`` that continues its runs.
        Raises `ModelError` if that is not the same decoder, for more tokens, with the same caches.
        """
        result = replace(self, block=block)
        try:
            _ = result.shared_with_block
        except ModelError:
            raise ModelError(
                "runs of several tokens and of one cannot have the same caches: these are no ring "
                "buffers, because of zero points or operators that read them"
            ) from None
        _tokens_of(block, self)
        return result

    @cached_property
    def shared_with_block(self) -> frozenset[str]:
        """The buffers that the network and its block share, as in `shared_with`."""
        assert self.block is not None
        return self.block.shared_with(self)

    @property
    def tokens_per_block(self) -> int:
        """Number of tokens in a run of the ``block``; 1 without a block."""
        return 1 if self.block is None else _tokens_of(self.block, self)

    @property
    def layer_count(self) -> int:
        """Number of layers on the machine."""
        return sum(isinstance(step, RunLayer) for step in self.steps)

    @cached_property
    def layer_events(self) -> tuple[tuple[str, Events], ...]:
        """The name of each layer on the machine, and its events in one run, with the pages of
        DRAM that it opens.
        """
        return tuple(
            (step.name, sum(map(self._stream_events, step.all_streams), Counter()))
            for step in self.steps
            if isinstance(step, RunLayer)
        )

    def _stream_events(self, index: int) -> Events:
        stream = self.program.streams[index]
        pages = opened_pages(self.config, stream.words, stream.buffer)
        return events(self.config, stream.words) + pages

    @property
    def host_operator_count(self) -> int:
        """Number of operators on the host whose results are not known in advance."""
        return sum(
            len(step.operators)
            for step in self.steps
            if isinstance(step, RunHost) and step.known is None
        )

    def launched(self, by: str) -> list[int]:
        """The streams that a run launches; ``by`` is one of `LAUNCHES`."""
        joined = self.launches if by == "network" else ()
        covered = {index for launch in joined for index in launch.streams}
        layers = [step.all_streams for step in self.steps if isinstance(step, RunLayer)]
        alone = {index for streams in layers for index in streams if index not in covered}
        return sorted(alone | {launch.stream for launch in joined})


def _tokens_of(block: NetworkProgram, single: NetworkProgram) -> int:
    """Number of tokens in a run of ``block``: the size of dimensions that are 1 in inputs of the
    ``single`` network. Raises `ModelError` if both differ in other ways too.
    """
    sizes = set()
    if _form(block) == _form(single):
        for name, info in single.inputs.items():
            sizes |= {*zip(info.shape or (), block.inputs[name].shape or (), strict=True)}
    match [(one, several) for one, several in sizes if one != several]:
        case [(1, tokens)] if tokens > 1:
            return tokens
    raise ModelError(
        "the inputs and outputs of a block of tokens differ from those of a single token not only "
        "in the number of tokens"
    )


def _form(network: NetworkProgram) -> tuple[Any, ...]:
    """Properties that networks for a block and for a single token have in common."""
    inputs = {name: (info.dtype, len(info.shape or ())) for name, info in network.inputs.items()}
    return network.config, network.machines, network.open_batch, set(network.outputs), inputs
