"""An ALU lane for one pair of scalars, in machines without REQUANTIZE: `AluLane`."""

from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.isa import AluOp
from amaranth_vta.hw.timing import ALU_LANE_REGISTERS, ALU_LATENCY

from .table import LOOKUP_PORTS


class AluLane(wiring.Component):
    """``result = operation(a, b)`` on one pair of scalars, wrapped to their width; 0 without
    ``enable``.

    Timing: the result is valid `latency` cycles after the operands: one, or three if operands and
    products are ``registered``. With ``looks_up``, the result of LOOKUP is ``entry``: ``index`` is
    valid `to_index` cycles after the operands, and ``entry`` is sampled one cycle later.
    """

    def __init__(self, width: int, looks_up: bool = False, registered: bool = False) -> None:
        self._width = width
        self._looks_up = looks_up
        self._registered = registered
        self.latency = ALU_LATENCY + (ALU_LANE_REGISTERS if registered else 0)
        self.to_index = self.latency - 1
        super().__init__(
            {
                "enable": In(1),
                "operation": In(AluOp),
                "a": In(signed(width)),
                "b": In(signed(width)),
                "result": Out(signed(width)),
                **(LOOKUP_PORTS if looks_up else {}),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        width, half = self._width, self._width // 2
        factor = self._factor(m)
        shifts, multiplying = self.operation == AluOp.SHR, self.operation == AluOp.MUL
        # Inverted for MIN and MAX, so that the sum is the difference less 1.
        plain = self.b.as_unsigned() ^ compares(self.operation).replicate(width)
        operands, summed = (
            Signal(_operands(width), name=name, reset_less=True) for name in ("operands", "summed")
        )
        # Operands come from block RAM late in the cycle, but the path through the multipliers,
        # which starts at the factor, is longer. On an ECP5 multipliers are in a few rows, far from
        # most lanes: their products return a cycle later.
        domain = m.d.sync if self._registered else m.d.comb
        domain += [
            operands.enabled.eq(self.enable),
            operands.operation.eq(self.operation),
            operands.a.eq(self.a),
            operands.b.eq(Mux(shifts, factor.power, plain)),
            operands.multiplies.eq(multiplying | (shifts & factor.to_left & ~factor.lost)),
            operands.shifts_right.eq(shifts & ~factor.to_left),
            operands.far.eq(self.b[(half - 1).bit_length()]),
            operands.all_sign.eq(factor.all_sign),
            summed.eq(operands),
        ]

        low, upper, cross = (
            Signal(shape, name=name, reset_less=True)
            for name, shape in (("low", width + 1), ("upper", signed(width)), ("cross", half))
        )
        a, b = operands.a, operands.b
        lower = Cat(b[:half], b[width])
        domain += [
            low.eq(a[:half] * lower),
            upper.eq(a[half:].as_signed() * lower),
            cross.eq(a[:half] * b[half:width]),
        ]
        a, b, operation = summed.a, summed.b, summed.operation
        high = Signal(signed(width))
        sum_, takes_first = Signal(width + 1, name="sum"), Signal()
        m.d.comb += [
            high.eq(upper + (low >> half)),
            sum_.eq(a + b[:width].as_signed()),
            takes_first.eq(sum_[-1] ^ (operation == AluOp.MAX)),
        ]
        # A register per kind of result, all but one reset to 0: resets take no LUTs.
        results = []
        for name, value, counts in (
            ("product", Cat(low[:half], (high + cross)[:half]), summed.multiplies),
            (
                "shifted",
                Mux(
                    summed.all_sign, high[-1].replicate(width), Mux(summed.far, high >> half, high)
                ),
                summed.shifts_right,
            ),
            ("total", sum_, operation == AluOp.ADD),
            ("extreme", Mux(takes_first, a, ~b), compares(operation)),
        ):
            result = Signal(width, name=name, reset_less=True)
            m.d.sync += result.eq(value)
            with m.If(~(summed.enabled & counts)):
                m.d.sync += result.eq(0)
            results.append(result)
        m.d.comb += self.result.eq(reduce(or_, results))
        if self._looks_up:
            is_entry = Signal()
            m.d.sync += is_entry.eq(summed.enabled & (operation == AluOp.LOOKUP))
            m.d.comb += self.index.eq(a[:8])
            with m.If(is_entry):
                m.d.comb += self.result.eq(self.entry)
        return m

    def _factor(self, m: Module) -> "_Factor":
        """Operand that turns a shift by ``b`` into a product."""
        half = self._width // 2
        log_half = (half - 1).bit_length()
        left, rest = self.b[-1], self.b[log_half + 1 :]
        powers, to_upper = Signal(half), Signal()
        m.d.comb += [
            # 2 ** -b, with the exponent modulo the half.
            powers.eq(Cat(self.b[:log_half] == -bit % half for bit in range(half))),
            to_upper.eq(left & (self.b[log_half] == powers[0])),
        ]
        power = Cat(
            powers[0] & left & ~to_upper,
            Mux(to_upper, 0, powers[1:]),
            Mux(to_upper, powers, 0),
            powers[0] & ~left,
        )
        lost = ~rest.all() | (self.b[: log_half + 1] == 0)
        return _Factor(power, left, lost, rest.any())


def _operands(width: int) -> data.StructLayout:
    """Operands of an operation: ``b`` as is, inverted, or as a `_Factor`. ``multiplies``,
    ``shifts_right``, ``far`` (by half the width or more) and ``all_sign`` tell how to interpret the
    products.
    """
    flags = ("enabled", "multiplies", "shifts_right", "far", "all_sign")
    return data.StructLayout(
        {"a": signed(width), "b": width + 1, "operation": AluOp, **dict.fromkeys(flags, 1)}
    )


class _Factor(NamedTuple):
    """A shift expressed as a product with ``power``.

    A left shift by n multiplies by 2 ** n; by the width or more, everything is ``lost``. Right
    shifts by n and by n + half, with n less than half the width, multiply by 2 ** (half - n), in
    the lower half of the factor, extended by the topmost bit of ``power``. The product without its
    lower half is the operand shifted by n; the upper half of that is the operand shifted by
    n + half. After a shift by the width or more (``all_sign``) only signs remain.
    """

    power: Value
    to_left: Value
    lost: Value
    all_sign: Value


def compares(operation: Value) -> Value:
    """Whether ``operation`` is MIN or MAX."""
    return (operation == AluOp.MIN) | (operation == AluOp.MAX)
