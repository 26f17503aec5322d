"""The operations of the tensor ALU on one pair of scalars."""

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import enum

from . import isa


class AluOp(enum.Enum, shape=3):
    """`isa.AluOp` as a hardware enumeration."""

    MIN = isa.AluOp.MIN
    MAX = isa.AluOp.MAX
    ADD = isa.AluOp.ADD
    SHR = isa.AluOp.SHR
    MUL = isa.AluOp.MUL
    REQUANTIZE = isa.AluOp.REQUANTIZE


def simple_operation(m: Module, operation: Value, a: Value, b: Value) -> Signal:
    """MIN, MAX, ADD or SHR of two signed scalars of one width, combinational.

    MUL has multipliers of its own, with a register behind them.
    """
    width = len(a)
    less = Signal(name="less")
    m.d.comb += less.eq(a < b)

    # A shift to the right by b, or to the left by -b; beyond the width nothing but sign bits or
    # zeros is left.
    magnitude = Signal(width, name="magnitude")
    m.d.comb += magnitude.eq(Mux(b < 0, -b, b))
    log_width = (width - 1).bit_length()
    amount, beyond = Signal(log_width, name="amount_simple"), Signal(name="beyond")
    m.d.comb += [amount.eq(magnitude), beyond.eq(magnitude[log_width:] != 0)]
    right = Signal(signed(width), name="right")
    left, shifted = Signal(width, name="left"), Signal(width, name="shifted_simple")
    m.d.comb += [
        right.eq(a >> amount),
        left.eq(a.as_unsigned() << amount),
        shifted.eq(Mux(b < 0, Mux(beyond, 0, left), Mux(beyond, a[-1].replicate(width), right))),
    ]

    result = Signal(width, name="simple")
    with m.Switch(operation):
        with m.Case(AluOp.MIN):
            m.d.comb += result.eq(Mux(less, a, b))
        with m.Case(AluOp.MAX):
            m.d.comb += result.eq(Mux(less, b, a))
        with m.Case(AluOp.SHR):
            m.d.comb += result.eq(shifted)
        with m.Default():
            m.d.comb += result.eq(a + b)
    return result
