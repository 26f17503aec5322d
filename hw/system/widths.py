"""Bursts of a narrow bus in words of a wider one."""

from typing import Any

from amaranth.hdl import Cat, Const, Value, unsigned
from amaranth.lib import data


def log_ratio(width: int, bus_width: int) -> int:
    """Log2 of the beats of a bus of ``width`` bits in a word of one of ``bus_width`` bits."""
    return (bus_width // width).bit_length() - 1


class Place(data.StructLayout):
    """Where a narrow burst lies in words of the wider bus: the beat of its first word that it
    begins with, and its length, the number of further beats.
    """

    def __init__(self, log: int) -> None:
        super().__init__({"first": unsigned(log), "length": 8})


def widened(request: Any, width: int, bus_width: int) -> tuple[Value, Value, Value]:
    """The address and length of the wide burst that contains the narrow burst ``request``, and the
    beat of its first word with which the narrow burst begins. The wide burst crosses 4 KiB only if
    the narrow one does.
    """
    low, log = (width // 8 - 1).bit_length(), log_ratio(width, bus_width)
    first = request.address[low : low + log]
    address = Cat(Const(0, low + log), request.address[low + log :])
    return address, (first + request.length) >> log, first
