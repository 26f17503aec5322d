"""The host's end of the line to a board that classifies by itself: `Classifier`."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.errors import VtaError
from amaranth_vta.export.host_tensors import size_in_bytes
from amaranth_vta.sw.board_drivers.link import Line, disconnected

from .build import Firmware

# Result of the runtime, label, cycles, and cycles of the machine.
_ANSWER = struct.Struct("<4I")
_GREETING = b"amaranth-vta: "
_READY = b"ready"
_NO_NETWORK = b"no network"
_RESULTS = ("done", "wrong machine", "fault", "timeout", "wrong index")


class ClassifierError(VtaError, RuntimeError):
    """A board does not answer, or could not run its network."""


class ClassifierInputError(VtaError, ValueError):
    """An input has another shape or other values than the network takes."""


@dataclass(frozen=True)
class Classification:
    """Outputs of a network by name, and the index of the largest element of the first one.

    ``cycles`` are counted by the processor from the last byte of the input to the first one of the
    answer; during ``machine_cycles`` of them it waited for the machine.
    """

    label: int
    outputs: Mapping[str, npt.NDArray[Any]]
    cycles: int
    machine_cycles: int


class Classifier:
    """A board with ``firmware`` whose serial line is ``line``.

    Methods also raise `LinkError` if the line is disconnected.
    """

    def __init__(self, line: Line, firmware: Firmware) -> None:
        self._line = line
        self._firmware = firmware

    def wait_until_ready(self) -> None:
        """Wait for the line of text that the firmware sends when it has started."""
        text = b""
        while not text.endswith(b"\r\n"):
            text += self._read(1)
        message = text.strip().rpartition(_GREETING)[2]
        if message == _NO_NETWORK:
            raise ClassifierError("the data of the network are not in the board's memory")
        if message != _READY:
            raise ClassifierError(f"the machine differs in {message.decode(errors='replace')}")

    def run(self, inputs: Mapping[str, npt.NDArray[Any]]) -> Classification:
        """Outputs for ``inputs``, arrays of the network's shapes by name.

        Raises `ClassifierInputError` for other arrays, and `ClassifierError` if the network does
        not run.
        """
        sent = b""
        for name, info in self._firmware.inputs.items():
            given = np.asarray(inputs[name])
            values = given.astype(info.dtype.newbyteorder("<"))
            if values.shape != info.shape:
                raise ClassifierInputError(f"{name} has shape {values.shape}, not {info.shape}")
            if info.dtype.kind != "f" and (values != given).any():
                raise ClassifierInputError(f"{name} has values that {info.dtype} does not hold")
            sent += values.tobytes()
        try:
            self._line.write(sent)
        except OSError as error:
            raise disconnected(self._line, error) from None
        result, label, cycles, machine_cycles = _ANSWER.unpack(self._read(_ANSWER.size))
        outputs = {}
        for name, info in self._firmware.outputs.items():
            data = self._read(size_in_bytes(info))
            values = np.frombuffer(data, info.dtype.newbyteorder("<"))
            outputs[name] = values.astype(info.dtype).reshape(info.shape)
        if result:
            raise ClassifierError(f"the network did not run: {_RESULTS[result]}")
        return Classification(label, outputs, cycles, machine_cycles)

    def _read(self, size: int) -> bytes:
        try:
            data = self._line.read(size)
        except OSError as error:
            raise disconnected(self._line, error) from None
        if len(data) != size:
            raise ClassifierError(f"the board sent {len(data)} of {size} bytes in time")
        return data
