"""Loads and stores: the machine's transfers for a call of the runtime, and rejected calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Memory, Module
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.runtime.kernels import CommandError
from amaranth_vta.sw.runtime.runtime import Runtime
from tests.support.runtimes import (
    DEEP,
    TINY,
    WIDE,
    MakeDevice,
    array_buffer,
    load,
    runtime_of,
    stored,
)


def test_one_call_is_one_instruction_where_it_fits(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device)
    runtime.allocate(640)
    buffer = runtime.allocate(1024)
    runtime.load_buffer_2d(buffer, 5, 4, 3, 9, 1, 2, 3, 1, 7, Memory.INP)
    runtime.store_buffer_2d(11, buffer, 6, 4, 3, 8)
    runtime.synchronize()
    first, second, _ = device.runs[0]
    assert first == isa.Load(
        memory=Memory.INP,
        sram_base=7,
        dram_base=buffer.address // 4 + 5,
        y_size=3,
        x_size=4,
        x_stride=9,
        y_pad_0=2,
        y_pad_1=1,
        x_pad_0=1,
        x_pad_1=3,
    )
    assert second == isa.Store(
        sram_base=11, dram_base=buffer.address // 4 + 6, y_size=3, x_size=4, x_stride=8
    )


@pytest.mark.parametrize(
    ("x_size", "y_size", "stride", "pads"),
    [
        (5, 4, 7, (1, 2, 3, 0)),
        (5, 4, 7, (20, 0, 1, 3)),  # pads in the order x before, y before, x after, y after
        (5, 4, 7, (0, 17, 2, 16)),
        (3, 2, 70_000, (2, 1, 0, 1)),
        (3, 2, 70_000, (0, 0, 0, 40)),
        (16_384, 1, 0, (0, 0, 0, 0)),
        (2, 3, 0, (1, 0, 0, 0)),
        (0, 3, 0, (1, 1, 1, 0)),
        (4, 0, 0, (1, 1, 1, 2)),
        (0, 0, 5, (0, 0, 0, 0)),
    ],
)
def test_loads_of_any_size_stride_and_padding_give_what_they_say(
    x_size: int, y_size: int, stride: int, pads: tuple[int, int, int, int]
) -> None:
    runtime = Runtime(FunctionalDevice(DEEP, 1 << 23))
    data = np.arange(200_000 * 4, dtype=np.int32).reshape(-1, 4) % 251 - 125
    buffer = array_buffer(runtime, data)
    x_before, y_before, x_after, y_after = pads
    rows = y_before + y_size + y_after
    width = x_before + x_size + x_after
    expected = np.zeros((rows, width, 4), np.int32)
    for y in range(y_size):
        expected[y_before + y, x_before : x_before + x_size] = data[9 + y * stride :][:x_size]
    count = rows * width
    first = DEEP.acc.depth - count  # up to the last element
    runtime.load_buffer_2d(
        buffer, 9, x_size, y_size, stride, x_before, y_before, x_after, y_after, first, Memory.ACC
    )
    if count:
        assert (stored(runtime, first, count) == expected.reshape(-1, 4)).all()
    else:
        assert runtime.dump() == ""


@pytest.mark.parametrize("stream_limit", [None, 2, 3])
def test_padding_has_the_value_that_is_asked_for(stream_limit: int | None) -> None:
    """Also if the loads of one call are split over several runs."""
    config = replace(DEEP, pad_value=1)
    runtime = runtime_of(config, stream_limit)
    data = np.arange(64, dtype=np.int32).reshape(-1, 4)
    buffer = array_buffer(runtime, data)
    expected: list[npt.NDArray[Any]] = []
    for value, pads in ((-7, 2), (0, 1), (5, 17), (5, 0), (-7, 18)):
        begin = sum(len(image) for image in expected)
        runtime.load_buffer_2d(buffer, 3, 2, 2, 5, pads, 1, 0, pads, begin, Memory.ACC, value)
        image = np.full((1 + 2 + pads, pads + 2, 4), value)
        for y in range(2):
            image[1 + y, pads:] = data[3 + 5 * y :][:2]
        expected.append(image.reshape(-1, 4))
    everything = np.concatenate(expected)
    assert (stored(runtime, 0, len(everything)) == everything).all()


def test_a_padding_value_is_set_only_where_it_changes(fake_device: MakeDevice) -> None:
    device = fake_device(PRESETS["tiny-extended"])
    runtime = Runtime(device)
    buffer = runtime.allocate(1024)

    def load_padded(memory: Memory, value: int, pad: int = 1) -> None:
        runtime.load_buffer_2d(buffer, 0, 2, 1, 2, pad, 0, 0, 0, 0, memory, value)

    for _ in range(2):
        load_padded(Memory.INP, 0)
        load_padded(Memory.INP, -128)
        load_padded(Memory.WGT, -128)
        load_padded(Memory.INP, 9, pad=0)
        load_padded(Memory.ACC, -128)
        load_padded(Memory.UOP, 0)
        load_padded(Memory.ACC_8BIT, -128)
        runtime.synchronize()
    values = [isa.set_padding(padding, -128) for padding in isa.Padding]
    for run in device.runs:
        assert [item for item in run if isinstance(item, isa.SetPadding)] == values
        assert len(run) == 7 + 2 + 1


def test_padding_that_the_machine_cannot_do_is_refused(fake_device: MakeDevice) -> None:
    for config, memory, value, message in (
        (TINY, Memory.INP, 1, "INP padded with 1: those of a machine without PAD_VALUE are padded"),
        (PRESETS["tiny-extended"], Memory.UOP, 1, "UOP padded with 1: those are padded with 0"),
        (PRESETS["tiny-extended"], Memory.INP, 128, "padded with 128, which is not within int8"),
        (PRESETS["tiny-extended"], Memory.WGT, -129, "padded with -129, which is not within int8"),
        (PRESETS["tiny-extended"], Memory.ACC_8BIT, 1 << 31, "which is not within int32"),
    ):
        runtime = Runtime(fake_device(config))
        buffer = runtime.allocate(1024)
        with pytest.raises(CommandError, match=message):
            runtime.load_buffer_2d(buffer, 0, 2, 1, 2, 1, 0, 0, 0, 0, memory, value)
        assert runtime.dump() == ""


@pytest.mark.parametrize(
    ("x_size", "y_size", "stride", "x_before", "x_after"),
    [
        (65_536, 1, 0, 0, 0),
        (65_530, 1, 0, 2, 4),
        (65_500, 1, 0, 20, 16),
        (1, 65_536, 1, 0, 0),
        (1, 16_384, 3, 2, 1),
    ],
)
def test_loads_beyond_the_fields_of_an_instruction_are_split(
    fake_device: MakeDevice, x_size: int, y_size: int, stride: int, x_before: int, x_after: int
) -> None:
    device = fake_device(WIDE)
    runtime = Runtime(device)
    runtime.allocate(64)
    buffer = runtime.allocate(300_000)
    runtime.load_buffer_2d(
        buffer, 5, x_size, y_size, stride, x_before, 0, x_after, 0, 0, Memory.INP
    )
    runtime.synchronize()
    loaded = np.full(WIDE.inp.depth, -1)
    for item in device.runs[0][:-1]:
        rows = np.full((item.y_pad_0 + item.y_size + item.y_pad_1, item.row_elements), -2)
        for y in range(item.y_size):
            at = item.dram_base + y * item.x_stride
            rows[item.y_pad_0 + y, item.x_pad_0 :][: item.x_size] = range(at, at + item.x_size)
        loaded[item.sram_base : item.sram_base + rows.size] = rows.ravel()
    expected = np.full((y_size, x_before + x_size + x_after), -2)
    first = buffer.address // WIDE.inp.element_bytes + 5
    starts = first + stride * np.arange(y_size)
    expected[:, x_before : x_before + x_size] = starts[:, None] + np.arange(x_size)
    assert (loaded == expected.ravel()).all()


@pytest.mark.parametrize(
    ("x_size", "y_size", "stride"), [(4, 3, 9), (2, 2, 70_000), (16_384, 1, 0)]
)
def test_stores_of_any_size_and_stride_give_what_they_say(
    x_size: int, y_size: int, stride: int
) -> None:
    runtime = Runtime(FunctionalDevice(DEEP, 1 << 23))
    data = np.arange(16_384 * 4, dtype=np.int32).reshape(-1, 4)
    load(runtime, array_buffer(runtime, data), 16_384)
    target = runtime.allocate((10 + (y_size - 1) * stride + x_size) * 4)
    target.write(np.zeros(target.size, np.uint8))
    runtime.dep_push(Module.COMPUTE, Module.STORE)
    runtime.dep_pop(Module.COMPUTE, Module.STORE)
    first = 16_384 - x_size * y_size
    runtime.store_buffer_2d(first, target, 10, x_size, y_size, stride)
    runtime.synchronize()
    expected = np.zeros((target.size // 4, 4), np.int8)
    for y in range(y_size):
        at = 10 + y * stride
        expected[at : at + x_size] = data[first + y * x_size :][:x_size].astype(np.int8)
    assert (target.read(np.int8, expected.shape) == expected).all()


def test_an_empty_transfer_takes_no_instruction(fake_device: MakeDevice) -> None:
    runtime = Runtime(fake_device())
    buffer = runtime.allocate(64)
    runtime.load_buffer_2d(buffer, 0, 0, 1, 0, 0, 0, 0, 0, 0, Memory.WGT)
    runtime.store_buffer_2d(0, buffer, 0, 4, 0, 4)
    assert runtime.dump() == ""
    assert runtime.synchronize().cycles is None
    assert runtime.device.runs == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 9, 1, 9, 0, 0, 0, 0, 0), "elements 0 to 8 of data, which has 8 INP elements"),
        ((0, 2, 3, 4, 0, 0, 0, 0, 0), "elements 0 to 9 of data"),
        ((-1, 2, 1, 4, 0, 0, 0, 0, 0), "elements -1 to 0 of data"),
        ((0, 4, 1, 4, 0, 0, 0, 0, 125), "a load reaches INP 125 to 128; the scratchpad has 0"),
        ((0, 4, 1, 4, 0, 0, 0, 0, -1), "a load reaches INP -1 to 2"),
        ((0, 4, -1, 4, 0, 0, 0, 0, 0), "-1 rows of 4 elements, 4 apart: none can be negative"),
        ((0, 4, 1, 4, -1, 0, 0, 0, 0), "no padding can be negative"),
    ],
)
def test_loads_outside_memory_are_refused(
    fake_device: MakeDevice, arguments: tuple[int, ...], message: str
) -> None:
    runtime = Runtime(fake_device())
    buffer = runtime.allocate(8 * TINY.inp.element_bytes, "data")
    with pytest.raises(CommandError, match=message):
        runtime.load_buffer_2d(buffer, *arguments, Memory.INP)  # type: ignore[arg-type]
    assert runtime.dump() == ""


def test_stores_outside_memory_are_refused(fake_device: MakeDevice) -> None:
    runtime = Runtime(fake_device())
    buffer = runtime.allocate(8 * TINY.out.element_bytes, "data")
    with pytest.raises(CommandError, match="a store reaches OUT 127 to 128; the scratchpad has 0"):
        runtime.store_buffer_2d(127, buffer, 0, 2, 1, 2)
    with pytest.raises(CommandError, match="elements 7 to 8 of data, which has 8 OUT elements"):
        runtime.store_buffer_2d(0, buffer, 7, 2, 1, 2)


def test_a_part_that_begins_within_an_element_is_refused(fake_device: MakeDevice) -> None:
    runtime = Runtime(fake_device())
    buffer = runtime.allocate(64, "data").part(TINY.inp.element_bytes, 32, "part")
    runtime.load_buffer_2d(buffer, 0, 1, 1, 1, 0, 0, 0, 0, 0, Memory.INP)
    with pytest.raises(CommandError, match="part lies at 0x4, no multiple of the 16 bytes of a"):
        runtime.load_buffer_2d(buffer, 0, 1, 1, 1, 0, 0, 0, 0, 0, Memory.WGT)


def test_buffers_of_others_and_freed_ones_are_refused(fake_device: MakeDevice) -> None:
    runtime, other = Runtime(fake_device()), Runtime(fake_device())
    foreign, freed = other.allocate(64, "foreign"), runtime.allocate(64, "late")
    freed.free()
    with pytest.raises(CommandError, match="foreign is freed, or is in the memory of another"):
        load(runtime, foreign, 1)
    with pytest.raises(CommandError, match="late is freed, or is in the memory of another"):
        load(runtime, freed, 1)


def test_a_buffer_beyond_the_reach_of_an_instruction_is_refused(fake_device: MakeDevice) -> None:
    device = fake_device()
    device.memory_bytes = 1 << 40
    runtime = Runtime(device)
    runtime.allocate(1 << 34)
    buffer = runtime.allocate(64, "far")
    with pytest.raises(CommandError, match="far lies at 0x400000000, beyond the addressable range"):
        load(runtime, buffer, 1, memory=Memory.INP)


def test_a_queued_buffer_is_not_freed(fake_device: MakeDevice) -> None:
    runtime = Runtime(fake_device())
    buffer = runtime.allocate(64, "data")
    load(runtime, buffer, 1)
    with pytest.raises(CommandError, match="queued instructions"):
        runtime.free(buffer)
    runtime.synchronize()
    runtime.free(buffer)
