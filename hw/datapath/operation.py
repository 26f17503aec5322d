"""The operations of the tensor ALU on one pair of scalars."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from amaranth_vta.hw.isa import AluOp

_ALWAYS = Const(1)


def compares(operation: Value) -> Value:
    """Whether ``operation`` is MIN or MAX."""
    return (operation == AluOp.MIN) | (operation == AluOp.MAX)


def sum_or_extreme(m: Module, operation: Value, a: Value, b: Value) -> Signal:
    """MIN, MAX or ADD of two signed scalars of one width, combinational, of one adder.

    For MIN and MAX all bits of ``b`` are inverted: then the sum is the difference less 1, which is
    negative exactly if the first operand is not the larger one.
    """
    total, takes_first = Signal(len(a) + 1, name="total"), Signal(name="takes_first")
    result = Signal(len(a), name="sum_or_extreme")
    m.d.comb += [total.eq(a + b), takes_first.eq(total[-1] ^ (operation == AluOp.MAX))]
    with m.Switch(operation):
        with m.Case(AluOp.MIN, AluOp.MAX):
            m.d.comb += result.eq(Mux(takes_first, a, ~b))
        with m.Default():
            m.d.comb += result.eq(total)
    return result


def power_of_two(m: Module, exponent: Value, enable: Value = _ALWAYS) -> Value:
    """2 ** ``exponent`` if ``enable``, else 0; ``exponent`` has three bits or more."""
    octets = Signal(1 << len(exponent) - 3, name="octets")
    m.d.comb += octets.eq(Mux(enable, Const(1) << exponent[3:], 0))
    return Cat(octet & (exponent[:3] == bit) for octet in octets for bit in range(8))
