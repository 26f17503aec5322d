"""The operations of the tensor ALU on one pair of scalars."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from amaranth_vta.hw.isa import AluOp

_ALWAYS = Const(1)


def compares(operation: Value) -> Value:
    """Whether ``operation`` is MIN or MAX."""
    return (operation == AluOp.MIN) | (operation == AluOp.MAX)


def power_of_two(m: Module, exponent: Value, enable: Value = _ALWAYS) -> Value:
    """2 ** ``exponent`` if ``enable``, else 0; ``exponent`` has three bits or more."""
    octets = Signal(1 << len(exponent) - 3, name="octets")
    m.d.comb += octets.eq(Mux(enable, Const(1) << exponent[3:], 0))
    return Cat(octet & (exponent[:3] == bit) for octet in octets for bit in range(8))
