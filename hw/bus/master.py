"""Connects streams of bursts, beats and responses to an AXI4 master port."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Module, Value

from .attributes import BusAttributes

_INCREMENTING = 0b01  # AXI burst type INCR


def connect_requests(
    m: Module, bus: Any, channel: str, request: Any, burst: Any, attributes: BusAttributes, id: Any
) -> None:
    """Connect the stream ``request``, whose payload has the `BurstRequest` ``burst``, to the
    channel ``ar`` or ``aw`` of ``bus``, with bursts of the number ``id``.
    """
    for wire, value in (
        ("id", id),
        ("addr", burst.address),
        ("len", burst.length),
        ("size", (len(bus.wstrb) - 1).bit_length()),
        ("burst", _INCREMENTING),
        ("lock", 0),
        ("cache", attributes.cache),
        ("prot", attributes.prot),
        ("qos", 0),
        ("valid", request.valid),
    ):
        m.d.comb += getattr(bus, f"{channel}{wire}").eq(value)
    m.d.comb += request.ready.eq(getattr(bus, f"{channel}ready"))


def connect_transfers(
    m: Module, bus: Any, read: Any, write: Any, further: Sequence[Any], failed: Value
) -> None:
    """Connect the beats of ``read``, and the beats and responses of ``write``, to the data channels
    of ``bus``. ``further`` assigns the fields of a read beat besides data and error; ``failed`` is
    the error bit of a response.
    """
    m.d.comb += [
        read.beat.payload.data.eq(bus.rdata),
        # SLVERR and DECERR are the two responses with the upper bit set.
        read.beat.payload.error.eq(bus.rresp[1]),
        *further,
        read.beat.valid.eq(bus.rvalid),
        bus.rready.eq(read.beat.ready),
        bus.wdata.eq(write.beat.payload.data),
        bus.wstrb.eq(write.beat.payload.strobe),
        bus.wlast.eq(write.beat.payload.last),
        bus.wvalid.eq(write.beat.valid),
        write.beat.ready.eq(bus.wready),
        failed.eq(bus.bresp[1]),
        write.response.valid.eq(bus.bvalid),
        bus.bready.eq(write.response.ready),
    ]
