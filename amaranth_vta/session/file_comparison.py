"""Compares results with the unchanged model file, since canonicalization rewrites the model.

Two checks. End to end: the largest difference of each output. Later layers can amplify a single
step that an earlier layer rounds differently, so its limit is wide. Layer by layer: each layer of
the canonical form runs on tensors computed by the file, and its integers are compared with the
numbers that the file quantizes. They may differ by half a step plus the layer's rounding bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from amaranth_vta.sw.runtime.network.tile_layout import Array

from .batches import Run
from .sequences import flattened

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from amaranth_vta.sw.compiler.graph.network import Network

# An output may differ by this fraction of its range, or by this many steps if that is more.
MOST_OF_RANGE = 0.25
MOST_STEPS = 2
# An output may also differ by this multiple of the difference between a default session and an
# exact one: if that is large, the network amplifies single steps.
_OF_DEFAULT = 2
# Tolerance for quotients of differences and float32 scales, which are inexact.
_SLACK = 1e-3
# Rounding error of a layer in the file, in steps of its result: in float32, and in files with
# float16, whose precision of 11 bits is 1/16 step for a result of 128 steps.
_NOISE = 1 / 64
_NOISE_OF_HALVES = 128 * 2**-11
# Stands for the difference between a number and an infinity or NaN; JSON has no infinities.
_FAR = 1e30
# The suffix of graph inputs that take tensors computed by the file.
_GIVEN = "/of the file"
# Integer products. With uint8 data and int8 weights, ONNX Runtime saturates their sums on
# processors without VNNI.
_PRODUCTS = frozenset({"QLinearConv", "QLinearMatMul", "QGemm", "ConvInteger", "MatMulInteger"})


@dataclass(frozen=True)
class OutputDifference:
    """The difference of an output from the file's.

    ``of_range`` is the largest difference as a fraction of the range of the file's output, and
    ``steps`` the same difference in steps of the output's quantization, None if it is not
    quantized. ``same_class`` counts the ``samples`` with the same argmax; None if the output is not
    one vector per sample. ``limit`` is the largest ``of_range`` that passes.
    """

    of_range: float
    steps: float | None
    same_class: int | None
    samples: int
    limit: float = MOST_OF_RANGE

    @property
    def ok(self) -> bool:
        few_steps = self.steps is not None and self.steps <= MOST_STEPS + _SLACK
        return few_steps or self.of_range <= self.limit


@dataclass(frozen=True)
class LayerDifference:
    """The difference of an 8-bit tensor, computed from the file's own tensors, from the file's.

    ``steps`` is the largest difference. ``unrounded`` is the largest distance, in steps, from the
    input of the file's QuantizeLinear; None if another operator produces the tensor. ``bound``
    comes from `Rounding.bounds`. ``noise`` is the rounding error of the file itself, in steps.
    """

    steps: int
    unrounded: float | None
    bound: float
    noise: float = _NOISE

    @property
    def limit(self) -> float:
        """Largest ``unrounded`` that passes."""
        return 0.5 + self.bound + self.noise

    @property
    def ok(self) -> bool:
        if self.unrounded is not None:
            return self.unrounded <= self.limit
        return self.steps <= 1 + int(self.bound)

    def and_also(self, other: LayerDifference | None) -> LayerDifference:
        """Combines two differences of the same tensor: the larger ``steps`` and ``unrounded``."""
        if other is None:
            return self
        unrounded = None
        if self.unrounded is not None and other.unrounded is not None:
            unrounded = max(self.unrounded, other.unrounded)
        return replace(self, steps=max(self.steps, other.steps), unrounded=unrounded)


@dataclass(frozen=True)
class FileComparison:
    """Differences from the file in a session without optimizations, by tensor name: of its outputs,
    and of the ``layers`` whose results are in both the file and the canonical form.
    """

    outputs: dict[str, OutputDifference]
    layers: dict[str, LayerDifference]

    @property
    def ok(self) -> bool:
        outputs, layers = self.outputs.values(), self.layers.values()
        return all(item.ok for item in outputs) and all(item.ok for item in layers)


def compare_with_file(
    outputs: dict[str, Array],
    network: Network,
    model: onnx.ModelProto,
    images: int,
    in_batches: Callable[[Run], Mapping[str, Array]],
    optimized: Mapping[str, Array] | None = None,
) -> FileComparison:
    """Compares ``outputs`` with the outputs of ``model``.

    ``network`` is its canonical form for runs of ``images``. ``in_batches`` feeds the inputs of
    ``outputs`` to a given run function; ``optimized`` are the outputs of the model in a default
    session. Raises `ModelError` if ONNX Runtime cannot run the model as it stands.
    """
    layers = _Layers(network, _without_saturation(model, images), list(outputs))
    results, wanted = flattened(outputs), flattened(in_batches(layers.run))
    found = {
        name: _difference(value, wanted[name], _step(network, name))
        for name, value in results.items()
    }
    for name, values in flattened(optimized or {}).items():
        limit = _OF_DEFAULT * _difference(values, wanted[name], None).of_range
        found[name] = replace(found[name], limit=max(MOST_OF_RANGE, limit))
    return FileComparison(found, layers.found)


class _Layers:
    """Runs the file, and on the file's tensors also each layer of the canonical form."""

    def __init__(self, network: Network, model: onnx.ModelProto, outputs: list[str]) -> None:
        from amaranth_vta.sw.compiler.graph.canonical.quantization import BYTE_TYPES
        from amaranth_vta.sw.compiler.graph.network import initial_values
        from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, with_outputs

        from .file_roundings import roundings_of

        of_file = {name for node in model.graph.node for name in node.output if name}
        made = (name for node in network.nodes for name in node.outputs if name in of_file)
        self._common = [name for name in made if network.types[name].dtype in BYTE_TYPES]
        self._network, self._outputs = network, outputs
        self._noise = _NOISE_OF_HALVES if _has_halves(model) else _NOISE
        self._quantized, model = roundings_of(model, self._common)
        of_file.update(name for node in model.graph.node for name in node.output)
        sources = (item.source for item in self._quantized.values() if item.source in of_file)
        self._wanted = list(dict.fromkeys([*outputs, *self._common, *sources]))
        self._file = exact_session(with_outputs(model, self._wanted))
        self._canonical: onnxruntime.InferenceSession | None = None
        # Initial values of variables, which have other names where they hold integers.
        self._start_of_file = initial_values(model)
        self._start = {item.source: item.initial for item in network.states}
        # Rounding bounds of shared tensors that are computed from shared tensors with at most one
        # rounding.
        self._bounds: dict[str, float] = {}
        self.found: dict[str, LayerDifference] = {}

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        """The outputs of the file; updates ``found``."""
        from amaranth_vta.sw.runtime.network.onnx_runtime import run_session

        found = feeds | run_session(self._file, self._wanted, feeds | self._start_of_file)
        if self._canonical is None:
            # Shape inference may have left shapes unknown, so types are compared with actual
            # results.
            self._common = [name for name in self._common if self._is_same(name, found[name])]
            self._bounds = self._bounds_of_layers()
        if self._common:
            self._canonical = self._canonical or self._session()
            given = feeds | self._start | {name + _GIVEN: found[name] for name in self._common}
            needed = {item.name: given[item.name] for item in self._canonical.get_inputs()}
            for name, value in run_session(self._canonical, self._common, needed).items():
                if name in self._bounds:
                    difference = self._difference(name, value, found)
                    self.found[name] = difference.and_also(self.found.get(name))
        return {name: found[name] for name in self._outputs}

    def _difference(self, name: str, value: Array, found: dict[str, Array]) -> LayerDifference:
        low, high = self._limits(name)
        got, wanted = (np.clip(item.astype(np.int16), low, high) for item in (value, found[name]))
        unrounded, quantized = None, self._quantized.get(name)
        if quantized is not None and found[quantized.source].shape == value.shape:
            exact = np.clip(quantized.unrounded(found), low, high)
            unrounded = float(np.nan_to_num(np.abs(got - exact), nan=0.0).max(initial=0))
        steps = int(np.abs(got - wanted).max(initial=0))
        return LayerDifference(steps, unrounded, self._bounds[name], self._noise)

    def _bounds_of_layers(self) -> dict[str, float]:
        """The rounding bound of each shared tensor that is computed from shared tensors with at
        most one rounding.
        """
        given, bounds = set(self._common), self._network.rounding.bounds
        times: dict[str, int] = {}
        moved: dict[str, float] = {}
        for node in self._network.nodes:
            made = [name for name in node.reads if name not in given]
            rounds = node.operator == "QuantizeLinear" or node.operator.startswith("QLinear")
            number = max((times.get(name, 0) for name in made), default=0) + rounds
            bound = max((moved.get(name, 0.0) for name in made), default=0.0)
            for name in node.outputs:
                times[name], moved[name] = number, bound + bounds.get(node.name, 0.0)
        return {name: moved[name] for name in self._common if times[name] <= 1}

    def _limits(self, name: str) -> tuple[int, int]:
        """The range of a tensor's type, narrowed to the bounds of a Clip if that is the only
        reader.
        """
        network, limits = self._network, np.iinfo(self._network.types[name].dtype)
        clip = network.only_reader(name)
        if clip is None or clip.operator != "Clip" or clip.domain:
            return limits.min, limits.max
        low, high = (network.constants.get(clip.input(index)) for index in (1, 2))
        return (
            limits.min if low is None else int(low.item()),
            limits.max if high is None else int(high.item()),
        )

    def _is_same(self, name: str, value: Array) -> bool:
        info = self._network.types[name]
        return (info.dtype, info.shape) == (value.dtype, value.shape)

    def _session(self) -> onnxruntime.InferenceSession:
        """A session of the canonical form in which reads of shared tensors are graph inputs."""
        from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session

        given, network = set(self._common), self._network
        types = network.types | {name + _GIVEN: network.types[name] for name in given}
        work = replace(network.copied(), outputs=self._common, types=types)
        for node in network.nodes:
            inputs = tuple(name + _GIVEN if name in given else name for name in node.inputs)
            if inputs != node.inputs:
                work.nodes.replace(node, [replace(node, inputs=inputs)])
        work.drop_unused()
        read = {name for node in work.nodes for name in node.reads}
        possible = (*network.inputs, *(name + _GIVEN for name in self._common))
        needed = [name for name in possible if name in read]
        model = work.part(work.nodes, needed, self._common)
        return exact_session(model.SerializeToString())


def _has_halves(model: onnx.ModelProto) -> bool:
    """Whether an initializer, a Constant or an input is float16."""
    from onnx import TensorProto

    graph = model.graph
    attributes = (item for node in graph.node for item in node.attribute)
    types = [item.data_type for item in graph.initializer]
    types += [item.t.data_type for item in attributes]
    types += [item.type.tensor_type.elem_type for item in graph.input]
    return TensorProto.FLOAT16 in types


def _without_saturation(model: onnx.ModelProto, images: int) -> onnx.ModelProto:
    """``model``; if it has integer products, rewritten so that weights of products with uint8 data
    are uint8 too.
    """
    if not any(node.op_type in _PRODUCTS for node in model.graph.node):
        return model
    from amaranth_vta.sw.compiler.graph.canonical.integer_products import match_weights
    from amaranth_vta.sw.compiler.graph.canonical.rewriting import rewrite
    from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network

    network = load_network(model, images)
    rewrite(network, (match_weights,))
    return network.to_onnx()


def _step(network: Network, name: str) -> float | None:
    """The quantization step of an output; None if it is not quantized, or part of a sequence."""
    from amaranth_vta.sw.compiler.graph.canonical.quantization import BYTE_TYPES, parameters_of

    from .file_roundings import MOVES

    if name not in network.types:
        return None
    node = network.maker(name)
    while node is not None and node.operator in MOVES:
        name = node.inputs[0]
        node = network.maker(name)
    if network.types[name].dtype in BYTE_TYPES:
        return 1
    parameters = parameters_of(network, node, "DequantizeLinear")
    if parameters is None or not parameters.per_tensor or parameters.zero.dtype not in BYTE_TYPES:
        return None
    return float(parameters.scale.item()) or None


def _difference(got: Array, wanted: Array, step: float | None) -> OutputDifference:
    samples = len(wanted) if wanted.ndim else 1
    numeric = wanted.dtype.kind == "f" or wanted.dtype.itemsize == 1
    if not numeric or not wanted.size:  # indices and truth values have no distance
        return OutputDifference(0.0, None, None, samples)
    same_class = None
    if wanted.ndim > 1 and sum(size > 1 for size in wanted.shape[1:]) == 1:
        first, second = (item.reshape(samples, -1).argmax(axis=1) for item in (got, wanted))
        same_class = int((first == second).sum())
    with np.errstate(invalid="ignore"):
        off = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
    # Infinities of the same sign and NaN equal themselves.
    same = (got == wanted) | (got != got) & (wanted != wanted)
    most = float(np.nan_to_num(np.where(same, 0, off), nan=_FAR, posinf=_FAR).max())
    values = wanted[np.isfinite(wanted)].astype(np.float64)
    extent = float(np.ptp(values)) if values.size else 0.0
    extent = extent or float(np.abs(values).max(initial=0)) or 1.0
    steps = None if step is None else most / step
    return OutputDifference(most / extent, steps, same_class, samples)
