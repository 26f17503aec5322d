"""Accuracy of a quantized model against its float model: a signal-to-noise ratio per tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf, log10

import numpy as np

from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session, with_outputs
from amaranth_vta.sw.runtime.network.tile_layout import Array

from .quantizer import QuantizedModel


@dataclass(frozen=True)
class Accuracy:
    """The signal-to-noise ratio, in decibels, of a tensor of the quantized model against tensor
    ``name`` of the float model, the result of ``operator``; infinite if both are equal. The ratio
    is meaningless without a signal, if the tensor is zero in all samples.
    """

    name: str
    operator: str
    decibels: float
    is_output: bool
    has_signal: bool


def accuracy(
    quantized: QuantizedModel,
    samples: Iterable[Mapping[str, Array]],
    progress: Callable[[int], None] = lambda _: None,
) -> list[Accuracy]:
    """The accuracy of all float tensors that are in both models, in the order of the float model.

    ``progress`` is called with the number of samples done.
    """
    model, pairs = quantized.float_model, dict(quantized.pairs)
    outputs = {item.name for item in model.graph.output}
    signal, noise = dict.fromkeys(pairs, 0.0), dict.fromkeys(pairs, 0.0)
    float_session = exact_session(with_outputs(model, pairs))
    int_session = exact_session(with_outputs(quantized.model, pairs.values()))

    def measure(sample: Mapping[str, Array]) -> None:
        # A function, so that its tensors are freed before the next sample runs.
        want = run_session(float_session, pairs, sample)
        got = run_session(int_session, pairs.values(), sample)
        for name, other in list(pairs.items()):
            if want[name].dtype.kind != "f" or want[name].shape != got[other].shape:
                del pairs[name]
                continue
            wanted, found = want[name].astype(np.float64), got[other].astype(np.float64)
            # Infinities of masks and NaN are not counted as signal, nor as noise.
            finite = np.isfinite(wanted)
            signal[name] += float((wanted[finite] ** 2).sum())
            noise[name] += float(((wanted - found)[finite] ** 2).sum())

    for done, sample in enumerate(samples, 1):
        measure(sample)
        progress(done)
    operators = {name: node.op_type for node in model.graph.node for name in node.output}
    return [
        Accuracy(
            name,
            operators[name],
            _decibels(signal[name], noise[name]),
            name in outputs,
            signal[name] > 0,
        )
        for name in pairs
    ]


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return inf
    if not noise < inf:  # the quantized tensor contains infinities or NaN
        return -inf
    return 10 * log10(signal / noise) if signal > 0 else -inf
