"""The ALU's lane with REQUANTIZE: bias, fixed-point scale, rounding, zero point and bounds.

For an accumulator t (bias added) and an unsigned scale M of 49 bits the result is::

    min(max(rint(float32(t * M / 2^43)) + zero_point, low), high)

where both roundings, to the 24 significant bits of a float32 and to an integer, are half to even
(IEEE 754, section 4.3.1). A t of more than 25 bits gives the bound on its side; or, if the
parameters say ``wide``, t is divided by 2^7 first, and the last bit of the quotient set if anything
is lost. So the result is that of float32 arithmetic, bit for bit, where t and the scale are
float32 numbers themselves: -2^24 < t < 2^24, and a scale from 2^-20 up to 2^6. The definition is
`amaranth_vta.sim.model.scalar.requantize`; the lane is checked against the NumPy model of it,
`amaranth_vta.sim.model.arithmetic.requantized`.

This takes no shift that normalizes the product:

- t * M is exact: three DSP slices, of 15, 17 and 17 bits of M. Its binary point is fixed.
- Let n be the integer part, and f the fraction. Rounding to 24 bits first matters only where its
  result is n + 1/2, since then the even one of n and n + 1 is taken. It moves a product
  (t * M / 2^43) whose magnitude is at least 2^k and less than 2^(k + 1) by at most half a unit in
  the last place, which is 2^(k - 24); a move by just as much to n + 1/2 does happen, since a tie is
  rounded to even and the last of the 24 bits of n + 1/2 is zero. So the even one is taken where f
  is at most 2^(k - 24) away from 1/2, and everywhere else f alone decides.
- An integer part of more than 9 bits is out of bounds, whatever the zero point: k is at most 7.
  Below 1/4 nothing is rounded to 1/2: k is at least -2.
"""

from itertools import pairwise
from typing import Any, NamedTuple

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.isa import AluOp
from amaranth_vta.hw.timing import REQUANTIZING_ALU_LATENCY

from .operation import compares, power_of_two
from .table import LOOKUP_PORTS

_WIDTH = 32
# Bits of t in a product, its sign included, and of a scale's upper part: factors of a DSP slice.
_FACTOR = 25
_UPPER = isa.SCALE_WIDTH - _WIDTH
# The lower part of a scale, in two factors; a DSP slice adds the result of another, shifted right
# by the latter width.
_LOW, _MIDDLE = 15, 17
_FRACTION = isa.SCALE_FRACTION
_INTEGER = 9


class RequantizingLane(wiring.Component):
    """``result = operation(a, b)`` as `AluLane`, and REQUANTIZE of ``a``; one multiplier for both.

    Timing: the result is valid `latency` cycles after the operands. A parameter applies to the
    operations after it. With ``looks_up``, LOOKUP gives ``entry`` as in `AluLane`.

    Ports
    -----
    enable, operation, a, b : an operation; REQUANTIZE does not read ``b``
    parameter : bit n, with the operation REQUANTIZE and ``enable`` low: ``b`` is parameter n of the
        REQUANTIZEs that follow. None may come while a REQUANTIZE is in flight, and an enabled
        operation of another kind overwrites the scale.
    """

    latency = REQUANTIZING_ALU_LATENCY
    to_index = 3

    def __init__(self, looks_up: bool = False) -> None:
        self._looks_up = looks_up
        super().__init__(
            {
                "enable": In(1),
                "operation": In(AluOp),
                "a": In(signed(_WIDTH)),
                "b": In(signed(_WIDTH)),
                "parameter": In(isa.REQUANTIZE_PARAMETERS),
                "result": Out(signed(_WIDTH)),
                **(LOOKUP_PORTS if looks_up else {}),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        # Nothing is reset: control outside says which results count.
        kinds = [
            Signal(_Kind, name=f"kind_{stage}", reset_less=True) for stage in range(self.latency)
        ]
        for before, after in pairwise(kinds):
            m.d.sync += after.eq(before)
        operands = self._operands(m, kinds[0])
        products = _products(m, kinds[1], operands)
        sums = _sums(m, products)
        results = _results(m, kinds[3], sums)
        byte = _bounded(results, operands.bounds)
        m.d.comb += kinds[0].makes_bytes.eq(kinds[0].requantizes)
        if self._looks_up:
            looks_up = self.operation == AluOp.LOOKUP
            m.d.comb += [
                kinds[0].looks_up.eq(looks_up),
                kinds[0].makes_bytes.eq(kinds[0].requantizes | looks_up),
                # The stages before this one pass the operand of LOOKUP on unchanged.
                self.index.eq(sums.shifted[:8]),
            ]
            byte = Mux(kinds[4].looks_up, self.entry, byte)
        # Extended here, so that the upper bits take one LUT each.
        extended = Cat(byte, byte[-1].replicate(_WIDTH - 8)).as_signed()
        result = Mux(kinds[4].makes_bytes, extended, results.done)
        m.d.comb += self.result.eq(_register(m, result, "result_5"))
        return m

    def _operands(self, m: Module, kind: Any) -> "_Operands":
        """Stage 1. One adder makes sums, the differences that decide MIN and MAX, and adds the
        bias; other operands go past it. A shift to the left multiplies by a power of two."""
        shifts = self.operation == AluOp.SHR
        to_left, beyond = Signal(), Signal()
        m.d.comb += [
            kind.requantizes.eq(self.operation == AluOp.REQUANTIZE),
            kind.compares.eq(compares(self.operation)),
            kind.maximum.eq(self.operation == AluOp.MAX),
            kind.multiplies.eq((self.operation == AluOp.MUL) | to_left),
            to_left.eq(shifts & (self.b < 0)),
            beyond.eq((self.b[5:-1] ^ self.b[-1].replicate(_WIDTH - 6)).any()),
        ]
        bias = Signal(signed(_WIDTH), reset_less=True)
        bounds = Signal(_Bounds, reset_less=True)
        addend = Signal(signed(_WIDTH))
        with m.If(kind.requantizes):
            m.d.comb += addend.eq(bias)
        with m.Elif(kind.compares):
            m.d.comb += addend.eq(~self.b)
        with m.Elif(self.operation == AluOp.ADD):
            m.d.comb += addend.eq(self.b)
        total = _register(m, _sum(self.a, addend, kind.compares)[:_WIDTH].as_signed(), "total")
        first = _register(m, self.a, "first")
        amount = _register(m, Mux(shifts & ~to_left, self.b[:5], 0), "amount")
        all_sign = _register(m, shifts & beyond, "all_sign")

        # The second operand, or the scale.
        second = Signal(signed(_WIDTH))
        lower = Signal(signed(_WIDTH), reset_less=True)
        upper = Signal(_UPPER, reset_less=True)
        power = power_of_two(m, (-self.b[:5])[:5], to_left & ~beyond & self.b[:5].any())
        m.d.comb += second.eq(Mux(to_left, power, self.b))
        replaces = self.enable & ~kind.requantizes
        for number, kept in enumerate((bias, lower, upper, bounds)):
            with m.If(self.parameter[number] | (replaces if number in (1, 2) else 0)):
                m.d.sync += Value.cast(kept).eq(second)
        return _Operands(total, first, amount, all_sign, lower, upper, bounds)


class _Operands(NamedTuple):
    """Registers behind stage 1; ``lower`` and ``upper`` are the second operand, or the scale."""

    total: Signal
    first: Signal
    amount: Signal
    all_sign: Signal
    lower: Signal
    upper: Signal
    bounds: Any


class _Products(NamedTuple):
    """Registers behind stage 2: three partial products; what is shifted to the right, and the part
    of the amount that is still to come; of REQUANTIZE, the sign, and whether t is too wide."""

    low: Signal
    middle: Signal
    high: Signal
    shifted: Signal
    amount: Signal
    all_sign: Signal
    negative: Signal
    outside: Signal


class _Sums(NamedTuple):
    """Registers behind stage 3: the product as a fixed-point number, and the rest as before."""

    fixed: Any
    carried: Signal
    shifted: Signal
    amount: Signal
    all_sign: Signal
    negative: Signal
    outside: Signal


class _Results(NamedTuple):
    """Registers behind stage 4: the result of other operations; the integer part of REQUANTIZE's,
    whether it is rounded up, and whether it is out of bounds whatever the bounds are."""

    done: Signal
    whole: Signal
    up: Signal
    outside: Signal
    negative: Signal


def _register(m: Module, value: Any, name: str) -> Signal:
    stage = Signal(Value.cast(value).shape(), name=name, reset_less=True)
    m.d.sync += stage.eq(value)
    return stage


def _products(m: Module, kind: Any, operands: _Operands) -> _Products:
    """Stage 2: partial products; operations that do not multiply are decided meanwhile."""
    total, first, amount, all_sign, lower, upper, bounds = operands
    less, chosen = Signal(), Signal(signed(_WIDTH))
    m.d.comb += [
        less.eq(Mux(first[-1] == lower[-1], total[-1], first[-1])),
        chosen.eq(Mux(kind.compares, Mux(less ^ kind.maximum, first, lower), total)),
    ]
    some_shifted = _register(m, chosen >> amount[:2], "some_shifted")
    amount = _register(m, amount[2:], "amount_2")
    all_sign = _register(m, all_sign, "all_sign_2")
    factor, other_factor = Signal(signed(_FACTOR)), Signal(signed(_FACTOR))
    wide = kind.requantizes & bounds.wide
    halved = total[_WIDTH - _FACTOR :] | total[: _WIDTH - _FACTOR].any()
    passed = Mux(wide, halved, total[:_FACTOR])
    m.d.comb += [
        factor.eq(Cat(passed[:-1], passed[-1] & kind.requantizes)),
        # In a MUL ``upper`` holds the low bits of b, which with the upper bits of a make the upper
        # bits of the product.
        other_factor.eq(Cat(Mux(kind.requantizes, passed[:8], total[_FACTOR - 1 :]), passed[8:])),
    ]
    low, middle, high = (
        _register(m, a * Cat(b, Const(0, 1)).as_signed(), name)
        for name, a, b in (
            ("low", factor, lower[:_LOW]),
            ("middle", factor, lower[_LOW:]),
            ("high", other_factor, upper),
        )
    )
    negative = _register(m, total[-1], "negative_2")
    too_wide = ~bounds.wide & (total[_FACTOR - 1 : -1] ^ total[-1].replicate(7)).any()
    outside = _register(m, too_wide, "outside_2")
    return _Products(low, middle, high, some_shifted, amount, all_sign, negative, outside)


def _sums(m: Module, products: _Products) -> _Sums:
    """Stage 3: products added; the next part of the shift."""
    low, middle, high, some_shifted, amount, all_sign, negative, outside = products
    lower_sum, sum_ = Signal(signed(44)), Signal(signed(44))
    m.d.comb += [
        lower_sum.eq((low >> _LOW) + middle),
        sum_.eq((lower_sum >> _MIDDLE) + high),
    ]
    fixed = Signal(_Fixed, reset_less=True)
    m.d.sync += Value.cast(fixed).eq(Cat(low[:_LOW], lower_sum[:_MIDDLE], sum_))
    return _Sums(
        fixed,
        # The carry into the upper sum, which a product of integers must not have.
        carried=_register(m, lower_sum[_MIDDLE:][:8], "carried"),
        shifted=_register(m, some_shifted >> (amount[:2] << 2), "more_shifted"),
        amount=_register(m, amount[2], "amount_3"),
        all_sign=_register(m, all_sign, "all_sign_3"),
        negative=_register(m, negative, "negative_3"),
        outside=_register(m, outside, "outside_3"),
    )


def _results(m: Module, kind: Any, sums: _Sums) -> _Results:
    """Stage 4: results except zero point and bounds."""
    fixed, carried, more_shifted, amount, all_sign, negative, outside = sums
    bits = Value.cast(fixed)
    product = Cat(bits[:24], (bits[24:32] + (bits[32:40] - carried))[:8])
    done = Signal(signed(_WIDTH))
    with m.If(kind.multiplies):
        m.d.comb += done.eq(product)
    with m.Elif(all_sign):
        m.d.comb += done.eq(more_shifted[-1].replicate(_WIDTH))
    with m.Else():
        m.d.comb += done.eq(Mux(amount, more_shifted >> 16, more_shifted))
    above = Cat(fixed.integer[-1], fixed.rest)
    return _Results(
        done=_register(m, done, "done"),
        whole=_register(m, fixed.integer, "whole"),
        up=_register(m, _is_rounded_up(m, fixed), "up"),
        outside=_register(m, outside | (above.any() & ~above.all()), "outside_4"),
        negative=_register(m, negative, "negative_4"),
    )


def _bounded(results: _Results, bounds: Any) -> Value:
    """Stage 5: zero point and bounds. If the bounds cross, every value is above the upper one."""
    value = _sum(results.whole, bounds.zero_point, results.up)
    crossed = bounds.low > bounds.high
    too_low = Mux(results.outside, results.negative, value < bounds.low)
    too_high = crossed | Mux(results.outside, ~results.negative, value > bounds.high)
    return Mux(too_high, bounds.high, Mux(too_low, bounds.low, value[:8].as_signed()))


class _Kind(data.Struct):
    requantizes: 1
    compares: 1
    maximum: 1
    multiplies: 1
    looks_up: 1
    makes_bytes: 1


class _Bounds(data.Struct):
    """The last parameter."""

    zero_point: signed(8)
    low: signed(8)
    high: signed(8)
    wide: 1


class _Fixed(data.Struct):
    """t times M."""

    fraction: _FRACTION
    integer: signed(_INTEGER)
    rest: 23


def _sum(a: Value, b: Value, carry: Value) -> Value:
    """a + b + carry, in one adder."""
    return (Cat(1, a).as_signed() + Cat(carry, b).as_signed())[1:].as_signed()


def _is_rounded_up(m: Module, value: data.View) -> Value:
    """Whether n + 1 is the result for ``value``, and not its integer part n."""
    n, f = value.integer, value.fraction
    half = f[-1]
    # Next to a half, |value| < 2^j exactly if the bits of n from j on are equal.
    small = {j: (n[j:] == n[-1].replicate(_INTEGER - j)) for j in range(_INTEGER - 1)}
    # Bits of f from this one on have to be as those of a half, or of the number just below.
    last = _FRACTION - 24 - 2
    counts = Signal(10)
    m.d.comb += counts.eq(Cat(small[0] & (half == n[-1]), *small.values(), 1))
    differs = Signal(_FRACTION - 1 - last, name="differs")
    m.d.comb += differs.eq(~(f[last:-1] ^ half.replicate(len(differs))))
    within = ~(Cat(differs[:10] & counts, differs[10:])).any()
    # Exactly at the limit from a half: a single bit is set, the lowest that counts.
    lowest = counts & ~(counts << 1)[:10]
    at_end = (f[last:] == Cat(lowest, Const(0, 15), 1)) & (f[:last] == 0)
    return Mux(within | at_end, n[0], half)
