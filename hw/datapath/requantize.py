"""The ALU's lane with REQUANTIZE: bias, fixed-point scale, rounding, zero point and bounds.

For an accumulator t (bias added) and an unsigned scale M of 49 bits the result is::

    min(max(rint(float32(t * M / 2^43)) + zero_point, low), high)

where both roundings, to the 24 significant bits of a float32 and to an integer, are half to even
(IEEE 754, section 4.3.1). A t of more than 25 bits saturates; with ``wide`` parameters t is first
divided by 2^7, with a sticky last bit. So the result equals float32 arithmetic bit for bit where t
and the scale are float32 numbers: -2^24 < t < 2^24, and a scale from 2^-20 up to 2^6. The
definition is `amaranth_vta.sim.model.scalar.requantize`; the lane is checked against its NumPy
model `amaranth_vta.sim.model.arithmetic.requantized`.

With ``round_twice`` parameters the rounded product is that of TensorFlow Lite's kernels instead::

    floor(t * M / 2^43 + 1/2 + s * 2^-(e + 1))

where e is ``second_shift``, and s is 0 if e is 0, otherwise the sign of t.

t * M is exact: three DSP slices multiply by 15, 17 and 17 bits of M. The binary point is fixed, and
`_is_rounded_up` rounds without a normalizing shift. An integer part of more than 9 bits saturates
for any zero point.
"""

from itertools import pairwise
from typing import Any, NamedTuple

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.isa import AluOp
from amaranth_vta.hw.timing import REQUANTIZING_ALU_LATENCY

from .alu_lane import compares
from .table import LOOKUP_PORTS

_WIDTH = 32
# Bits of t in a product, sign included, and of a scale's upper part: factor width of a DSP slice.
_FACTOR = 25
_UPPER = isa.SCALE_WIDTH - _WIDTH
# Bits of the integer part of a scaled sum.
_INTEGER = 9
# Widths of the two lower factors of a scale. A DSP slice can add the result of another slice,
# shifted right by the latter width.
_LOW, _MIDDLE = 15, 17


class RequantizingLane(wiring.Component):
    """``result = operation(a, b)`` as `AluLane`, and REQUANTIZE of ``a``, with shared multipliers.
    With ``multiplies_and_adds``, also MULTIPLY_ADD: ``a`` times a factor plus ``b``. With
    ``rounds_twice``, parameters may have the flag ``round_twice``.

    A shift is a product with a power of two of at most 17 bits. A right shift by n multiplies by
    2^(17 - n), or by 2^(33 - n) if n exceeds 16, and drops the lowest 17 or 33 bits.

    Timing: the result is valid `latency` cycles after the operands. A parameter applies to later
    operations. With ``looks_up``, LOOKUP returns ``entry`` as in `AluLane`.

    A lane of several ``columns`` keeps the parameters of each. Operations and parameters arrive for
    all columns in turn, beginning with the first one, in consecutive cycles.

    Ports
    -----
    enable, operation, a, b : an operation; REQUANTIZE does not read ``b``
    parameter : bit n, with the operation REQUANTIZE and ``enable`` low: ``b`` is parameter n of
        later REQUANTIZEs, and may arrive n + 1 cycles after an older one or later, when that has
        used its own; bits 1 and 2 with MULTIPLY_ADD: ``b`` is the factor of later ones. An enabled
        operation of another kind overwrites scale and factor.
    """

    latency = REQUANTIZING_ALU_LATENCY
    to_index = 4

    def __init__(
        self,
        looks_up: bool = False,
        multiplies_and_adds: bool = False,
        rounds_twice: bool = False,
        columns: int = 1,
    ) -> None:
        self._looks_up = looks_up
        self._columns = columns
        self._multiplies_and_adds = multiplies_and_adds
        self._bounds = _BoundsAndRounding if rounds_twice else _Bounds
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
        # Nothing is reset: outside control marks valid results.
        kinds = [
            Signal(_Kind, name=f"kind_{stage}", reset_less=True) for stage in range(1, self.latency)
        ]
        for before, after in pairwise(kinds):
            m.d.sync += after.eq(before)
        operands = self._operands(m, kinds[0])
        products = _products(m, kinds[1], operands)
        sums = _sums(m, products)
        results = _results(m, kinds[3], sums, operands.bounds[4])
        byte = _bounded(results, operands.bounds[5])
        if self._looks_up:
            m.d.comb += self.index.eq(sums.passed[:8])
            byte = Mux(kinds[4].looks_up, self.entry, byte)
        # For a byte the other bits are 0: a register with set extends the byte's sign without a
        # LUT.
        makes_bytes = kinds[4].makes_bytes
        low = _register(m, Mux(makes_bytes, byte, results.done[:8].as_signed()), "result_low")
        high = _register(m, results.done[8:], "result_high")
        with m.If(makes_bytes & byte[-1]):
            m.d.sync += high.eq(-1)
        m.d.comb += self.result.eq(Cat(low, high))
        return m

    def _operands(self, m: Module, kind: Any) -> "_Operands":
        """Stages 1 and 2. Stage 1 registers the inputs, which come from block RAM. In stage 2 one
        adder computes sums, the differences for MIN and MAX, and the sum with the bias; other
        operands bypass it.
        """
        operation, enable, a, b, parameter = (
            _register(m, value, name)
            for value, name in (
                (self.operation, "operation_1"),
                (self.enable, "enable_1"),
                (self.a, "a_1"),
                (self.b, "b_1"),
                (self.parameter, "parameter_1"),
            )
        )
        shift = _shift_of(m, operation == AluOp.SHR, self.b, b)
        adds, added = self._added(m, operation, b)
        _decode(m, kind, operation, shift, adds)
        kept = self._parameters(m, kind, enable, b, parameter, adds)
        addend = Signal(signed(_WIDTH))
        with m.If(kind.requantizes):
            m.d.comb += addend.eq(kept.bias)
        with m.Elif(kind.compares):
            m.d.comb += addend.eq(~b)
        with m.Elif(operation == AluOp.ADD):
            m.d.comb += addend.eq(b)
        sum_ = _sum(a, addend, kind.compares)[:_WIDTH].as_signed()
        total, first = _register(m, sum_, "total"), _register(m, a, "first")
        multiplied = _multiplied(m, kind, sum_, kept.bounds[1])

        # The second operand, or the scale.
        second = Signal(signed(_WIDTH))
        lower = Signal(signed(_WIDTH), reset_less=True)
        upper = Signal(_UPPER, reset_less=True)
        m.d.comb += second.eq(Mux(operation == AluOp.SHR, shift.power, b))
        replaces = enable & ~kind.requantizes & ~adds
        above = Mux(shift.to_right, second[_LOW:], second[:_UPPER])
        if kept.scale is None:
            for number, register, value in (
                (0, kept.bias, b),
                (1, lower, second),
                (2, upper, above),
                (3, kept.bounds[-1], b),
            ):
                with m.If(parameter[number] | (replaces if number in (1, 2) else 0)):
                    m.d.sync += Value.cast(register).eq(value)
        else:
            for register, scale, value in zip(
                (lower, upper), kept.scale, (second, above), strict=True
            ):
                m.d.sync += register.eq(Mux(replaces, value, scale))
        return _Operands(total, first, multiplied, lower, upper, added, kept.bounds)

    def _parameters(
        self, m: Module, kind: Any, enable: Value, b: Signal, parameter: Signal, adds: Value
    ) -> "_Parameters":
        """Registers of parameters. With several columns they rotate with the operations that use
        them.
        """
        if self._columns == 1:
            bias = Signal(signed(_WIDTH), reset_less=True)
            bounds = Signal(self._bounds, reset_less=True)
            return _Parameters(bias, None, [bounds] * self.latency)
        requantizes = enable & kind.requantizes
        scales = enable & (kind.requantizes | adds)
        heads = []
        for number, shape, uses in (
            (0, signed(_WIDTH), requantizes),
            (1, signed(_WIDTH), scales),
            (2, _UPPER, scales),
            (3, self._bounds, requantizes),
        ):
            registers = [
                Signal(shape, name=f"parameter_{number}_{column}", reset_less=True)
                for column in range(self._columns)
            ]
            with m.If(parameter[number] | uses):
                for one, other in pairwise(registers):
                    m.d.sync += one.eq(other)
                m.d.sync += Value.cast(registers[-1]).eq(
                    Mux(parameter[number], b, Value.cast(registers[0]))
                )
            heads.append(registers[0])
        bias, low, high, bounds = heads
        # Stage 0 has no parameters.
        stages = [bounds, bounds]
        for stage in range(2, self.latency):
            stages.append(_register(m, stages[-1], f"bounds_{stage}"))
        return _Parameters(bias, (low, high), stages)

    def _added(self, m: Module, operation: Value, b: Signal) -> tuple[Value, Signal | None]:
        """Whether the operation is MULTIPLY_ADD, and a register of its addend, 0 otherwise."""
        if not self._multiplies_and_adds:
            return Const(0, 1), None
        adds = operation == AluOp.MULTIPLY_ADD
        added = _register(m, b, "added")
        with m.If(~adds):
            m.d.sync += added.eq(0)
        return adds, added


def _decode(m: Module, kind: Any, operation: Value, shift: "_Shift", adds: Value) -> None:
    product = (operation == AluOp.MUL) | shift.to_left | adds
    m.d.comb += [
        kind.requantizes.eq(operation == AluOp.REQUANTIZE),
        kind.compares.eq(compares(operation)),
        kind.maximum.eq(operation == AluOp.MAX),
        kind.looks_up.eq(operation == AluOp.LOOKUP),
        kind.makes_bytes.eq(kind.requantizes | kind.looks_up),
        kind.gives.eq(Mux(product, _Gives.PRODUCT, _Gives.PASSED)),
    ]
    with m.If(shift.to_right):
        m.d.comb += kind.gives.eq(Mux(shift.far, _Gives.FAR, _Gives.NEAR))


class _Multiplied(NamedTuple):
    """The multiplicand in two registers, one of which is 0; the pre-adders of DSP slices merge
    them. ``halved`` is a quotient; ``lost`` is its sticky bit: the last bit is 0 and must be set.
    """

    narrow: Signal
    halved: Signal
    lost: Signal


def _multiplied(m: Module, kind: Any, sum_: Value, bounds: Any) -> _Multiplied:
    narrow = _register(m, sum_[:_FACTOR].as_signed(), "narrow")
    halved = _register(m, sum_[_WIDTH - _FACTOR :].as_signed(), "halved")
    with m.If(~kind.requantizes):
        # The lower bits, without a sign.
        m.d.sync += narrow[-1].eq(0)
    wide = kind.requantizes & bounds.wide
    with m.If(wide):
        m.d.sync += narrow.eq(0)
    with m.Else():
        m.d.sync += halved.eq(0)
    rest, last = sum_[: _WIDTH - _FACTOR], sum_[_WIDTH - _FACTOR]
    return _Multiplied(narrow, halved, _register(m, wide & ~last & rest.any(), "lost"))


class _Gives(enum.Enum, shape=2):
    """Result format of an operation other than REQUANTIZE."""

    PASSED = 0
    PRODUCT = 1
    # Product bits above the lowest 17, or 33.
    NEAR = 2
    FAR = 3


class _Parameters(NamedTuple):
    """Parameters of the operation in stage 2 of the pipeline: bias; the lower and upper part of the
    scale, unless they are in the registers of the second operand; and the last parameter, by the
    stage whose registers hold the operation.
    """

    bias: Signal
    scale: tuple[Signal, Signal] | None
    bounds: list[Any]


class _Operands(NamedTuple):
    """Registers after stage 2: ``total`` is the adder's result; ``lower`` and ``upper`` are the
    second operand, the scale, or the factor of MULTIPLY_ADD; ``added`` is the addend of
    MULTIPLY_ADD, else 0; ``bounds`` as in `_Parameters`.
    """

    total: Signal
    first: Signal
    multiplied: _Multiplied
    lower: Signal
    upper: Signal
    added: Signal | None
    bounds: list[Any]


class _Products(NamedTuple):
    """Registers after stage 3: three partial products; the result of operations without a product;
    for REQUANTIZE the sign, and whether t is too wide.
    """

    low: Signal
    middle: Signal
    high: Signal
    passed: Signal
    negative: Signal
    outside: Signal


class _Sums(NamedTuple):
    """Registers after stage 4: the product as a fixed-point number; the rest as before."""

    fixed: Any
    carried: Signal
    passed: Signal
    negative: Signal
    outside: Signal


class _Results(NamedTuple):
    """Registers after stage 5: the 32-bit result, or 0 for operations with byte results;
    REQUANTIZE's integer part, whether to round up, and whether it saturates for any bounds.
    """

    done: Signal
    whole: Signal
    up: Signal
    outside: Signal
    negative: Signal


def _products(m: Module, kind: Any, operands: _Operands) -> _Products:
    """Stage 3: partial products; operations without a product are resolved in parallel."""
    total, first, lower = operands.total, operands.first, operands.lower
    less, chosen = Signal(), Signal(signed(_WIDTH))
    m.d.comb += [
        less.eq(Mux(first[-1] == lower[-1], total[-1], first[-1])),
        chosen.eq(Mux(kind.compares, Mux(less ^ kind.maximum, first, lower), total)),
    ]
    factors = _factors(m, kind, operands)
    values = [
        a * Cat(b, Const(0, 1)).as_signed()
        for a, b in zip(factors, (lower[:_LOW], lower[_LOW:], operands.upper), strict=True)
    ]
    if operands.added is not None:
        # A DSP slice adds it.
        values[0] += operands.added
    low, middle, high = (
        _register(m, value, name)
        for value, name in zip(values, ("low", "middle", "high"), strict=True)
    )
    too_wide = ~operands.bounds[2].wide & (total[_FACTOR - 1 : -1] ^ total[-1].replicate(7)).any()
    return _Products(
        low,
        middle,
        high,
        passed=_register(m, chosen, "passed_3"),
        negative=_register(m, total[-1], "negative_3"),
        outside=_register(m, too_wide, "outside_3"),
    )


def _factors(m: Module, kind: Any, operands: _Operands) -> tuple[Signal, Signal, Signal]:
    """Factors of the two lower parts of the second operand, and of its upper part.

    For operations other than REQUANTIZE these are the lower 24 bits of the first operand, unsigned,
    and its upper eight, signed, aligned with the upper part of a right-shifted product. In a MUL
    ``upper`` holds the low bits of b, which together with the upper bits of a produce the upper
    bits of the product: eight bits, with others added above.
    """
    total, (narrow, halved, lost) = operands.total, operands.multiplied
    quotient = Cat(halved[0] | lost, halved[1:])
    low, middle, high = (
        Signal(signed(_FACTOR), name=f"{name}_factor") for name in ("low", "middle", "high")
    )
    top, beside = total[_FACTOR - 1 :], Signal(signed(_FACTOR))
    to_right = (kind.gives == _Gives.NEAR) | (kind.gives == _Gives.FAR)
    m.d.comb += [
        # Two sums with different terms: Yosys would share equal ones outside both DSP slices.
        low.eq(narrow + quotient.as_signed()),
        middle.eq(Cat(narrow[0] | lost, narrow[1:]).as_signed() + halved),
        beside.eq(Cat(Mux(to_right, Cat(Const(0, 7), top[0]), top), top[1:]).as_signed()),
        high.eq(Mux(kind.requantizes, quotient | narrow.as_unsigned(), beside)),
    ]
    return low, middle, high


def _sums(m: Module, products: _Products) -> _Sums:
    """Stage 4: sum of the partial products."""
    low, middle, high, passed, negative, outside = products
    lower_sum, sum_ = Signal(signed(44)), Signal(signed(44))
    m.d.comb += [
        lower_sum.eq((low >> _LOW) + middle),
        sum_.eq((lower_sum >> _MIDDLE) + high),
    ]
    fixed = Signal(_ScaledSum, reset_less=True)
    m.d.sync += Value.cast(fixed).eq(Cat(low[:_LOW], lower_sum[:_MIDDLE], sum_))
    return _Sums(
        fixed,
        # The carry into the upper sum, which integer products must not have.
        carried=_register(m, lower_sum[_MIDDLE:][:8], "carried"),
        passed=_register(m, passed, "passed_4"),
        negative=_register(m, negative, "negative_4"),
        outside=_register(m, outside, "outside_4"),
    )


def _results(m: Module, kind: Any, sums: _Sums, bounds: Any) -> _Results:
    """Stage 5: results except zero point and bounds."""
    fixed, carried, passed, negative, outside = sums
    bits = Value.cast(fixed)
    upper = bits[_LOW + _MIDDLE :].as_signed()
    done = Signal(signed(_WIDTH))
    with m.Switch(kind.gives):
        with m.Case(_Gives.PASSED):
            m.d.comb += done.eq(passed)
        with m.Case(_Gives.PRODUCT):
            m.d.comb += done.eq(Cat(bits[:24], (bits[24:32] + (bits[32:40] - carried))[:8]))
        with m.Case(_Gives.NEAR):
            m.d.comb += done.eq(upper)
        with m.Case(_Gives.FAR):
            m.d.comb += done.eq(upper >> 16)
    above = fixed.rest ^ fixed.integer[-1].replicate(len(fixed.rest))
    done = _register(m, done, "done")
    with m.If(kind.makes_bytes):
        m.d.sync += done.eq(0)
    return _Results(
        done=done,
        whole=_register(m, fixed.integer, "whole"),
        up=_register(m, _is_rounded_up(m, fixed, bounds, negative), "up"),
        outside=_register(m, outside | above.any(), "outside_5"),
        negative=_register(m, negative, "negative_5"),
    )


def _bounded(results: _Results, bounds: Any) -> Value:
    """Stage 6: zero point and bounds. If the low bound exceeds the high one, the result is high."""
    value = _sum(results.whole, bounds.zero_point, results.up)
    crossed = bounds.low > bounds.high
    too_low = Mux(results.outside, results.negative, value < bounds.low)
    too_high = crossed | Mux(results.outside, ~results.negative, value > bounds.high)
    return Mux(too_high, bounds.high, Mux(too_low, bounds.low, value[:8].as_signed()))


class _Kind(data.Struct):
    requantizes: 1
    compares: 1
    maximum: 1
    gives: _Gives
    looks_up: 1
    makes_bytes: 1


class _Bounds(data.Struct):
    """The last parameter."""

    zero_point: signed(8)
    low: signed(8)
    high: signed(8)
    wide: 1


class _BoundsAndRounding(data.Struct):
    """The last parameter with ROUND_TWICE."""

    zero_point: signed(8)
    low: signed(8)
    high: signed(8)
    wide: 1
    round_twice: 1
    second_shift: isa.SECOND_SHIFT_WIDTH


def _sum(a: Value, b: Value, carry: Value) -> Value:
    """a + b + carry in one adder: ``carry`` below both operands makes the carry-in."""
    return (Cat(carry, a).as_signed() + Cat(carry, b).as_signed())[1:].as_signed()


class _Shift(NamedTuple):
    """A shift as a product with ``power``; a right shift by more than 16 if ``far``."""

    power: Value
    to_left: Value
    to_right: Value
    far: Value


def _shift_of(m: Module, shifts: Value, incoming: Value, b: Signal) -> _Shift:
    """A right shift by the signed ``b``; ``incoming`` is ``b`` one cycle earlier. The product is
    with 1 for a shift by 0, and with 0 below -31; a shift by more than 31 returns the sign, like
    32.
    """
    none = _register(m, incoming[:5] == 0, "shifts_none")
    # Bits that differ from the sign, grouped by five, since data from block RAM arrive late.
    unlike = incoming[5:-1] ^ incoming[-1].replicate(len(incoming) - 6)
    groups = Cat(unlike[place : place + 5].any() for place in range(0, len(unlike), 5))
    beyond = _register(m, groups, "shifts_beyond").any()
    to_right, exponent = Signal(name="shifts_to_right"), Signal(5, name="exponent")
    # The low bits of -b, which equal those of 16 - b, 32 - b and 48 - b. An adder would take an
    # inverter and a carry per bit.
    opposite = Cat(b[place] ^ b[:place].any() for place in range(5))
    m.d.comb += [
        to_right.eq(shifts & ~b[-1] & (beyond | ~none)),
        # Position of the power in the middle of three factors, whose lowest bit is 15.
        exponent.eq(Cat(Mux(beyond, 0, opposite[:4]), to_right | opposite[4])),
    ]
    power = _power_of_two(m, exponent, to_right | (~beyond & (none ^ b[-1])))
    return _Shift(
        power,
        to_left=shifts & ~to_right,
        to_right=to_right,
        far=beyond | (b[4] & b[:4].any()),
    )


def _power_of_two(m: Module, exponent: Value, enable: Value) -> Value:
    """2 ** ``exponent`` if ``enable``, else 0; ``exponent`` has three bits or more."""
    octets = Signal(1 << len(exponent) - 3, name="octets")
    m.d.comb += octets.eq(Mux(enable, Const(1) << exponent[3:], 0))
    return Cat(octet & (exponent[:3] == bit) for octet in octets for bit in range(8))


def _register(m: Module, value: Any, name: str) -> Any:
    """A register of ``value`` without reset."""
    stage = Signal(value.shape(), name=name, reset_less=True)
    m.d.sync += stage.eq(value)
    return stage


class _ScaledSum(data.Struct):
    """A sum times a scale, in fixed point; ``rest`` are the bits above the range of results."""

    fraction: isa.SCALE_FRACTION
    integer: signed(_INTEGER)
    rest: 23


def _is_rounded_up(m: Module, value: data.View, bounds: Any, negative: Value) -> Value:
    """Whether the result for ``value`` is n + 1 instead of its integer part n: rounded twice, as by
    float32 arithmetic, without normalization.

    Let n be the integer part and f the fraction. Rounding to 24 bits first matters only if its
    result is n + 1/2, since the even one of n and n + 1 is then chosen. It moves a number of
    magnitude from 2^k to 2^(k + 1) by at most half a unit in the last place, 2^(k - 24). A move by
    exactly this distance to n + 1/2 does occur, since ties are rounded to even and the last of the
    24 bits of n + 1/2 is zero. So the even one is chosen where f is within 2^(k - 24) of 1/2,
    inclusive; elsewhere f alone decides. With an integer part of 9 bits k is at most 7; below 1/4
    nothing is rounded to 1/2, so k is at least -2.

    With ``round_twice`` n + 1 is chosen where f >= 1/2 - s * 2^-(e + 1). For e > 0 this differs
    from f >= 1/2 only where the e bits after the first all differ from it: there the sign decides.
    """
    n, f = value.integer, value.fraction
    half = f[-1]
    # Near a half, |value| < 2^j if and only if all bits of n from j on are equal.
    small = {j: (n[j:] == n[-1].replicate(_INTEGER - j)) for j in range(_INTEGER - 1)}
    # From this bit on, the bits of f must equal those of one half, or of the number just below it.
    last = isa.SCALE_FRACTION - 24 - 2
    counts = Signal(10)
    m.d.comb += counts.eq(Cat(small[0] & (half == n[-1]), *small.values(), 1))
    differs = Signal(isa.SCALE_FRACTION - 1 - last, name="differs")
    m.d.comb += differs.eq(~(f[last:-1] ^ half.replicate(len(differs))))
    within = ~(Cat(differs[:10] & counts, differs[10:])).any()
    # Exactly at the limit of the window: only the lowest significant bit is set.
    lowest = counts & ~(counts << 1)[:10]
    at_end = (f[last:] == Cat(lowest, Const(0, 15), 1)) & (f[:last] == 0)
    if bounds.shape() is not _BoundsAndRounding:
        return Mux(within | at_end, n[0], half)
    twice, shift = bounds.round_twice, bounds.second_shift
    by_float32 = ~twice
    counted = Cat(by_float32 | (shift >= place) for place in range(len(differs) - 10, 0, -1))
    within = ~Cat(
        differs[:10] & counts & by_float32.replicate(10),
        differs[10:] & counted,
        twice & (shift == 0),
    ).any()
    return Mux(within | (at_end & by_float32), Mux(twice, ~negative, n[0]), half)
