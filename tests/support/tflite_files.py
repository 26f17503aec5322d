"""TensorFlow Lite files for tests: `DrawnNetwork` draws tensors and options at random, and `case`
finishes a file with inputs for several runs and the results of LiteRT's reference kernels."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from amaranth_vta.networks.tflite_file import Array, TfliteTensor
from amaranth_vta.networks.tflite_network import TfliteNetwork, reference
from amaranth_vta.report.host_summary import host_groups
from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.load.tflite.reference_kernels import open_reference
from amaranth_vta.sw.runtime.network.model_error import ModelError

# Reasons for operators that convert or move tensors between the network's ends and the machine.
_ENDS = (
    *("conversions between floats", "packing of pixels", "operators between others"),
    *("it reads ", "only the host reads"),
)
ACTIVATIONS = ("NONE", "NONE", "RELU", "RELU6", "RELU_N1_TO_1")


@dataclass(frozen=True)
class TfliteCase:
    """A ``model`` with the inputs of several ``runs``, and the outputs that LiteRT's reference
    kernels have for each, ``wanted``, both in the order of the file."""

    operator: str
    name: str
    model: bytes = field(repr=False)
    runs: list[list[Array]] = field(repr=False)
    wanted: list[list[Array]] = field(repr=False)


@dataclass(frozen=True)
class Outcome:
    """How a session ran a case: the number of ``different`` elements, and the reasons for running
    operators of it on the host, apart from its ends; or why it is ``refused``."""

    different: int = 0
    reasons: tuple[str, ...] = ()
    refused: str = ""


def run_case(case: TfliteCase, config: str, device: str = "functional") -> Outcome:
    """Compile and run a case, and compare all elements with LiteRT's results."""
    try:
        with Session(case.model, config, device) as session:
            found = [_run(session, run) for run in case.runs]
            layers = session.layers
    except ModelError as error:
        return Outcome(refused=str(error))
    different = sum(
        _different(values, wanted)
        for run, outputs in zip(found, case.wanted, strict=True)
        for values, wanted in zip(run, outputs, strict=True)
    )
    reasons = [group.reason for group in host_groups(layers)]
    if any(layer.placed_on == "machine" for layer in layers):
        reasons = [reason for reason in reasons if not reason.startswith(_ENDS)]
    return Outcome(different, tuple(reasons))


def file_case(path: Path, count: int, seed: int) -> TfliteCase:
    """A file with ``count`` random inputs, and the outputs of each."""
    model, rng = path.read_bytes(), np.random.default_rng(seed)
    interpreter = open_reference(model)
    details, results = interpreter.get_input_details(), interpreter.get_output_details()
    runs, wanted = [], []
    for _ in range(count):
        run = [_random_values(rng, tuple(item["shape"]), item["dtype"]) for item in details]
        runs.append(run)
        for item, values in zip(details, run, strict=True):
            interpreter.set_tensor(item["index"], values)
        interpreter.invoke()
        wanted.append([interpreter.get_tensor(item["index"]) for item in results])
    return TfliteCase(path.stem, path.stem, model, runs, wanted)


def _random_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Floats, or integers over the whole range."""
    if np.issubdtype(dtype, np.floating):
        return rng.normal(0, 2, shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def _run(session: Session, run: Sequence[Array]) -> list[Array]:
    outputs = session.run(dict(zip(session.inputs, run, strict=True)))
    return [outputs[name] for name in session.outputs]


def _different(values: Array, wanted: Array) -> int:
    if values.shape != wanted.shape or values.dtype != wanted.dtype:
        return wanted.size
    return int((values != wanted).sum())


class DrawnNetwork(TfliteNetwork):
    """A network whose tensors, options and scales are drawn at random from ``seed``."""

    FADED = (-6.0, -1.0)

    def __init__(self, seed: int, dtype: str = "int8") -> None:
        super().__init__(seed, dtype)
        self.choose = random.Random(seed)
        # Scales that are powers of two lead to many ties in roundings.
        self._has_powers = self.choose.random() < 0.25
        self.inputs: list[TfliteTensor] = []

    def chance(self, probability: float) -> bool:
        return self.choose.random() < probability

    def integer(self, low: int, high: int) -> int:
        return self.choose.randint(low, high)

    def rounded(self, scale: float) -> float:
        if self._has_powers:
            return float(2.0 ** np.rint(np.log2(scale)))
        return super().rounded(scale)

    def given(self, *shape: int) -> TfliteTensor:
        """An input with its own scale."""
        magnitude = 10.0 ** self.choose.uniform(-2, 1)
        middle = self.choose.choice((0.0, 0.0, 0.5, -1.0, 3.0))
        example = (self.rng.normal(0, 1, shape) + middle) * magnitude
        if self.chance(0.2):
            example = np.abs(example)
        tensor = self.example_input(np.asarray(example, np.float32))
        self.inputs.append(tensor)
        return tensor

    def like(self, other: TfliteTensor, *shape: int, is_constant: bool = False) -> TfliteTensor:
        """A tensor with the scale of ``other``: an input, or a constant."""
        assert other.scale is not None
        assert other.zero_point is not None
        scale, zero_point = float(other.scale[0]), int(other.zero_point[0])
        low, high = other.limits
        levels = self.rng.integers(low, high + 1, shape).astype(other.dtype)
        if is_constant:
            return self.constant(levels, scale, zero_point)
        tensor = self.input(shape, scale, zero_point, other.dtype)
        self.keep(tensor, tensor.real(levels))
        self.inputs.append(tensor)
        return tensor

    def image(self, channels: int = 0, least: int = 1, most: int = 9) -> TfliteTensor:
        """An input (N, H, W, C)."""
        height, width = self.integer(least, most), self.integer(least, most)
        images = 2 if self.chance(0.1) else 1
        return self.given(images, height, width, channels or self.integer(1, 20))

    def anything(self, least: int = 1, most: int = 4) -> TfliteTensor:
        """An input with a random number of dimensions."""
        count = self.integer(least, most)
        sizes = (1 if self.chance(0.2) else self.integer(1, 9) for _ in range(count))
        return self.given(*sizes)

    def activation(self) -> str:
        return self.choose.choice(ACTIVATIONS)

    def random_inputs(self, uniform: bool) -> list[Array]:
        """Values for all inputs: over the whole range, or mostly in its middle."""
        return [self._random(tensor, uniform) for tensor in self.inputs]

    def _random(self, tensor: TfliteTensor, uniform: bool) -> Array:
        if uniform or tensor.dtype == "float32":
            return _random_values(self.rng, tensor.shape, np.dtype(tensor.dtype))
        low, high = tensor.limits
        middle = self.rng.normal((low + high) / 2, (high - low) / 8, tensor.shape)
        return np.clip(np.rint(middle), low, high).astype(tensor.dtype)


def case(
    net: DrawnNetwork, operator: str, name: str, outputs: Sequence[TfliteTensor]
) -> TfliteCase:
    """The finished file; raises `RuntimeError` or `ValueError` if LiteRT refuses it."""
    net.output(*outputs)
    model = net.bytes()
    runs = [net.random_inputs(uniform) for uniform in (True, False)]
    return TfliteCase(operator, name, model, runs, [reference(model, *run) for run in runs])
