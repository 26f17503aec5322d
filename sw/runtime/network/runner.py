"""Runs a compiled network on a device and the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from time import perf_counter

import numpy as np

from amaranth_vta.sw.runtime.device import RunResult, total
from amaranth_vta.sw.runtime.runtime import Runtime

from .model_error import ModelError
from .network_program import NetworkProgram, RunHost, RunLayer, ToHost, ToMachine
from .onnx_runtime import exact_session, run_session
from .tile_layout import Array
from .tiled_tensor import Bytes, TiledTensor


@dataclass
class Measured:
    """Time and counters of a step so far; ``result`` is None for a step of the host."""

    runs: int = 0
    seconds: float = 0.0
    result: RunResult | None = None


class Runner:
    """A compiled network in the memory of a device.

    ``measured`` has one item per step of the network, in order. ``begins`` is called with the name
    of each layer before the machine runs it.
    """

    def __init__(
        self,
        network: NetworkProgram,
        runtime: Runtime,
        begins: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._network = network
        self._begins = begins
        self._placed = network.program.place(runtime)
        self._sessions = {
            index: exact_session(step.model)
            for index, step in enumerate(network.steps)
            if isinstance(step, RunHost)
        }
        self.measured = [Measured() for _ in network.steps]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The network's outputs for one batch. Raises `RuntimeFault`."""
        values = dict(self._network.constants) | dict(inputs)
        for index, step in enumerate(self._network.steps):
            measured, start = self.measured[index], perf_counter()
            match step:
                case RunHost():
                    feeds = {name: values[name] for name in step.inputs}
                    values |= run_session(self._sessions[index], step.outputs, feeds)
                case ToMachine(operand, buffer):
                    self._placed.buffer(buffer).write(_packed(operand, values[operand.tensor]))
                case ToHost(tensor, info, operand, buffer):
                    data = self._placed.buffer(buffer).read(np.uint8, operand.nbytes)
                    images = operand.layout.unpack(data, operand.image, info.dtype)
                    assert info.shape is not None
                    values[tensor] = images.reshape(info.shape)
                case RunLayer():
                    self._begins(step.name)
                    result = self._placed.run(step.streams)
                    before = [measured.result] if measured.result else []
                    measured.result = total([*before, result])
            measured.runs += 1
            measured.seconds += perf_counter() - start
        return {name: values[name] for name in self._network.outputs}


def _packed(operand: TiledTensor, value: Array) -> Bytes:
    """``value`` as the machine takes it; the host may have made something else than was said."""
    if value.size != prod(operand.image) or value.dtype.kind not in "iu":
        raise ModelError(
            f"the host made {operand.tensor} a tensor of {value.dtype} with {value.size:,} "
            f"elements; the machine takes integers, {prod(operand.image):,} of them"
        )
    return operand.pack(value)
