"""A network from an ONNX file on a device, and how its results compare with ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.network_session import NetworkSession
from amaranth_vta.sw.compiler.graph.canonical.canonical import canonical
from amaranth_vta.sw.compiler.graph.load.load_model import (
    Source,
    load_network,
    open_batch,
    read_model,
)
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.plan.compiled import CompiledNetwork, compile_network
from amaranth_vta.sw.compiler.lower import OwnPass
from amaranth_vta.sw.runtime.device import Device
from amaranth_vta.sw.runtime.network.file import save_network
from amaranth_vta.sw.runtime.network.layout import Array
from amaranth_vta.sw.runtime.network.model import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import default_session, exact_session, run_session


@dataclass(frozen=True)
class CheckReport:
    """How a result compares with that of ONNX Runtime on the canonical network.

    ``histogram`` counts differences that are not zero; where an output is dequantized they are in
    steps of its scale. ``differs_from_default`` counts elements that differ from the untouched
    model in a default session. ``outputs`` is the result itself.
    """

    elements: int
    mismatches: int
    histogram: dict[float, int]
    differs_from_default: int
    outputs: dict[str, Array]

    @property
    def ok(self) -> bool:
        return self.mismatches == 0


class Session(NetworkSession):
    """A network compiled for a machine and placed on a device.

    ``model`` is a path, the bytes of a file or an ``onnx.ModelProto``; ``config`` a `Config`, the
    name of a preset or a path; ``device`` and ``options`` are those of `NetworkSession`.
    ``images`` is for a model with an open number of images: how many go through the machine in one
    run, so that weights are loaded once for all of them; BATCH if it is not given. ``passes`` are
    those of `compile`.

    Raises `ModelError`, `ConfigError`, and what `open_device` raises.
    """

    def __init__(
        self,
        model: Source,
        config: Config | str = DEFAULT,
        device: Device | str = "functional",
        dram: str = "ideal",
        *,
        images: int | None = None,
        passes: Sequence[OwnPass] = (),
        **options: Any,
    ) -> None:
        self._model = read_model(model)
        self.compiled = compile(self._model, config, images, passes)
        super().__init__(self.compiled.program, device, dram, **options)

    @property
    def network(self) -> Network:
        """The network in canonical form."""
        return self.compiled.network

    def save(self, path: str | Path) -> None:
        """Writes the compiled network for `NetworkSession.load`; raises `ProgramError`."""
        save_network(self.program, path)

    def check(self, inputs: Mapping[str, Array]) -> CheckReport:
        """Runs, and compares with ONNX Runtime. Raises as `run` does."""
        outputs = self.run(inputs)
        reference = exact_session(self.network.to_onnx().SerializeToString())
        names = list(outputs)
        expected = self._in_batches(inputs, partial(run_session, reference, names))
        histogram: dict[float, int] = {}
        for name in names:
            different = _differences(outputs[name], expected[name], _step(self.network, name))
            for value, count in zip(*np.unique(different, return_counts=True), strict=True):
                histogram[value.item()] = histogram.get(value.item(), 0) + int(count)
        default = default_session(self._model.SerializeToString())
        untouched = self._in_batches(inputs, partial(run_session, default, names))
        self._mismatches = sum(histogram.values())
        return CheckReport(
            elements=sum(output.size for output in outputs.values()),
            mismatches=self._mismatches,
            histogram=histogram,
            differs_from_default=sum(
                _differences(outputs[name], untouched[name], 1).size for name in names
            ),
            outputs=outputs,
        )


def compile(
    model: Source,
    config: Config | str = DEFAULT,
    images: int | None = None,
    passes: Sequence[OwnPass] = (),
) -> CompiledNetwork:
    """``model`` compiled for the machine of ``config``, as `Session` takes them.

    ``passes`` are passes of one's own, each with its place, as `vta.build` takes them: they work on
    each layer. Raises `ModelError`, `ConfigError`, and `LoweringError` for a place that is none.
    """
    model = read_model(model)
    config = Config.load(config) if isinstance(config, str) else config
    if images is not None and not open_batch(model):
        raise ModelError("the model says itself how many images it takes at a time")
    if images is not None and images < 1:
        raise ValueError(f"{images} images cannot be run at a time")
    network = canonical(load_network(model, images or config.batch))
    return compile_network(network, config, open_batch(model), passes)


def _step(network: Network, output: str) -> float:
    """The scale of an output that is dequantized, else 1."""
    node = network.producers().get(output)
    if node is not None and node.operator == "DequantizeLinear":
        scale = network.constants.get(node.input(1))
        if scale is not None and scale.size == 1:
            return float(scale.item())
    return 1


def _differences(got: Array, expected: Array, step: float) -> npt.NDArray[np.float64]:
    """Differences that are not zero, in steps; NaN equals NaN."""
    if got.dtype.kind not in "biuf":
        return np.ones(np.count_nonzero(got != expected), np.float64)
    differs = ~((got == expected) | (got != got) & (expected != expected))
    difference = got[differs].astype(np.float64) - expected[differs].astype(np.float64)
    return np.round(difference / step, 6)
