"""Streams of the memory bus that several machines share; each item states its machine."""

from amaranth.hdl import unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.bus.axi import BurstRequest, WriteBeat, WriteResponse


class SharedRequest(data.StructLayout):
    """A burst of machine ``id``."""

    def __init__(self, id_bits: int) -> None:
        super().__init__({"id": unsigned(id_bits), "burst": BurstRequest})


class SharedBeat(data.StructLayout):
    """A beat of a read burst of machine ``id``; ``error``: its data are invalid."""

    def __init__(self, id_bits: int, data_width: int) -> None:
        super().__init__({"id": unsigned(id_bits), "data": unsigned(data_width), "error": 1})


class SharedResponse(data.StructLayout):
    """Memory's response to one write burst of machine ``id``."""

    def __init__(self, id_bits: int) -> None:
        super().__init__({"id": unsigned(id_bits), "response": WriteResponse})


class SharedReadSignature(wiring.Signature):
    """Reads of several machines: requests, and their beats, in order for each machine. Beats of
    different machines may interleave."""

    def __init__(self, id_bits: int, data_width: int) -> None:
        super().__init__(
            {
                "request": Out(stream.Signature(SharedRequest(id_bits))),
                "beat": In(stream.Signature(SharedBeat(id_bits, data_width))),
            }
        )


class SharedWriteSignature(wiring.Signature):
    """Writes of several machines: announcements of bursts, their beats in the order of the
    announcements, and responses, in order for each machine.
    """

    def __init__(self, id_bits: int, data_width: int) -> None:
        super().__init__(
            {
                "request": Out(stream.Signature(SharedRequest(id_bits))),
                "beat": Out(stream.Signature(WriteBeat(data_width))),
                "response": In(stream.Signature(SharedResponse(id_bits))),
            }
        )
