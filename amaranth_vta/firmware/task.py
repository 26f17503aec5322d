"""The C header of a task of MLPerf Tiny, for firmware that answers its runner: `task_header`."""

from __future__ import annotations

from math import prod

import numpy as np

from amaranth_vta.errors import VtaError
from amaranth_vta.serving.mlperf_tiny import protocol
from amaranth_vta.serving.mlperf_tiny.tasks import TinyNetwork
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram


class TaskError(VtaError, ValueError):
    """A network was not compiled from a task's TensorFlow Lite file."""


def task_header(task: TinyNetwork, network: NetworkProgram) -> str:
    """Constants of ``task`` for ``network``, which was compiled from its file.

    Raises `TaskError` if inputs or outputs of the two differ.
    """
    for kind, tensors, end in (
        ("input", network.inputs, task.input),
        ("output", network.outputs, task.output),
    ):
        found = [(info.dtype, prod(info.shape or ())) for info in tensors.values()]
        if found != [(end.dtype, prod(end.shape))]:
            raise TaskError(
                f"the network was not compiled from the file of MLPerf Tiny: its {kind}s are "
                f"{', '.join(map(str, tensors.values()))}, and {end.name} is "
                f"{end.dtype}{[*end.shape]}"
            )
    given, sends_floats = task.input.dtype, task.task.sent == "float32"
    values = {
        "NAME": f'"{task.task.name}"',
        "INPUTS": task.task.inputs,
        "OUTPUTS": task.task.outputs,
        "SENDS_FLOATS": int(sends_floats),
        # Between int8 and uint8 all values move by 128.
        "FLIP": 0 if sends_floats or given == np.dtype(task.task.sent) else 0x80,
        "INPUT_LOW": f"({np.iinfo(given).min})",
        "INPUT_ZERO": f"({task.input.zero_point})",
        "INPUT_SCALE": f"{float(task.input.scale).hex()}f",
        "OUTPUT_LOW": f"({np.iinfo(task.output.dtype).min})",
        "OUTPUT_ZERO": f"({task.output.zero_point})",
        "OUTPUT_SCALE": f"{float(task.output.scale).hex()}f",
        "PROTOCOL": f'"{protocol.PROTOCOL}"',
        "HELP": '"' + protocol.HELP.replace("\n", "\\r\\n") + '\\r\\n"',
        "WARMUPS": protocol.WARMUPS,
        "MOST_INFERENCES": protocol.MAX_INFERENCES,
        "MOST_CHARACTERS": protocol.MAX_COMMAND,
        "BYTES_PER_LINE": protocol.BYTES_PER_LINE,
    }
    return "".join(f"#define TASK_{name} {value}\n" for name, value in values.items())
