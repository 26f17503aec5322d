"""The tasks of MLPerf Tiny: the bytes that the runner sends, and the results that it expects."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.compiler.graph.load.tflite.file import FileTensor, is_tflite, read_file
from amaranth_vta.sw.runtime.network.model_error import ModelError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TinyTask:
    """A task with its ``name`` in the protocol, the number of elements of the network's input and
    output, and the dtype of the input that the runner has ``sent``.
    """

    name: str
    inputs: int
    outputs: int
    sent: str


TASKS = (
    TinyTask("kws01", 49 * 10, 12, "int8"),
    TinyTask("vww01", 96 * 96 * 3, 2, "uint8"),
    TinyTask("ic01", 32 * 32 * 3, 10, "uint8"),
    TinyTask("ad01", 640, 640, "float32"),
    TinyTask("sww01", 30 * 40, 3, "int8"),
)
# Size in bytes of the reference implementation's input buffer.
MAX_INPUT_BYTES = 96 * 96 * 3


@dataclass(frozen=True)
class TinyNetwork:
    """A network for a ``task``, with the quantization of its ``input`` and ``output``."""

    task: TinyTask
    input: FileTensor
    output: FileTensor

    @classmethod
    def of(cls, data: bytes, name: str) -> Self:
        """The network of a TensorFlow Lite file, ``name`` in messages; its task is the one with
        inputs and outputs of these sizes.

        Raises `ModelError` for other files, and for other networks.
        """
        if not is_tflite(data):
            raise ModelError(f"{name} is not a TensorFlow Lite file")
        try:
            graph = read_file(data).subgraphs[0]
            ends = [graph.tensors[index] for index in (*graph.inputs, *graph.outputs)]
        except IndexError:
            raise ModelError(f"{name} is damaged") from None
        sizes = tuple(prod(tensor.shape) for tensor in ends)
        for task in TASKS:
            if sizes == (task.inputs, task.outputs):
                break
        else:
            known = ", ".join(f"{task.inputs} → {task.outputs} ({task.name})" for task in TASKS)
            raise ModelError(
                f"{name} is not a network of MLPerf Tiny, which have one input and one output with "
                f"these numbers of elements: {known}"
            )
        for tensor in ends:
            if tensor.dtype not in (np.int8, np.uint8) or tensor.scales.size != 1:
                raise ModelError(
                    f"{name}: {tensor.name} is {tensor.dtype}, and inputs and outputs must be int8 "
                    "or uint8 with one scale"
                )
        return cls(task, *ends)

    @property
    def input_bytes(self) -> int:
        """Number of bytes that the runner sends for an inference."""
        return self.task.inputs * np.dtype(self.task.sent).itemsize

    def quantized(self, sent: bytes) -> Array:
        """The network's input, flat, for the bytes that the runner ``sent``.

        Pixels and int8 features are used unchanged; between int8 and uint8 all values move by
        128. Floats are divided by the input's scale and rounded half away from zero.
        """
        values = np.frombuffer(sent, np.dtype(self.task.sent).newbyteorder("<"))
        dtype = self.input.dtype
        if self.task.sent != "float32":
            moved = values.view(np.uint8) ^ (0 if values.dtype == dtype else 0x80)
            return np.asarray(moved.view(dtype))
        steps = np.nan_to_num(values / self.input.scale).astype(np.float64)
        rounded = np.trunc(steps + np.copysign(0.5, steps)) + self.input.zero_point
        limits = np.iinfo(dtype)
        return np.asarray(np.clip(rounded, limits.min, limits.max).astype(dtype))

    def results(self, output: Array, sent: bytes) -> list[float]:
        """The results for the network's ``output``: its values as float32, of the autoencoder
        ad01 the mean square of their differences from the floats that the runner ``sent``.
        """
        steps = output.reshape(-1).astype(np.int32) - self.output.zero_point
        values = steps.astype(np.float32) * self.output.scale
        if self.task.sent != "float32":
            return [float(value) for value in values]
        squares = (values - np.frombuffer(sent, "<f4")) ** 2
        # Added sequentially in float32, as the reference implementation does.
        return [float(np.cumsum(squares, dtype=np.float32)[-1] / np.float32(squares.size))]
