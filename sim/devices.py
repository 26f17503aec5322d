"""Devices by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from amaranth_vta.errors import VtaError
from amaranth_vta.hw.system.parameters import SystemConfig

from .estimate.contract import MemoryContract
from .machine.dram import memory_timing
from .progress import building
from .trace.wave_file import VCD, wave_format

if TYPE_CHECKING:
    from amaranth_vta.hw.config import Config
    from amaranth_vta.sw.runtime.device import Device, SystemDevice

    from .trace.perfetto import Timeline

DEVICES = ("functional", "rtl", "cxxrtl", "pysim", "estimate", "bound", "board", "remote")
# Devices with base registers for programs.
WITH_BASES = ("rtl", "cxxrtl", "pysim")
# Environment variable that names the client file of a server, written by `vta serve`.
REMOTE = "VTA_REMOTE"
# Parts of the machine that can be skipped.
PARTS = ("load", "gemm", "alu", "store")


class DeviceError(VtaError, ValueError):
    """A device that does not exist, or an option that it does not support."""


@dataclass(frozen=True)
class RunOptions:
    """A device and its options, as `open_device`, `Session` and the commands take them.

    ``device`` is a name in `DEVICES`, or a device that is open already, to which only ``dram``, the
    timing that bounds assume, applies. ``dram`` is ``ideal``, ``ddr`` or ``random:SEED``. On
    cycle-accurate devices, ``waves`` is a file with all signals of all runs, in its `wave_format`,
    and ``timeline`` records each run; a simulated board has waves too.
    ``skip`` disables a part of the machine, one of `PARTS`. With ``timing_only`` the estimate and
    the bound compute cycles without results. ``memory_contract`` is the text of a `MemoryContract`
    for the bound; by default, of what ``dram`` promises. ``progress`` is called with each step of
    a build; by default, steps are shown on standard error if that is a terminal, and logged
    otherwise. ``machines`` is the number of machines, which share a bus of ``memory_bus`` bits, as
    in `SystemConfig`.
    """

    device: Device | str = "functional"
    dram: str = "ideal"
    waves: str | Path | None = None
    timeline: Timeline | None = None
    skip: str | None = None
    timing_only: bool = False
    progress: Callable[[str], None] | None = None
    machines: int = 1
    memory_bus: int = 0
    memory_contract: str | None = None

    @classmethod
    def of(cls, device: RunOptions | Device | str, dram: str, keywords: RunKeywords) -> RunOptions:
        """``device`` if it is `RunOptions`, else options from all arguments. Raises `TypeError` if
        both `RunOptions` and other arguments are given."""
        if not isinstance(device, RunOptions):
            return cls(device, dram, **keywords)
        if keywords or dram != cls.dram:
            raise TypeError("options are given both in RunOptions and as keyword arguments")
        return device

    @property
    def name(self) -> str:
        """The name of the device."""
        return self.device if isinstance(self.device, str) else self.device.name

    @property
    def contract(self) -> MemoryContract | None:
        """The contract of the memory for which cycles are an upper bound; None on other devices
        than the bound. Raises `ContractError`.
        """
        if not isinstance(self.device, str):
            return getattr(self.device, "contract", None)
        if self.device != "bound":
            if self.memory_contract is not None:
                raise DeviceError(f"the {self.device} device takes no memory contract; bound does")
            return None
        if self.memory_contract is None:
            return MemoryContract.of(memory_timing(self.dram))
        return MemoryContract.parse(self.memory_contract)

    @property
    def has_results(self) -> bool:
        """Whether runs compute correct results, not only cycles."""
        return self.skip is None and not self.timing_only

    def open(
        self, config: Config, memory_bytes: int, *, order: str = "program", origin: int = 0
    ) -> Device:
        """The device, opened as by `open_device`."""
        if not isinstance(self.device, str):
            return self.device
        if self.skip is not None and self.skip not in PARTS:
            raise DeviceError(f"{self.skip!r} cannot be skipped; the parts are {', '.join(PARTS)}")
        if self.timing_only and self.name not in ("estimate", "bound"):
            raise DeviceError(
                f"only estimate and bound can omit results; the {self.name} device cannot"
            )
        _ = self.contract  # raises for a wrong one before anything is built
        if origin + memory_bytes > config.dram_bytes:
            raise DeviceError(
                f"memory of {memory_bytes:,} bytes from address {origin:#x} on is beyond the "
                f"{config.dram_bytes:,} bytes that a machine with LOG_DRAM_SIZE = "
                f"{config.log_dram_size} can address"
            )
        system = SystemConfig(config, self.machines, self.memory_bus)
        if not system.is_single:
            return self._open_system(system, memory_bytes, origin)
        if origin and self.name in ("estimate", "bound", "board"):
            raise DeviceError(_begins_at_0(self.name, origin))
        with building(f"the {self.name} device", self.progress) as told:
            device = _open(replace(self, progress=told), config, memory_bytes, order, origin)
        if self.skip is None:
            return device
        from .machine.skipping import SkippingDevice

        return SkippingDevice(device, self.skip)

    def _open_system(self, system: SystemConfig, memory_bytes: int, origin: int) -> SystemDevice:
        """Several machines; raises `DeviceError` for options that only a single one has."""
        if origin and self.name == "estimate":
            raise DeviceError(_begins_at_0(self.name, origin))
        if self.waves is not None or self.timeline is not None or self.skip is not None:
            raise DeviceError(
                f"{system.machines} machines have no waves, no timeline and no part to skip: "
                "these are options of a single machine"
            )
        with building(f"the {self.name} device", self.progress) as told:
            match self.name:
                case "functional":
                    from .systems import FunctionalSystem

                    memory_timing(self.dram)  # not used, but unknown names are rejected
                    return FunctionalSystem(system, memory_bytes, told, origin)
                case "rtl":
                    from .machine.rtl.system import RtlSystem

                    return RtlSystem(system, memory_bytes, self.dram, told, origin)
                case "estimate":
                    from .systems import EstimateSystem

                    _refuse_random(self.dram)
                    return EstimateSystem(system, memory_bytes, self.dram, self.timing_only, told)
        raise DeviceError(
            f"the device {self.name} is a single machine; those with {system.machines} are "
            "functional, rtl and estimate"
        )


class RunKeywords(TypedDict, total=False):
    """Fields of `RunOptions` as keyword arguments, for type checkers."""

    waves: str | Path | None
    timeline: Timeline | None
    skip: str | None
    timing_only: bool
    progress: Callable[[str], None] | None
    machines: int
    memory_bus: int
    memory_contract: str | None


def open_device(
    name: str,
    config: Config,
    memory_bytes: int,
    *,
    dram: str = "ideal",
    order: str = "program",
    origin: int = 0,
    **options: Unpack[RunKeywords],
) -> Device:
    """Open a fresh machine with ``memory_bytes`` of zeroed memory, from address ``origin`` on.

    ``dram`` and the keywords ``waves``, ``timeline``, ``skip``, ``timing_only``,
    ``memory_contract`` and ``progress`` are as in `RunOptions`. For the functional model,
    ``order`` is ``program``, ``reverse``, ``random:SEED`` or ``last:MODULE``.

    Raises `DeviceError`, `DramError` for an unknown ``dram``, `ToolchainError` if a simulator
    cannot be built, and the errors of boards and servers.
    """
    return RunOptions(name, dram, **options).open(config, memory_bytes, order=order, origin=origin)


def _begins_at_0(name: str, origin: int) -> str:
    return f"the memory of the {name} device begins at address 0, not {origin:#x}"


def close_device(device: Device) -> None:
    """Release the resources of ``device``, and complete its wave file."""
    close = getattr(device, "close", None)
    if close is not None:
        close()


def _refuse_random(dram: str) -> None:
    """Raises `DeviceError` for a memory that the estimate does not support."""
    if memory_timing(dram).seed is not None:
        raise DeviceError(
            f"the estimate supports only the memories ideal and ddr; the latencies of {dram} are "
            "random"
        )


def _open(
    options: RunOptions, config: Config, memory_bytes: int, order: str, origin: int
) -> Device:
    # Cycle-accurate devices are imported here, since importing Amaranth takes seconds; the
    # functional model, and commands that only use the names above, do without it.
    name, dram, waves, timeline = options.name, options.dram, options.waves, options.timeline
    progress = options.progress
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

            if waves is not None and wave_format(waves) != VCD:
                raise DeviceError("the pysim device writes waves as VCD only; rtl also as FST")
            return PysimDevice(config, memory_bytes, dram, waves, timeline, origin)
        case "estimate":
            from .estimate.device import EstimateDevice

            if waves is not None:
                raise DeviceError("the estimate has no signals, hence no waves to write")
            _refuse_random(dram)
            return EstimateDevice(
                config, memory_bytes, dram, options.timing_only, timeline, progress
            )
        case "bound":
            from .estimate.device import BoundDevice

            if waves is not None or timeline is not None:
                raise DeviceError("the bound simulates no run, hence no waves and no timeline")
            contract = options.contract
            assert contract is not None
            return BoundDevice(config, memory_bytes, contract, options.timing_only, progress)
        case "board":
            from .board_model.device import open_board

            if timeline is not None:
                raise DeviceError("a board does not report what its modules do, hence no timeline")
            memory_timing(dram)  # the board has its own memory, but unknown names are rejected
            return open_board(config, memory_bytes, progress, waves)
        case "remote":
            if waves is not None or timeline is not None:
                raise DeviceError("a remote machine has no waves and no timeline here")
            from amaranth_vta.sw.remote.client import RemoteDevice
            from amaranth_vta.sw.remote.keys import Credentials

            memory_timing(dram)
            path = os.environ.get(REMOTE)
            if not path:
                raise DeviceError(
                    f"{REMOTE} in the environment does not name a client's file of `vta serve`"
                )
            return RemoteDevice(config, memory_bytes, Credentials.load(path), dram, progress)
    raise DeviceError(f"{name!r} is not a device; the devices are {', '.join(DEVICES)}")
