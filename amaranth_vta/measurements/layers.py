"""Benchmarks the convolutions of ResNet-18, with bias, requantization and clipping, layer by layer.

Each layer uses the compiler's schedule, or a hand-written one for comparison, on random data. Its
results are compared with NumPy and with the functional model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.devices import RunOptions
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import PerChannelScale
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d, conv2d
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling
from amaranth_vta.sw.compiler.tuner.workload import choose
from amaranth_vta.sw.runtime.device import Device, Limits, RunResult
from amaranth_vta.sw.runtime.runtime import Runtime
from amaranth_vta.sw.runtime.work import Work, work

from .layer_data import Bytes, layer_data
from .measurement import Measurement
from .resnet18 import LayerRow, rows

# Targets as fractions of the bound. 1x1 layers are short: their first loads and last stores, which
# nothing overlaps, take a tenth of the cycles.
_TARGET = 0.92
_SHORT_TARGETS = {"1x1 s2 64-128": 0.83, "1x1 s2 128-256": 0.85, "1x1 s2 256-512": 0.9}
_SPARE_BYTES = 1 << 20


def measure_layers(
    config: Config, options: RunOptions, by_hand: bool = False
) -> Iterator[Measurement]:
    """Yields one measurement per layer, in network order, with schedules chosen by the compiler or
    ``by_hand``. Raises `LoweringError` if no schedule fits the machine.
    """
    for row in rows(config):
        data = layer_data(row.workload, config)
        size = _SPARE_BYTES + sum(part.nbytes for part in data)
        device = _WatchedDevice(options.open(config, size))
        if options.timeline is not None:
            options.timeline.begin(row.name)
        yield _measure(row, row.knobs if by_hand else None, data, device, options.dram)


def explanations(config: Config) -> Iterator[tuple[str, str]]:
    """The name of each layer, and a table of the schedules that the compiler considers for it."""
    for row in rows(config):
        yield row.name, str(choose(row.workload, config))


def layer_bound(layer: Conv2d, config: Config, dram: str) -> int:
    """Lower bound on the cycles of a layer: the larger of compute time at the array's peak rate,
    and of bus time if each pixel that the kernel reads, each weight and each result is transferred
    once.
    """
    taps = layer.kernel[0] * layer.kernel[1]
    pixels = layer.batch * layer.output_height * layer.output_width
    met = layer.batch * _met(layer, 0) * _met(layer, 1)
    read = met * layer.inputs * config.inp.element_bytes
    read += layer.inputs * layer.outputs * taps * config.wgt.element_bytes
    read += layer.outputs * config.block_out * _constant_bytes(layer, config)
    words_read = -(-read // config.bus_bytes)
    words_written = -(-pixels * layer.outputs * config.out.element_bytes // config.bus_bytes)
    bus = memory_timing(dram).least_cycles(words_read, words_written)
    return max(pixels * layer.inputs * layer.outputs * taps, bus)


def _met(layer: Conv2d, axis: int) -> int:
    """Number of rows (axis 0) or columns (axis 1) of the image that the kernel reads."""
    extent = (layer.height, layer.width)[axis]
    results = (layer.output_height, layer.output_width)[axis]
    first = -layer.pads[axis]
    met = {
        first + result * layer.strides[axis] + tap * layer.dilations[axis]
        for result in range(results)
        for tap in range(layer.kernel[axis])
    }
    return len(met & set(range(extent)))


def _constant_bytes(layer: Conv2d, config: Config) -> int:
    """Bytes of an output channel besides its weights: a bias, and a scale if requantized per
    channel.
    """
    return config.acc_width // 8 * (2 if isinstance(layer.requantize, PerChannelScale) else 1)


def _measure(
    row: LayerRow,
    knobs: Tiling | None,
    data: Sequence[Bytes],
    device: _WatchedDevice,
    dram: str,
) -> Measurement:
    config, layer = device.config, row.workload
    function = conv2d(layer, Environment(config), knobs)
    model = FunctionalDevice(config, device.memory_bytes)

    def run(machine: Device) -> tuple[RunResult, Bytes]:
        runtime = Runtime(machine)
        buffers = [
            runtime.allocate(function.nbytes(i), arg.name) for i, arg in enumerate(function.args)
        ]
        for buffer, part in zip(buffers, data[:-1], strict=False):
            buffer.write(part)
        function.run_on(runtime, *buffers)
        return runtime.synchronize(), buffers[-1].read(np.uint8, data[-1].shape)

    _, of_model = run(model)
    result, stored = run(device)
    work = device.work
    return Measurement(
        row.name,
        "Conv",
        row.macs,
        result.cycles,
        layer_bound(layer, config, dram),
        _SHORT_TARGETS.get(row.name, _TARGET),
        work.bytes_loaded,
        work.bytes_stored,
        int(np.count_nonzero((stored != of_model) | (stored != data[-1]))),
        result.seconds,
        result.counters,
        result.estimated,
    )


class _WatchedDevice:
    """Wraps ``device`` and counts the `work` of the latest run."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.name = device.name
        self.config = device.config
        self.memory_bytes = device.memory_bytes
        self.work: Work = work(device.config, np.empty((0, 2), np.uint64))

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        return self._device.read(address, size)

    def write(self, address: int, data: npt.NDArray[Any] | bytes) -> None:
        self._device.write(address, data)

    def set_limits(self, limits: Limits) -> None:
        self._device.set_limits(limits)

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        raw = self.read(insn_addr, insn_count * isa.INSTRUCTION_BYTES)
        self.work = work(self.config, raw.view("<u8").reshape(-1, 2))
        return self._device.run(insn_addr, insn_count, time_limit, watched)
