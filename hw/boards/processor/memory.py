"""Block RAM for the processor's instructions and its own data: `FirmwareMemory`."""

from typing import Any

from amaranth.hdl import Module, Mux
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In

from amaranth_vta.hw.boards.link import HostAccessSignature
from amaranth_vta.hw.boards.protocol import WORD_BYTES

from .parameters import SoftProcessor


class FirmwareMemory(wiring.Component):
    """Words in block RAM with a single port: synthesis would duplicate a memory with separate ports
    for instructions and data.

    Addresses are taken modulo the size of the memory, which is a power of two. Raises `ValueError`
    if it is not, or if the firmware is larger.

    Timing: one request per cycle, answered in the next cycle.

    Ports
    -----
    access : reads and writes
    """

    access: In(HostAccessSignature())

    def __init__(self, processor: SoftProcessor) -> None:
        size, firmware = processor.memory_bytes, processor.firmware
        if size < 2 * WORD_BYTES or size & (size - 1):
            raise ValueError(f"{size} bytes of firmware memory are not a power of two from 8 on")
        if len(firmware) > size:
            raise ValueError(
                f"the firmware takes {len(firmware):,} bytes, and its memory has {size:,}"
            )
        self._depth = size // WORD_BYTES
        padded = firmware.ljust(-(-len(firmware) // WORD_BYTES) * WORD_BYTES, b"\0")
        self._words = [
            int.from_bytes(padded[at : at + WORD_BYTES], "little")
            for at in range(0, len(padded), WORD_BYTES)
        ]
        super().__init__()

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        # Simulators find the memory by this name.
        m.submodules.firmware = words = Memory(
            shape=8 * WORD_BYTES,
            depth=self._depth,
            init=self._words,
            attrs={"ram_style": "block", "no_rw_check": 1},
        )
        read, write = words.read_port(), words.write_port(granularity=8)
        access, request = self.access, self.access.request.payload
        m.d.comb += [
            access.request.ready.eq(1),
            read.addr.eq(request.address[2:]),
            access.data.eq(read.data),
            write.addr.eq(request.address[2:]),
            write.data.eq(request.data),
            write.en.eq(Mux(access.request.valid & request.write, request.strobe, 0)),
        ]
        m.d.sync += access.done.eq(access.request.valid)
        return m
