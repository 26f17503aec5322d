"""A compiled network: a program for the machine, models for the host, and steps that use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.runtime.program import Program
from amaranth_vta.sw.runtime.work import Work

from .tensor_type import TensorType
from .tile_layout import Array
from .tiled_tensor import TiledTensor


@dataclass(frozen=True)
class OnHost:
    """An operator on the host, why it is there, and its multiplications per run."""

    name: str
    operator: str
    reason: str
    macs: int = 0


@dataclass(frozen=True)
class RunHost:
    """Runs ``model``, a part of the network as ONNX, on the host's tensors of these names."""

    model: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: tuple[OnHost, ...]


@dataclass(frozen=True)
class RunLayer:
    """Runs ``streams`` of the program, those of one layer. ``macs`` are those of the network,
    without what padding to tiles adds."""

    name: str
    operator: str
    macs: int
    streams: range
    work: Work


@dataclass(frozen=True)
class ToMachine:
    """Cuts the host's tensor that ``operand`` names into tiles and writes them to ``buffer``."""

    operand: TiledTensor
    buffer: str


@dataclass(frozen=True)
class ToHost:
    """Reads ``operand``, tiles in ``buffer``, and makes the host's ``tensor`` of them."""

    tensor: str
    type: TensorType
    operand: TiledTensor
    buffer: str


Step = RunHost | RunLayer | ToMachine | ToHost
# What the machine is launched for: layers that follow one another as one, or each of them.
LAUNCHES = ("network", "layer")


@dataclass(frozen=True)
class Launch:
    """A stream of the program, of this index, that does what its ``streams`` do for successive
    layers, one each: ``ends`` has the end of each layer in it, counted in instructions."""

    stream: int
    streams: range
    ends: tuple[int, ...]


@dataclass(frozen=True)
class NetworkProgram:
    """``steps`` in order; ``program`` has the streams and buffers that they use.

    ``launches`` are streams for layers that follow one another, instead of one for each.

    ``constants`` are outputs that depend on no input, and constants that are written to the
    machine as activations are. With ``open_batch`` the first dimension of
    inputs is the number of images, and that of a run is the machine's.
    """

    program: Program
    steps: tuple[Step, ...]
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    constants: Mapping[str, Array]
    open_batch: bool
    launches: tuple[Launch, ...] = ()

    @property
    def config(self) -> Config:
        return self.program.config

    def launched(self, by: str) -> list[int]:
        """The streams that a run launches, by `LAUNCHES`."""
        joined = self.launches if by == "network" else ()
        covered = {index for launch in joined for index in launch.streams}
        layers = [step.streams for step in self.steps if isinstance(step, RunLayer)]
        alone = {index for streams in layers for index in streams if index not in covered}
        return sorted(alone | {launch.stream for launch in joined})
