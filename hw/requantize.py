"""Requantization of accumulators, equal bit for bit to float32 arithmetic.

For an accumulator t (bias added), a float32 scale s = m * 2^(e - 150) with a mantissa m of 24 bits,
a zero point and two bounds, the result is::

    clip(rint(float32(float32(t) * s)) + zero_point, low, high)

where both roundings to float32 and rint are half to even (IEEE 754, section 4.3.1). It is had
without a floating-point unit:

- float32(t) is |t| rounded to 24 significant bits, kept as ``magnitude * 2^exponent``.
- Its product with m is exact, and is shifted to a fixed binary point: integer part I, fraction F.
- float32 of the product, then rint, gives I or I + 1. The first rounding moves a value by at most
  half a unit in the last of 24 places, which is 2^(k - 24) where 2^k <= value < 2^(k + 1). So it
  matters only where the value is that close to I + 1/2, which itself has 24 places to spare: there,
  both bounds included since I + 1/2 ends in a zero bit, it gives I + 1/2, and rint the even one of
  I and I + 1. Everywhere else F is rounded as it is.
- An integer part of more than 9 bits is beyond all bounds, whatever the zero point; so k is 8 at
  the most, and 25 bits of F and whether anything follows them decide. Below 1/2 the result is 0.
"""

from itertools import pairwise
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Shape, Signal, Value, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .operation import AluOp, simple_operation

_WIDTH = 32
_MANTISSA = 24
_INTEGER = 9
_FRACTION = 25
# Bits of the narrower factor of a DSP slice, but for its sign; the wider one has 24.
_DSP_FACTOR = 17
# Bits of t beyond a mantissa's.
_EXCESS = _WIDTH - _MANTISSA
# What the exponent of a float32 is more than that of its mantissa as an integer.
_BIAS = 150
# The product is shifted to the right by this at least: with less, all but 0 is out of bounds.
_LEAST_SHIFT = 15
# And by less than this: with more, it is less than 1/2.
_SHIFT_END = 50


class RequantizeParameters(data.Struct):
    """Of one lane, in the order in which accumulator elements hold them."""

    bias: signed(_WIDTH)
    # A float32; its sign is ignored.
    mantissa: 23
    exponent: 8
    sign: 1
    zero_point: signed(8)
    low: signed(8)
    high: signed(8)
    unused: 8


class RequantizingLane(wiring.Component):
    """``result = operation(a, b)`` as `AluLane`, and REQUANTIZE of ``a``; one multiplier for both.

    Timing: the result is there `LATENCY` cycles after the operands.

    Ports
    -----
    operation, a, b : the operands; ``b`` is not read by REQUANTIZE
    parameters : stable while a REQUANTIZE is under way
    """

    LATENCY = 5

    operation: In(AluOp)
    a: In(signed(_WIDTH))
    b: In(signed(_WIDTH))
    parameters: In(RequantizeParameters)
    result: Out(signed(_WIDTH))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        parameters = self.parameters
        kind = data.StructLayout({"multiplies": 1, "requantizes": 1})
        kinds = [Signal(kind, name=f"kind_{stage}") for stage in range(self.LATENCY)]
        m.d.comb += [
            kinds[0].multiplies.eq(self.operation == AluOp.MUL),
            kinds[0].requantizes.eq(self.operation == AluOp.REQUANTIZE),
        ]
        for before, after in pairwise(kinds):
            m.d.sync += after.eq(before)

        def register(shape: Any, value: Any, name: str) -> Signal:
            stage = Signal(shape, name=name)
            m.d.sync += stage.eq(value)
            return stage

        # Stage 1: the bias is added; the other operations are done, but for the product.
        simple = simple_operation(m, self.operation, self.a, self.b)
        total = register(
            signed(_WIDTH),
            Mux(
                kinds[0].requantizes,
                (self.a + parameters.bias)[:_WIDTH],
                Mux(kinds[0].multiplies, self.a.as_unsigned(), simple),
            ),
            "total",
        )
        factor = register(unsigned(_WIDTH), self.b.as_unsigned(), "factor")

        # Stage 2: sign and magnitude, rounded to a mantissa.
        negative = register(1, total[-1], "negative_2")
        magnitude, excess = _round_to_mantissa(m, Mux(total < 0, -total, total)[:_WIDTH])
        multiplicand = register(
            unsigned(_WIDTH),
            Mux(kinds[1].requantizes, magnitude, total.as_unsigned()),
            "multiplicand",
        )
        excess = register(excess.shape(), excess, "excess_2")
        mantissa = Cat(parameters.mantissa, parameters.exponent != 0)
        multiplier = register(
            unsigned(_MANTISSA),
            Mux(kinds[1].requantizes, mantissa, Mux(kinds[1].multiplies, factor[:_MANTISSA], 1)),
            "multiplier",
        )
        upper = register(unsigned(_WIDTH - _MANTISSA), factor[_MANTISSA:], "upper")

        # Stage 3: the product. Its low bits lack what the upper bits of b add. It is made of two,
        # each of a DSP slice, the second of which adds.
        low_product = Signal(_MANTISSA + _DSP_FACTOR, name="low_product")
        high_product = Signal(_MANTISSA + _WIDTH - _DSP_FACTOR, name="high_product")
        m.d.comb += [
            low_product.eq(multiplier * multiplicand[:_DSP_FACTOR]),
            high_product.eq(multiplier * multiplicand[_DSP_FACTOR:] + low_product[_DSP_FACTOR:]),
        ]
        product = register(
            unsigned(_WIDTH + _MANTISSA),
            Cat(low_product[:_DSP_FACTOR], high_product),
            "product",
        )
        rest = register(
            unsigned(_WIDTH - _MANTISSA),
            Mux(kinds[2].multiplies, (multiplicand[: len(upper)] * upper)[: len(upper)], 0),
            "rest",
        )
        negative = register(1, negative, "negative_3")
        excess = register(excess.shape(), excess, "excess_3")

        # Stage 4: the product with its binary point in place.
        aligned = _align(m, product, parameters.exponent, excess)
        passed = (product[:_WIDTH] + (rest << _MANTISSA))[:_WIDTH]
        fixed = register(
            aligned.shape(),
            Mux(kinds[3].requantizes, Value.cast(aligned), passed),
            "fixed",
        )
        negative = register(1, negative, "negative_4")

        # Stage 5: rounded and bounded.
        bounded = _round_and_bound(m, data.View(aligned.shape(), fixed), negative, parameters)
        result = register(
            signed(_WIDTH),
            Mux(kinds[4].requantizes, bounded, Value.cast(fixed)[:_WIDTH].as_signed()),
            "result_5",
        )
        m.d.comb += self.result.eq(result)
        return m


def _round_to_mantissa(m: Module, value: Value) -> tuple[Signal, Signal]:
    """``value``, 32 bits unsigned, to 24 significant bits half to even: what is left of it when
    it is shifted to the right by the second result, rounded (it may be 2^24)."""
    bits = Signal(_WIDTH, name="magnitude_in")
    m.d.comb += bits.eq(value)
    rounded, shift = Signal(_MANTISSA + 1, name="rounded"), Signal(range(_EXCESS + 1), name="shift")
    kept, up = Signal(_MANTISSA, name="kept"), Signal(name="up")
    m.d.comb += rounded.eq(kept + up)
    with m.Switch(bits[_MANTISSA:]):
        for amount in range(_EXCESS + 1):
            # The top bit that is set, if any, decides by how much.
            pattern = "0" * (_EXCESS - amount) + ("1" + "-" * (amount - 1) if amount else "")
            with m.Case(pattern):
                m.d.comb += [kept.eq(bits[amount : amount + _MANTISSA]), shift.eq(amount)]
                if amount > 0:
                    lower = bits[: amount - 1].any() if amount > 1 else 0
                    m.d.comb += up.eq(bits[amount - 1] & (lower | bits[amount]))
    return rounded, shift


class _Fixed(data.Struct):
    """A value with its binary point in place; ``sticky``: something follows the fraction."""

    sticky: 1
    fraction: _FRACTION
    integer: _INTEGER
    overflow: 1


def _align(m: Module, product: Signal, exponent: Value, excess: Value) -> data.View:
    """``product`` * 2^(exponent + excess - 150), cut to what decides the result."""
    amount = Signal(signed(10), name="amount")
    m.d.comb += amount.eq(_BIAS - exponent - excess)
    shift = Signal(range(_SHIFT_END - _LEAST_SHIFT), name="align_shift")
    m.d.comb += shift.eq((amount - _LEAST_SHIFT)[: len(shift)])

    # The product is below 2^49. Its fraction has 25 bits after a shift by 15 if 10 follow it.
    lead = _FRACTION - _LEAST_SHIFT
    wide = Signal(49 + lead, name="unaligned")
    shifted = Signal(49 + lead, name="shifted")
    lost = Signal(_SHIFT_END - _LEAST_SHIFT, name="lost")
    m.d.comb += [
        wide.eq(product[:49] << lead),
        shifted.eq(wide >> shift),
        # The bits that a shift by so much loses.
        lost.eq(wide & ((1 << shift) - 1)),
    ]
    fixed = Signal(_Fixed, name="aligned")
    with m.If(amount < _LEAST_SHIFT):
        m.d.comb += fixed.overflow.eq(product != 0)
    with m.Elif(amount < _SHIFT_END):
        m.d.comb += [
            fixed.sticky.eq(lost != 0),
            fixed.fraction.eq(shifted[:_FRACTION]),
            fixed.integer.eq(shifted[_FRACTION : _FRACTION + _INTEGER]),
            fixed.overflow.eq(shifted[_FRACTION + _INTEGER :] != 0),
        ]
    return fixed


def _round_and_bound(
    m: Module, value: data.View, negative: Signal, parameters: data.View
) -> Signal:
    """The result for a value that is not negative, and its sign."""
    integer, fraction = value.integer, value.fraction
    half = fraction[-1]
    tie = Signal(name="tie")
    with m.Switch(integer):
        for k in range(-1, _INTEGER):
            # 2^k <= value, so that half a unit in the last place is 2^-places. Bit b of the
            # fraction, counted from 1 at the top, is fraction[25 - b].
            places = _MANTISSA - k
            pattern = "0" * (_INTEGER - k - 1) + ("1" + "-" * k if k >= 0 else "")
            with m.Case(pattern):
                between = fraction[_FRACTION - places : _FRACTION - 1]
                last, upper = between[0], between[1:]
                below = value.sticky | fraction[: _FRACTION - places].any()
                just_above = (upper == 0) & ~(last & below)
                just_below = between.all()
                m.d.comb += tie.eq(Mux(half, just_above, just_below))
    rounded, signed_value = Signal(_INTEGER + 1, name="q"), Signal(signed(_INTEGER + 3), name="sq")
    result = Signal(Shape(8, signed=True), name="bounded")
    m.d.comb += [
        rounded.eq(integer + Mux(tie, integer[0], half)),
        signed_value.eq(Mux(negative, -rounded, rounded) + parameters.zero_point),
    ]
    too_low, too_high = Signal(name="too_low"), Signal(name="too_high")
    m.d.comb += [
        too_low.eq(Mux(value.overflow, negative, signed_value < parameters.low)),
        too_high.eq(Mux(value.overflow, ~negative, signed_value > parameters.high)),
        result.eq(
            Mux(
                too_low,
                parameters.low,
                Mux(too_high, parameters.high, signed_value[:8].as_signed()),
            )
        ),
    ]
    return result
