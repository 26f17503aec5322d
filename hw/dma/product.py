"""Products of instruction fields."""

from itertools import zip_longest

from amaranth.hdl import Const, Module, Mux, Signal, Value

# Up to this depth products are built from adders: a small FPGA has few multipliers.
MAX_DEPTH_IN_LOGIC = 1024


def product_of(m: Module, name: str, a: Value, b: Value, depth: int) -> Value:
    """Product of two unsigned numbers in a machine whose deepest scratchpad has ``depth`` elements:
    by a DSP slice, or by adders in a small machine.
    """
    return sum_of_shifted(m, name, a, b) if depth <= MAX_DEPTH_IN_LOGIC else a * b


def sum_of_shifted(m: Module, name: str, a: Value, b: Value) -> Value:
    """Product of two unsigned numbers by adders."""
    terms: list[Value] = [Mux(a[place], b, 0) << place for place in range(len(a))]
    while len(terms) > 1:
        sums: list[Value] = []
        for low, high in zip_longest(terms[::2], terms[1::2], fillvalue=Const(0)):
            total = low + high
            # Kept, or Yosys would build one compressor tree: on ECP5, 9 × 16 bits take 675 LUTs and
            # 26 bits of adders instead of 145 and 146.
            node = Signal(len(total), name=f"{name}_{len(terms)}_{len(sums)}", attrs={"keep": 1})
            m.d.comb += node.eq(total)
            sums.append(node)
        terms = sums
    return terms[0]
