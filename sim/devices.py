"""Devices by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .machine.dram import memory_timing
from .progress import building

if TYPE_CHECKING:
    from amaranth_vta.hw.config import Config
    from amaranth_vta.sw.runtime.device import Device

    from .trace.perfetto import Timeline

DEVICES = ("functional", "rtl", "cxxrtl", "pysim", "estimate", "board", "remote")
# Devices with base registers for programs.
WITH_BASES = ("rtl", "cxxrtl", "pysim")
# Environment variable that names the client file of a server, written by `vta serve`.
REMOTE = "VTA_REMOTE"
# Parts of the machine that can be skipped.
PARTS = ("load", "gemm", "alu", "store")


class DeviceError(ValueError):
    """A device that does not exist, or an option that it does not support."""


def open_device(
    name: str,
    config: Config,
    memory_bytes: int,
    *,
    dram: str = "ideal",
    order: str = "program",
    waves: str | Path | None = None,
    timeline: Timeline | None = None,
    skip: str | None = None,
    timing_only: bool = False,
    progress: Callable[[str], None] | None = None,
    origin: int = 0,
) -> Device:
    """Open a fresh machine with ``memory_bytes`` of zeroed memory, from address ``origin`` on.

    For cycle-accurate devices: ``dram`` is the timing of memory, ``ideal``, ``ddr`` or
    ``random:SEED``; ``waves`` is a VCD file for all runs; ``timeline`` records each run. For the
    functional model: ``order`` is ``program``, ``reverse``, ``random:SEED`` or ``last:MODULE``. For
    the estimate: ``timing_only`` computes cycles without results. ``skip`` disables a part of the
    machine, one of `PARTS`. ``progress`` is called with each step of a build; by default, steps are
    shown on standard error if that is a terminal, and logged otherwise.

    Raises `DeviceError`, `DramError` for an unknown ``dram``, `ToolchainError` if a simulator
    cannot be built, and the errors of boards and servers.
    """
    if skip is not None and skip not in PARTS:
        raise DeviceError(f"{skip!r} cannot be skipped; the parts are {', '.join(PARTS)}")
    if timing_only and name != "estimate":
        raise DeviceError(f"only the estimate can do without results; the {name} device cannot")
    if origin + memory_bytes > config.dram_bytes:
        raise DeviceError(
            f"memory of {memory_bytes:,} bytes from address {origin:#x} on is beyond the "
            f"{config.dram_bytes:,} bytes that a machine with LOG_DRAM_SIZE = "
            f"{config.log_dram_size} can address"
        )
    if origin and name in ("estimate", "board"):
        raise DeviceError(f"the memory of the {name} device begins at address 0, not {origin:#x}")
    with building(f"the {name} device", progress) as told:
        if name == "estimate":
            device = _open_estimate(config, memory_bytes, dram, waves, timeline, timing_only, told)
        else:
            device = _open(name, config, memory_bytes, dram, order, waves, timeline, told, origin)
    if skip is None:
        return device
    from .machine.skipping import SkippingDevice

    return SkippingDevice(device, skip)


def close_device(device: Device) -> None:
    """Release the resources of ``device``, and complete its wave file."""
    close = getattr(device, "close", None)
    if close is not None:
        close()


def _open(
    name: str,
    config: Config,
    memory_bytes: int,
    dram: str,
    order: str,
    waves: str | Path | None,
    timeline: Timeline | None,
    progress: Callable[[str], None] | None,
    origin: int,
) -> Device:
    # Cycle-accurate devices are imported here, since importing Amaranth takes seconds; the
    # functional model, and commands that only use the names above, do without it.
    match name:
        case "functional":
            from .model.device import FunctionalDevice

            if waves is not None:
                raise DeviceError("the functional model has no clock, hence no waves to write")
            if timeline is not None:
                raise DeviceError("the functional model has no clock, hence no timeline to write")
            memory_timing(dram)  # not used, but unknown names are rejected
            try:
                return FunctionalDevice(
                    config, memory_bytes, order, progress=progress, origin=origin
                )
            except ValueError as error:
                raise DeviceError(str(error)) from None
        case "rtl":
            from .machine.rtl.engine import RtlDevice

            return RtlDevice(config, memory_bytes, dram, waves, timeline, progress, origin=origin)
        case "cxxrtl":
            from .machine.rtl.engine import CxxrtlDevice

            if waves is not None:
                raise DeviceError("the cxxrtl device writes no waves; rtl and pysim do")
            return CxxrtlDevice(config, memory_bytes, dram, timeline, progress, origin)
        case "pysim":
            from .machine.pysim import PysimDevice

            return PysimDevice(config, memory_bytes, dram, waves, timeline, origin)
        case "board":
            from .board_model.device import open_board

            if waves is not None or timeline is not None:
                raise DeviceError("a board shows no signals, hence no waves and no timeline")
            memory_timing(dram)  # the board has its own memory, but unknown names are rejected
            return open_board(config, memory_bytes, progress)
        case "remote":
            if waves is not None or timeline is not None:
                raise DeviceError("a remote machine has no waves and no timeline here")
            return _open_remote(config, memory_bytes, dram, progress)
    raise DeviceError(f"{name!r} is not a device; the devices are {', '.join(DEVICES)}")


def _open_remote(
    config: Config, memory_bytes: int, dram: str, progress: Callable[[str], None] | None
) -> Device:
    from amaranth_vta.sw.remote.client import RemoteDevice
    from amaranth_vta.sw.remote.keys import Credentials

    memory_timing(dram)
    path = os.environ.get(REMOTE)
    if not path:
        raise DeviceError(f"{REMOTE} in the environment names no file of `vta serve`")
    return RemoteDevice(config, memory_bytes, Credentials.load(path), dram, progress)


def _open_estimate(
    config: Config,
    memory_bytes: int,
    dram: str,
    waves: str | Path | None,
    timeline: Timeline | None,
    timing_only: bool,
    progress: Callable[[str], None] | None,
) -> Device:
    from .estimate.device import EstimateDevice

    if waves is not None:
        raise DeviceError("the estimate has no signals, hence no waves to write")
    if memory_timing(dram).seed is not None:
        raise DeviceError(
            f"the estimate knows the memories ideal and ddr; the latencies of {dram} are random"
        )
    return EstimateDevice(config, memory_bytes, dram, timing_only, timeline, progress)
