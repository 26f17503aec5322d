"""Shifts as products, for ALU lanes that share their multipliers with REQUANTIZE."""

from typing import Any, NamedTuple

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from .operation import power_of_two


def register(m: Module, value: Any, name: str) -> Any:
    """A register of ``value`` without reset."""
    stage = Signal(value.shape(), name=name, reset_less=True)
    m.d.sync += stage.eq(value)
    return stage


class Shift(NamedTuple):
    """A shift as a product with ``power``; a right shift by more than 16 if ``far``."""

    power: Value
    to_left: Value
    to_right: Value
    far: Value


def shift_of(m: Module, shifts: Value, incoming: Value, b: Signal) -> Shift:
    """A right shift by the signed ``b``; ``incoming`` is ``b`` one cycle earlier. The product is
    with 1 for a shift by 0, and with 0 below -31; a shift by more than 31 returns the sign, like
    32.
    """
    none = register(m, incoming[:5] == 0, "shifts_none")
    # Bits that differ from the sign, grouped by five, since data from block RAM arrive late.
    unlike = incoming[5:-1] ^ incoming[-1].replicate(len(incoming) - 6)
    groups = Cat(unlike[place : place + 5].any() for place in range(0, len(unlike), 5))
    beyond = register(m, groups, "shifts_beyond").any()
    to_right, exponent = Signal(name="shifts_to_right"), Signal(5, name="exponent")
    # The low bits of -b, which equal those of 16 - b, 32 - b and 48 - b. An adder would take an
    # inverter and a carry per bit.
    opposite = Cat(b[place] ^ b[:place].any() for place in range(5))
    m.d.comb += [
        to_right.eq(shifts & ~b[-1] & (beyond | ~none)),
        # Position of the power in the middle of three factors, whose lowest bit is 15.
        exponent.eq(Cat(Mux(beyond, 0, opposite[:4]), to_right | opposite[4])),
    ]
    power = power_of_two(m, exponent, to_right | (~beyond & (none ^ b[-1])))
    return Shift(
        power,
        to_left=shifts & ~to_right,
        to_right=to_right,
        far=beyond | (b[4] & b[:4].any()),
    )
