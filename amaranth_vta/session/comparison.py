"""Compares results with ONNX Runtime, on the canonical form and on the model file, or with the
reference kernels of TensorFlow Lite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.tile_layout import Array

from .batches import Run
from .file_comparison import FileComparison, compare_with_file
from .sequences import flattened

if TYPE_CHECKING:
    import onnx

    from amaranth_vta.sw.compiler.graph.network import Network


@dataclass(frozen=True)
class CheckReport:
    """The result of comparing a network's outputs with ONNX Runtime.

    ``mismatches`` counts elements that differ from the canonical form; ``histogram`` has their
    number by difference, which for a dequantized output is in steps of its scale. ``file`` compares
    with the unchanged model file, in a session without optimizations; None if ONNX Runtime cannot
    run it. ``differs_from_default`` counts elements that differ from the file in a default session,
    with optimizations; None if that cannot run it. ``outputs`` are the compared outputs.

    For a TensorFlow Lite file, ``of_tflite``, ``mismatches`` counts elements that differ from its
    reference kernels; there is no other comparison.
    """

    elements: int
    mismatches: int
    histogram: dict[float, int]
    differs_from_default: int | None
    file: FileComparison | None
    outputs: dict[str, Array]
    of_tflite: bool = False

    @property
    def ok(self) -> bool:
        """Whether no element differs from the canonical form, and the differences from the file are
        within their limits.
        """
        return self.mismatches == 0 and (self.file is None or self.file.ok)

    @property
    def file_figures(self) -> dict[str, Any] | None:
        """The comparison with the file, for JSON; None if the file cannot be run."""
        if self.file is None:
            return None
        return {
            "outputs": {name: asdict(item) for name, item in self.file.outputs.items()},
            "layers": {name: asdict(item) for name, item in self.file.layers.items()},
            "ok": self.file.ok,
            "differs_from_default": self.differs_from_default,
        }


def compare(
    outputs: dict[str, Array],
    network: Network,
    model: onnx.ModelProto,
    images: int,
    in_batches: Callable[[Run], Mapping[str, Array]],
) -> CheckReport:
    """Compares ``outputs`` with the canonical ``network``, and with the ``model`` from which it was
    made, for runs of ``images``.

    ``in_batches`` feeds the inputs of ``outputs`` to a given run function.
    """
    from amaranth_vta.sw.compiler.graph.load.tflite import (
        ReferenceModel,
        tflite_source,
        written_anew,
    )
    from amaranth_vta.sw.compiler.graph.network import initial_values
    from amaranth_vta.sw.runtime.network.onnx_runtime import (
        default_session,
        exact_session,
        run_session,
    )

    names, results = list(outputs), flattened(outputs)
    tflite = tflite_source(model)
    if tflite is not None:
        kernels = ReferenceModel(written_anew(tflite))
        expected = in_batches(
            lambda feeds: dict(
                zip(
                    network.public_outputs,
                    kernels([feeds[name] for name in network.public_inputs]),
                    strict=True,
                )
            )
        )
        return _report(results, expected, network, of_tflite=True)
    reference = exact_session(network.to_onnx().SerializeToString())
    start = {item.source: item.initial for item in network.states}
    expected = in_batches(lambda feeds: run_session(reference, names, feeds | start))
    untouched: Mapping[str, Array] | None = None
    with suppress(ModelError):  # its optimizations make some models invalid
        default = default_session(model.SerializeToString())
        begin = initial_values(model)
        untouched = in_batches(lambda feeds: run_session(default, names, feeds | begin))
    file: FileComparison | None = None
    with suppress(ModelError):  # of an operator set that ONNX Runtime does not know
        file = compare_with_file(outputs, network, model, images, in_batches, untouched)
    report = _report(results, flattened(expected), network)
    differs = None
    if untouched is not None:
        default_results = flattened(untouched)
        pairs = ((results.get(name), item) for name, item in default_results.items())
        differs = sum(_differences(got, item, 1).size for got, item in pairs)
    return replace(report, differs_from_default=differs, file=file, outputs=outputs)


def _report(
    outputs: dict[str, Array],
    expected: Mapping[str, Array],
    network: Network,
    of_tflite: bool = False,
) -> CheckReport:
    """Compares ``outputs`` with the ``expected`` ones, element by element; both are flattened."""
    histogram: dict[float, int] = {}
    for name in {**outputs, **expected}:
        different = _differences(outputs.get(name), expected.get(name), _step(network, name))
        for value, count in zip(*np.unique(different, return_counts=True), strict=True):
            histogram[value.item()] = histogram.get(value.item(), 0) + int(count)
    return CheckReport(
        elements=sum(output.size for output in outputs.values()),
        mismatches=sum(histogram.values()),
        histogram=histogram,
        differs_from_default=None,
        file=None,
        outputs=outputs,
        of_tflite=of_tflite,
    )


def _step(network: Network, output: str) -> float:
    """The scale of a dequantized output, else 1."""
    node = network.maker(output)
    if node is not None and node.operator == "DequantizeLinear":
        scale = network.constants.get(node.input(1))
        if scale is not None and scale.size == 1:
            return float(scale.item())
    return 1


def _differences(got: Array | None, expected: Array | None, step: float) -> npt.NDArray[np.float64]:
    """The non-zero differences, in multiples of ``step``; NaN equals NaN. If one array is missing,
    or they have different shapes, 1 for each element of the larger.
    """
    if got is None or expected is None or got.shape != expected.shape:
        return np.ones(max(0 if item is None else item.size for item in (got, expected)))
    if got.dtype.kind not in "biuf":
        return np.ones(np.count_nonzero(got != expected), np.float64)
    differs = ~((got == expected) | (got != got) & (expected != expected))
    difference = got[differs].astype(np.float64) - expected[differs].astype(np.float64)
    return np.round(difference / step, 6)
