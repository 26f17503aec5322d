"""Rounding of fixed-point numbers as by float32 arithmetic: twice, without normalization.

Let n be the integer part and f the fraction. Rounding to 24 bits first matters only if its result
is n + 1/2, since the even one of n and n + 1 is then chosen. It moves a number of magnitude from
2^k to 2^(k + 1) by at most half a unit in the last place, 2^(k - 24). A move by exactly this
distance to n + 1/2 does occur, since ties are rounded to even and the last of the 24 bits of
n + 1/2 is zero. So the even one is chosen where f is within 2^(k - 24) of 1/2, inclusive;
elsewhere f alone decides. With an integer part of 9 bits k is at most 7; below 1/4 nothing is
rounded to 1/2, so k is at least -2.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from amaranth_vta.hw import isa

_FRACTION = isa.SCALE_FRACTION
_INTEGER = 9


class ScaledSum(data.Struct):
    """A sum times a scale, in fixed point; ``rest`` are the bits above the range of results."""

    fraction: _FRACTION
    integer: signed(_INTEGER)
    rest: 23


def is_rounded_up(m: Module, value: data.View) -> Value:
    """Whether the result for ``value`` is n + 1 instead of its integer part n.

    Timing: combinational.
    """
    n, f = value.integer, value.fraction
    half = f[-1]
    # Near a half, |value| < 2^j if and only if all bits of n from j on are equal.
    small = {j: (n[j:] == n[-1].replicate(_INTEGER - j)) for j in range(_INTEGER - 1)}
    # From this bit on, the bits of f must equal those of one half, or of the number just below it.
    last = _FRACTION - 24 - 2
    counts = Signal(10)
    m.d.comb += counts.eq(Cat(small[0] & (half == n[-1]), *small.values(), 1))
    differs = Signal(_FRACTION - 1 - last, name="differs")
    m.d.comb += differs.eq(~(f[last:-1] ^ half.replicate(len(differs))))
    within = ~(Cat(differs[:10] & counts, differs[10:])).any()
    # Exactly at the limit of the window: only the lowest significant bit is set.
    lowest = counts & ~(counts << 1)[:10]
    at_end = (f[last:] == Cat(lowest, Const(0, 15), 1)) & (f[:last] == 0)
    return Mux(within | at_end, n[0], half)
