"""The device that a server opens for a client, within limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.devices import close_device, open_device
from amaranth_vta.sw.remote.messages import (
    MAX_BYTES,
    VERSION,
    MessageError,
    whole_number,
    whole_numbers,
)
from amaranth_vta.sw.runtime.device import Device


@dataclass(frozen=True)
class ServingLimits:
    """Limits: memory of a machine in bytes, duration of a run in seconds, and idle time of a client
    in seconds while others wait.
    """

    memory_bytes: int
    run_seconds: float
    idle_seconds: float


class Served:
    """Executes requests on the device ``name``. Raises `MessageError` for a malformed request, and
    the device's errors.
    """

    def __init__(self, name: str, limits: ServingLimits) -> None:
        self._name, self._limits = name, limits
        self._device: Device | None = None

    def open(
        self, request: dict[str, Any], progress: Callable[[str], None]
    ) -> tuple[dict[str, Any], bytes]:
        """Opens a fresh device with the configuration in the ``request``."""
        if request.get("version") != VERSION:
            raise MessageError(f"this server supports only version {VERSION} of the protocol")
        values, dram = request.get("config"), request.get("dram")
        if not isinstance(values, dict) or not isinstance(dram, str):
            raise MessageError("config is not an object, or dram is not text")
        size = whole_number(request, "memory_bytes")
        if size > self._limits.memory_bytes:
            raise MessageError(
                f"{size:,} bytes of memory are more than the {self._limits.memory_bytes:,} allowed"
            )
        config = Config.from_dict(values)
        self._device = open_device(self._name, config, size, dram=dram, progress=progress)
        return {}, b""

    def act(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Executes a request on the open device and returns the reply."""
        device = self._device
        assert device is not None
        match request.get("do"):
            case "write":
                device.write(whole_number(request, "address"), data)
                return {}, b""
            case "read":
                size = whole_number(request, "size")
                if size > MAX_BYTES:
                    raise MessageError(f"more than {MAX_BYTES:,} bytes at a time")
                return {}, device.read(whole_number(request, "address"), size).tobytes()
            case "run":
                # Clients of earlier releases send no limits.
                limits = whole_numbers(request, "limits") if "limits" in request else ()
                device.set_limits(dict(zip(isa.LIMITED, limits, strict=False)))
                result = device.run(
                    whole_number(request, "insn_addr"),
                    whole_number(request, "insn_count"),
                    self._seconds(request.get("time_limit")),
                    whole_numbers(request, "watched"),
                )
                return {"result": asdict(result)}, b""
        raise MessageError(f"{request.get('do')!r} is not a request")

    def _seconds(self, asked: Any) -> float:
        if asked is None:
            return self._limits.run_seconds
        if isinstance(asked, bool) or not isinstance(asked, int | float) or not asked >= 0:
            raise MessageError("time_limit is not a number of 0 or more")
        return min(float(asked), self._limits.run_seconds)

    def close(self) -> None:
        if self._device is not None:
            close_device(self._device)
        self._device = None
