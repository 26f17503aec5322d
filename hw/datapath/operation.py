"""The operations of the tensor ALU on one pair of scalars."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed

from amaranth_vta.hw.isa import AluOp


def simple_operation(m: Module, operation: Value, a: Value, b: Value) -> Signal:
    """MIN, MAX, ADD or SHR of two signed scalars of one width, combinational.

    A lane computes MUL separately, in multipliers with a register behind them.
    """
    width = len(a)
    less = Signal(name="less")
    m.d.comb += less.eq(a < b)

    # A shift to the right by b, or to the left by -b; by the width or more it leaves only sign bits
    # or zeros. One shifter does both: a left shift by n is a right shift by width - 1 - n of the
    # operand with width - 1 zeros below it, and that amount is b - 1 without its upper bits.
    log_width = (width - 1).bit_length()
    to_left, amount = Signal(name="to_left"), Signal(log_width, name="amount_simple")
    beyond, upper = Signal(name="beyond"), b[log_width:]
    wide = Signal(signed(2 * width - 1), name="wide")
    shifted = Signal(signed(width), name="shifted_simple")
    m.d.comb += [
        to_left.eq(b < 0),
        amount.eq(b[:log_width] - to_left),
        beyond.eq(Mux(to_left, ~upper.all() | (b[:log_width] == 0), upper.any())),
        wide.eq(Mux(to_left, Cat(Const(0, width - 1), a).as_signed(), a)),
        shifted.eq(Mux(beyond, Mux(to_left, 0, a[-1].replicate(width)), wide >> amount)),
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
