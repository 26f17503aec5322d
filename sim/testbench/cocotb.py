"""Helpers for cocotb benches of single modules: clock, handshakes, and memories behind ports.

After a rising edge of the clock a bench reads values from before the edge; its assignments take
effect afterwards. Payloads are integers: `packed` encodes them, `unpacked` decodes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from amaranth.lib import data
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

from .amaranth import Pauses, never

Tiles = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
# Maximum cycles that a bench waits for a signal to become high.
TIME_LIMIT = 2000


async def start(dut: Any, *inputs: str) -> None:
    """Sets ``inputs`` to zero, starts the clock, and resets the module."""
    for name in inputs:
        getattr(dut, name).value = 0
    Clock(dut.clk, 10, unit="ns").start()
    dut.rst.value = 1
    for _ in range(4):
        await RisingEdge(dut.clk)
    dut.rst.value = 0


async def high(dut: Any, signal: Any) -> None:
    """Waits for a rising edge of the clock at which ``signal`` is high."""
    for _ in range(TIME_LIMIT):
        await RisingEdge(dut.clk)
        if signal.value == 1:
            return
    raise AssertionError(f"{signal._name} was not high within {TIME_LIMIT} cycles")


async def pass_pauses(dut: Any, pause: Pauses) -> None:
    while pause():
        await RisingEdge(dut.clk)


def packed(shape: Any, values: Mapping[str, Any]) -> int:
    """Pack a structure of Amaranth to bits; fields not in ``values`` are 0."""
    bits = 0
    for name, field in data.Layout.cast(shape):
        value = values.get(name, 0)
        if isinstance(value, Mapping):
            value = packed(field.shape, value)
        bits |= (int(value) & (1 << field.width) - 1) << field.offset
    return bits


def unpacked(shape: Any, bits: int) -> dict[str, int]:
    """Unpack bits to the fields of a structure of Amaranth, each as its bits."""
    return {
        str(name): bits >> field.offset & (1 << field.width) - 1
        for name, field in data.Layout.cast(shape)
    }


async def put(dut: Any, stream: str, payloads: Iterable[int], pause: Pauses = never) -> None:
    """Offers each payload on the ports of ``stream`` until it is taken."""
    valid, ready = getattr(dut, f"{stream}_valid"), getattr(dut, f"{stream}_ready")
    for payload in payloads:
        await pass_pauses(dut, pause)
        getattr(dut, f"{stream}_payload").value = payload
        valid.value = 1
        await high(dut, ready)
        valid.value = 0


async def get(dut: Any, stream: str, pause: Pauses = never) -> int:
    """Takes one payload from the ports of ``stream``."""
    await pass_pauses(dut, pause)
    ready = getattr(dut, f"{stream}_ready")
    ready.value = 1
    await high(dut, getattr(dut, f"{stream}_valid"))
    ready.value = 0
    return int(getattr(dut, f"{stream}_payload").value)


async def serve_reads(dut: Any, contents: Bytes, pause: Pauses = never) -> None:
    """Answer the bursts that the port ``read`` requests, in order, forever."""
    bits = len(dut.read_beat_payload) - 2
    while True:
        address, beats = _burst(await get(dut, "read_request", pause))
        for number in range(beats):
            word = contents[address + number * bits // 8 :][: bits // 8].tobytes()
            beat = int.from_bytes(word, "little") | (number == beats - 1) << bits + 1
            await put(dut, "read_beat", [beat], pause)


async def serve_writes(dut: Any, contents: Bytes, pause: Pauses = never) -> None:
    """Store the bursts of the port ``write`` into ``contents``, in order, forever."""
    size = (len(dut.write_beat_payload) - 1) // 9
    while True:
        address, beats = _burst(await get(dut, "write_request", pause))
        for number in range(beats):
            beat = await get(dut, "write_beat", pause)
            for byte in range(size):
                if beat >> 8 * size + byte & 1:
                    contents[address + number * size + byte] = beat >> 8 * byte & 0xFF
            assert beat >> 9 * size == (number == beats - 1), "the last beat is not marked as such"
        await put(dut, "write_response", [0], pause)


def _burst(request: int) -> tuple[int, int]:
    """Address and beats of a request."""
    return request & (1 << 48) - 1, (request >> 48) + 1


async def serve_tiles(
    dut: Any,
    reads: Mapping[str, Tiles],
    writes: Mapping[str, Tiles],
    in_two_cycles: Collection[str] = (),
) -> None:
    """Serve the ports that begin with these names from arrays (element, row, column), forever.

    The arrays have dtypes as wide as the scalars of the ports. A write is visible to a read in the
    same cycle, and to ports ``in_two_cycles`` in the second one. A read with an output NAME_clear,
    if there is one, returns zeros.
    """
    asked_before: dict[str, tuple[int, bool] | None] = dict.fromkeys(in_two_cycles)
    while True:
        await RisingEdge(dut.clk)
        for name, tiles in writes.items():
            if getattr(dut, f"{name}_enable").value == 1:
                value = int(getattr(dut, f"{name}_data").value)
                raw = np.frombuffer(value.to_bytes(tiles[0].nbytes, "little"), tiles.dtype)
                tiles[int(getattr(dut, f"{name}_index").value)] = raw.reshape(tiles[0].shape)
        for name, tiles in reads.items():
            asked = None
            if getattr(dut, f"{name}_enable").value == 1:
                clear = getattr(dut, f"{name}_clear", None)
                cleared = clear is not None and clear.value == 1
                asked = int(getattr(dut, f"{name}_index").value), cleared
            if name in asked_before:
                asked, asked_before[name] = asked_before[name], asked
            if asked is not None:
                index, cleared = asked
                word = int.from_bytes(np.ascontiguousarray(tiles[index]).tobytes(), "little")
                getattr(dut, f"{name}_data").value = 0 if cleared else word
