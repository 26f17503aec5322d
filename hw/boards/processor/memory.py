"""Block RAM for the processor's instructions and its own data: `FirmwareMemory`."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In

from amaranth_vta.hw.boards.link import HostAccessSignature
from amaranth_vta.hw.boards.protocol import WORD_BYTES

from .parameters import SoftProcessor


class FirmwareMemory(wiring.Component):
    """Words in block RAM, with a port for instructions and one for data.

    Addresses are taken modulo the size of the memory, which is a power of two. Raises `ValueError`
    if it is not, or if the firmware is larger.

    Timing: each port accepts a request per cycle and responds in the next cycle.

    Ports
    -----
    instructions : reads; a write is an error
    data : reads and writes
    """

    instructions: In(HostAccessSignature())
    data: In(HostAccessSignature())

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
        write = words.write_port(granularity=8)
        for port, writable in ((self.instructions, False), (self.data, True)):
            request, read = port.request, words.read_port()
            m.d.comb += [
                request.ready.eq(1),
                read.addr.eq(request.payload.address[2:]),
                port.data.eq(read.data),
            ]
            m.d.sync += port.done.eq(request.valid)
            if not writable:
                m.d.sync += port.error.eq(request.payload.write)
        writes, payload = Signal(), self.data.request.payload
        m.d.comb += [
            writes.eq(self.data.request.valid & payload.write),
            write.addr.eq(payload.address[2:]),
            write.data.eq(payload.data),
            write.en.eq(Mux(writes, payload.strobe, 0)),
        ]
        return m
