"""The convolutions of ResNet-18, with bias, requantization and clipping, one layer at a time.

Each is scheduled as the compiler chooses, or by hand to compare with that. It runs on random data
with scales that leave results of all sizes, and what it stores is compared with NumPy and with the
functional model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.trace.perfetto import Timeline
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d, Conv2dKnobs, conv2d
from amaranth_vta.sw.compiler.operators.parts.epilogue import PerChannelScale
from amaranth_vta.sw.compiler.tuner.workload import choose
from amaranth_vta.sw.runtime.device import Device, RunResult
from amaranth_vta.sw.runtime.runtime import Runtime

from .measurement import Measurement
from .resnet18 import Row, rows
from .watched import WatchedDevice

Array = npt.NDArray[Any]
# Of its bound; the layers of 1x1 are short, and less is asked of them.
_TARGET, _SHORT_TARGET = 0.92, 0.85
_CONSTANT_BYTES = 8  # of each channel: bias and scale
_SPARE_BYTES = 1 << 20


def measure_layers(
    config: Config,
    device_name: str,
    dram: str,
    progress: Callable[[str], None] | None = None,
    timeline: Timeline | None = None,
    skip: str | None = None,
    by_hand: bool = False,
) -> Iterator[Measurement]:
    """A measurement a layer, in the order of the network, scheduled by the compiler or
    ``by_hand``; none for a ``config`` without rows."""
    for row in rows(config):
        knobs = Conv2dKnobs(**row.knobs) if by_hand else None
        yield _measure(row, knobs, config, device_name, dram, progress, timeline, skip)


def explanations(config: Config) -> Iterator[tuple[str, str]]:
    """The name of each layer, and what the compiler considers for it, as a table."""
    for row in rows(config):
        yield row.name, str(choose(_workload(row), config))


def _workload(row: Row) -> Conv2d:
    return Conv2d(**row.workload, requantize=PerChannelScale())


def bound_cycles(layer: Conv2d, config: Config, dram: str) -> float:
    """The larger of a multiplication a cycle and of the bus time of each tensor once."""
    kernel = layer.kernel[0] * layer.kernel[1]
    pixels = layer.batch * layer.output_height * layer.output_width
    compute = pixels * layer.inputs * layer.outputs * kernel
    elements = (
        (layer.batch * layer.inputs * layer.height * layer.width, config.inp),
        (layer.inputs * layer.outputs * kernel, config.wgt),
        (pixels * layer.outputs, config.out),
    )
    size = sum(count * memory.element_bytes for count, memory in elements)
    size += layer.outputs * config.block_out * _CONSTANT_BYTES
    return max(compute, size / config.bus_bytes / memory_share(dram))


def memory_share(dram: str) -> float:
    """The share of all cycles in which the memory moves a word at best."""
    timing = memory_timing(dram)
    return 1 - timing.refresh_stall / timing.refresh_period if timing.refresh_period else 1.0


def _measure(
    row: Row,
    knobs: Conv2dKnobs | None,
    config: Config,
    device_name: str,
    dram: str,
    progress: Callable[[str], None] | None,
    timeline: Timeline | None,
    skip: str | None,
) -> Measurement:
    layer = _workload(row)
    function = conv2d(layer, Environment(config), knobs)
    arrays = random_data(layer, config)
    expected = convolved(layer, *arrays)
    size = _SPARE_BYTES + sum(array.nbytes for array in arrays) + expected.nbytes
    model = FunctionalDevice(config, size)
    device = open_device(
        device_name, config, size, dram=dram, timeline=timeline, skip=skip, progress=progress
    )
    watched = WatchedDevice(device)
    if timeline is not None:
        timeline.begin(row.name)

    def run(machine: Device) -> tuple[RunResult, Array]:
        runtime = Runtime(machine)
        buffers = [
            runtime.allocate(function.nbytes(i), arg.name) for i, arg in enumerate(function.args)
        ]
        for buffer, array in zip(buffers, arrays, strict=False):
            buffer.write(array)
        function.run_on(runtime, *buffers)
        result = runtime.synchronize()
        return result, buffers[-1].read(np.int8, expected.shape)

    _, of_model = run(model)
    result, stored = run(watched)
    work = watched.work
    short = layer.kernel == (1, 1) and layer.strides != (1, 1)
    return Measurement(
        row.name,
        "Conv",
        row.macs or work.macs,
        result.cycles,
        bound_cycles(layer, config, dram),
        _SHORT_TARGET if short else _TARGET,
        work.bytes_loaded,
        work.bytes_stored,
        int(np.count_nonzero((stored != of_model) | (stored != expected))),
        result.seconds,
        result.counters,
    )


def random_data(layer: Conv2d, config: Config, seed: int = 0) -> tuple[Array, Array, Array]:
    """Input, weights and parameters."""
    chance = np.random.default_rng(seed)
    kernel = layer.kernel
    tile = (config.batch, config.block_in)
    x = chance.integers(
        -128, 128, (layer.batch, layer.inputs, layer.height, layer.width, *tile), np.int8
    )
    w = chance.integers(
        -128,
        128,
        (layer.outputs, layer.inputs, *kernel, config.block_out, config.block_in),
        np.int8,
    )
    channels = layer.outputs * config.block_out
    summed = layer.inputs * config.block_in * kernel[0] * kernel[1]
    # A sum of products of two such bytes deviates by about 5,500 times the root of their number.
    scale = chance.uniform(0.5, 1.5, channels) * 60 / (5500 * summed**0.5)
    flat = te.requantization_parameters(
        chance.integers(-9999, 9999, channels), scale.astype(np.float32), -3, -128, 127
    )
    by_tile = flat.reshape(layer.outputs, 1, config.block_out, -1).transpose(0, 3, 1, 2)
    return x, w, np.repeat(by_tile, config.batch, axis=2)


def convolved(layer: Conv2d, x: Array, w: Array, parameters: Array) -> Array:
    """What the layer stores, in tiles, by NumPy."""
    top, left, bottom, right = layer.pads
    padded = np.pad(
        x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0), (0, 0))
    )
    # (images, rows, columns, inputs) and (kernel, kernel, inputs, outputs), exact in float64.
    images = padded.transpose(0, 4, 2, 3, 1, 5)
    images = images.reshape(-1, *padded.shape[2:4], padded.shape[1] * padded.shape[5])
    matrices = w.astype(np.float64).transpose(2, 3, 1, 5, 0, 4)
    matrices = matrices.reshape(*layer.kernel, images.shape[-1], -1)
    height, width = layer.output_height, layer.output_width
    total = np.zeros((images.shape[0], height, width, matrices.shape[-1]))
    for dy in range(layer.kernel[0]):
        for dx in range(layer.kernel[1]):
            rows_read = slice(dy, dy + (height - 1) * layer.strides[0] + 1, layer.strides[0])
            columns_read = slice(dx, dx + (width - 1) * layer.strides[1] + 1, layer.strides[1])
            total += images[:, rows_read, columns_read] @ matrices[dy, dx]
    tiles = total.astype(np.int64).astype(np.int32)
    tiles = tiles.reshape(x.shape[0], x.shape[4], height, width, w.shape[0], -1)
    of_channel = (parameters[None, :, number, None, None] for number in range(parameters.shape[1]))
    return te.requantized(tiles.transpose(0, 4, 2, 3, 1, 5), *of_channel).astype(np.int8)
