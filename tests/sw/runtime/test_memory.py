from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.runtime.memory import Buffer, DeviceMemory, OutOfMemory

MakeDevice = Callable[..., Any]


def test_buffers_are_aligned_for_every_memory(fake_device: MakeDevice) -> None:
    memory = DeviceMemory(fake_device(PRESETS["pynq"]))
    for size in (1, 63, 65, 300):
        assert memory.allocate(size).address % 256 == 0  # a weight element is the largest
    small = DeviceMemory(fake_device(PRESETS["tiny"]))
    small.allocate(1)
    assert small.allocate(1).address == 64


def test_live_buffers_never_overlap_and_freed_memory_joins_again(fake_device: MakeDevice) -> None:
    generator = random.Random(1)
    memory = DeviceMemory(fake_device(memory_bytes=16384))
    live: list[Buffer] = []
    for _ in range(2000):
        if live and generator.random() < 0.5:
            live.pop(generator.randrange(len(live))).free()
        else:
            try:
                live.append(memory.allocate(generator.randint(1, 1500)))
            except OutOfMemory:
                live.pop().free()
        ranges = sorted((item.address, item.address + item.size) for item in live)
        for (_, end), (start, _) in itertools.pairwise(ranges):
            assert end <= start
    for buffer in live:
        buffer.free()
    assert memory.bytes_left == 16384
    assert memory.allocate(16384).address == 0


def test_limits_are_those_of_what_is_allocated(fake_device: MakeDevice) -> None:
    config = PRESETS["tiny"]
    memory = DeviceMemory(fake_device(config, memory_bytes=1024))
    first, _ = memory.allocate(100), memory.allocate(1)
    sizes = {"UOP": 4, "INP": 4, "WGT": 16, "ACC": 16, "OUT": 4}

    def limits() -> dict[str, int]:
        return {item.name: limit for item, limit in memory.limits.items()}

    assert limits() == {name: 192 // size for name, size in sizes.items()}
    first.free()
    assert limits() == {name: 192 // size for name, size in sizes.items()}
    memory.allocate(832)
    assert limits() == {name: 1024 // size for name, size in sizes.items()}


def test_out_of_memory_says_how_much_is_asked_and_left(fake_device: MakeDevice) -> None:
    memory = DeviceMemory(fake_device(memory_bytes=4096))
    first, _, third, _ = (memory.allocate(1024) for _ in range(4))
    first.free()
    third.free()
    with pytest.raises(
        OutOfMemory,
        match=r"weights needs 1,500 bytes; of the 4,096 bytes of device memory 2,048 are left, "
        r"1,024 of them in one piece",
    ):
        memory.allocate(1500, "weights")


def test_a_memory_smaller_than_an_element_holds_nothing(fake_device: MakeDevice) -> None:
    memory = DeviceMemory(fake_device(replace(PRESETS["pynq"]), memory_bytes=128))
    with pytest.raises(OutOfMemory, match="0 are left, 0 of them in one piece"):
        memory.allocate(1)


@pytest.mark.parametrize("size", [0, -1])
def test_an_empty_buffer_is_refused(fake_device: MakeDevice, size: int) -> None:
    with pytest.raises(ValueError, match=f"x: a buffer of {size} bytes cannot be allocated"):
        DeviceMemory(fake_device()).allocate(size, "x")


def test_arrays_go_through_a_buffer_unchanged(fake_device: MakeDevice) -> None:
    device = fake_device()
    memory = DeviceMemory(device)
    memory.allocate(100)
    buffer = memory.allocate(60)
    data = np.arange(-5, 10, dtype=np.int32).reshape(3, 5)
    buffer.write(data)
    assert (buffer.read(np.int32, (3, 5)) == data).all()
    assert (
        device.memory[buffer.address : buffer.address + 60] == data.view(np.uint8).ravel()
    ).all()
    buffer.write(data.T)  # not contiguous
    assert (buffer.read(np.int32, (5, 3)) == data.T).all()
    buffer.write(b"\x01\x02", offset=58)
    assert buffer.read(np.uint8, 2, offset=58).tolist() == [1, 2]
    assert device.memory[buffer.address + 60] == 0xA5


def test_access_beyond_a_buffer_is_refused(fake_device: MakeDevice) -> None:
    buffer = DeviceMemory(fake_device()).allocate(60, "bias")
    with pytest.raises(IndexError, match="cannot write bytes 4 to 64 of bias, which has 60"):
        buffer.write(np.zeros(15, np.int32), offset=4)
    with pytest.raises(IndexError, match="cannot read bytes 0 to 64 of bias, which has 60"):
        buffer.read(np.int32, 16)
    with pytest.raises(IndexError, match="cannot read bytes -4 to 0 of bias"):
        buffer.read(np.int32, 1, offset=-4)


def test_a_freed_buffer_is_not_used(fake_device: MakeDevice) -> None:
    buffer = DeviceMemory(fake_device()).allocate(64, "bias")
    assert "bias: 64 bytes at 0x0" in repr(buffer)
    buffer.free()
    for use in (buffer.free, lambda: buffer.write(b"1"), lambda: buffer.read(np.uint8, 1)):
        with pytest.raises(ValueError, match="bias has been freed"):
            use()
    assert "freed" in repr(buffer)


def test_a_part_of_a_buffer_is_in_its_memory(fake_device: MakeDevice) -> None:
    memory = DeviceMemory(fake_device(PRESETS["tiny"]))
    whole = memory.allocate(200, "whole")
    part = whole.part(memory.alignment, 100, "part")
    inner = part.part(0, 10, "inner")
    inner.write(np.arange(10, dtype=np.uint8))
    assert whole.read(np.uint8, 10, memory.alignment).tolist() == list(range(10))
    assert part.whole is inner.whole is whole.whole is whole
    with pytest.raises(IndexError, match="cannot take bytes 64 to 201 of whole, which has 200"):
        whole.part(64, 137, "long")
    with pytest.raises(ValueError, match="part is a part of whole"):
        part.free()
    whole.free()


def test_a_device_goes_with_the_last_of_its_buffers(fake_device: MakeDevice) -> None:
    """Reference counting suffices; the garbage collector runs late for a few objects with much
    memory.
    """
    device = fake_device(PRESETS["tiny"], 1 << 12)
    buffer = DeviceMemory(device).allocate(128, "whole")
    part, reference = buffer.part(64, 64, "part"), weakref.ref(device)
    gc.disable()
    try:
        del device, buffer
        assert reference() is not None
        del part
        assert reference() is None
    finally:
        gc.enable()
