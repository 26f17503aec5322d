"""Dot products of an input tile with a weight tile."""

from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from amaranth.hdl import (
    Cat,
    ClockSignal,
    Const,
    Instance,
    Module,
    Mux,
    Signal,
    Value,
    signed,
)
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.tiles import TileMemory
from amaranth_vta.hw.timing import DOT_PRODUCT_LATENCY, is_small

# Bits of a factor of a multiplier of an ECP5.
SMALL_FACTOR_WIDTH = 18


def tile_layout(memory: TileMemory) -> data.ArrayLayout:
    """An element of ``memory`` as rows of signed scalars."""
    return data.ArrayLayout(
        data.ArrayLayout(signed(memory.scalar_width), memory.columns), memory.rows
    )


def sum_and_carries(m: Module, terms: list[Any], name: str) -> Any:
    """The sum of ``terms``, unsigned, plus 1 per addition of two terms: the carry input of an adder
    is free, where adding a constant takes one more adder.

    Each level is one bit wider than the one before it.
    """
    level = 0
    while len(terms) > 1:
        sums = []
        for position in range(0, len(terms), 2):
            total = (Cat(1, terms[position]) + Cat(1, terms[position + 1]))[1:]
            node = Signal(len(total), name=f"{name}_{level}_{position // 2}")
            m.d.comb += node.eq(total)
            sums.append(node)
        terms = sums
        level += 1
    return terms[0]


class Factors(NamedTuple):
    """What dot products multiply: ``inp`` and ``wgt``, and with DEPTHWISE the tiles ``further``,
    and whether inputs are ``tapped``."""

    inp: Any
    wgt: Any
    further: Any
    tapped: Any


class DotProducts(wiring.Component):
    """``sums[b][j] = sum over k of inp[b][k] * wgt[j][k], less 1``, one pair of tiles per cycle.

    Timing: tiles presented in one cycle give their sums `latency` cycles later: products are
    registered, then the sums of two of them, then the sums themselves; in a machine for a small
    FPGA (`is_small`) the tiles before all these. In the cycle after ``clear`` all sums are 0, less
    1.

    One multiplication makes the products of one input x with the weights v and w of two outputs,
    where n is the bits of a product::

        (v * 2^n + w) * x  =  (v * x) * 2^n + w * x

    Two such are added. Then each half is the sum of two products, at most 2^(n - 1) and more than
    -2^(n - 1): with an offset of 2^(n - 1) - 1, no half borrows from the other or overflows. A DSP
    slice of an FPGA holds the adder of the weights, the multiplier, its register, and the adder
    behind it, so that only sums of four products and more are made of logic; and no number has more
    than 32 bits, so that they simulate quickly.

    With the carries of their adders, p such halves add up to p * 2^(n - 1) - 1 more than the sum of
    products: a power of two, taken off by inverting one bit, less the 1 that ``sums`` lack.

    With DEPTHWISE there are the tiles ``further``, those that follow ``inp``. While ``tapped``,
    inputs 2t and 2t + 1 of each pair of outputs are its own two channels of tile t (`_input`).
    """

    # What ``sums`` are less than the sums of products.
    less = 1

    def __init__(self, config: Config) -> None:
        self._config = config
        self.latency = DOT_PRODUCT_LATENCY + is_small(config)
        width = config.inp_width + config.wgt_width + config.log_block_in - 1
        super().__init__(
            {
                "inp": In(tile_layout(config.inp)),
                "wgt": In(tile_layout(config.wgt)),
                **(_further_ports(config) if config.depthwise else {}),
                "clear": In(1),
                "sums": Out(
                    data.ArrayLayout(
                        data.ArrayLayout(signed(width), config.block_out), config.batch
                    )
                ),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config
        half = config.inp_width + config.wgt_width
        offset = (1 << half - 1) - 1
        offsets = Const((offset << half) + offset, 2 * half)
        factors = self._factors(m)
        for b in range(config.batch):
            for j in range(0, config.block_out, 2):
                lower, upper = [], []
                for k in range(0, config.block_in, 2):
                    name = f"b{b}_o{j}_i{k}"
                    products = [self._product(m, factors, (b, j, k + place)) for place in range(2)]
                    both = Signal(2 * half, name=f"both_{name}", reset_less=True)
                    # Each DSP slice adds its product to a sum. Sums are as wide as their terms: the
                    # upper bits do not matter, and more than 32 bits take a simulator twice the
                    # time.
                    first = Signal(2 * half, name=f"first_{name}")
                    m.d.comb += first.eq(offsets + products[0].as_unsigned())
                    m.d.sync += both.eq(first + products[1].as_unsigned())
                    lower.append(both[:half])
                    upper.append(both[half:])
                for place, terms in enumerate((lower, upper)):
                    total = sum_and_carries(m, terms, f"tree_b{b}_o{j + place}")
                    self._register(m, (b, j + place), Cat(total[:-1], ~total[-1]))
        return m

    def _factors(self, m: Module) -> Factors:
        """The tiles, or in a machine for a small FPGA registers of them."""
        has_taps = bool(self._config.depthwise)
        further, tapped = (self.further, self.tapped) if has_taps else (None, None)
        factors = Factors(self.inp, self.wgt, further, tapped)
        if not is_small(self._config):
            return factors
        names = ("inp_tile", "wgt_tile", "further_tiles", "tapped_tile")
        kept = [
            None if item is None else Signal.like(item, name=name, reset_less=True)
            for name, item in zip(names, factors, strict=True)
        ]
        m.d.sync += [
            register.eq(item)
            for register, item in zip(kept, factors, strict=True)
            if register is not None
        ]
        return Factors(*kept)

    def _input(self, m: Module, factors: Factors, place: tuple[int, int, int]) -> Value:
        """Input k of row b for outputs j and j + 1, where ``place`` is b, j and k."""
        b, j, k = place
        inp = factors.inp
        tap = k // 2
        if factors.tapped is None or tap >= self._config.taps:
            return inp[b][k]
        tile = factors.further[tap - 1] if tap else inp
        chosen = Signal.like(inp[b][k], name=f"input_b{b}_o{j}_i{k}")
        m.d.comb += chosen.eq(
            Mux(factors.tapped, tile[b][(j + k % 2) % self._config.block_in], inp[b][k])
        )
        return chosen

    def _register(self, m: Module, place: tuple[int, int], total: Value) -> None:
        """Makes ``total`` the sum of an output, whose row and column ``place`` is."""
        b, j = place
        with m.If(self.clear):
            m.d.sync += self.sums[b][j].eq(-self.less)
        with m.Else():
            m.d.sync += self.sums[b][j].eq(total)

    def _product(self, m: Module, factors: Factors, place: tuple[int, int, int]) -> Signal:
        """The product of input k of row b and the weights of outputs j and j + 1, where ``place``
        is b, j and k."""
        half = self._config.inp_width + self._config.wgt_width
        b, j, k = place
        lower, upper = factors.wgt[j][k], factors.wgt[j + 1][k]
        weights = Signal(signed(_factor_width(self._config)), name=f"weights_b{b}_o{j}_i{k}")
        both = Signal(signed(2 * half), name=f"product_b{b}_o{j}_i{k}", reset_less=True)
        m.d.comb += weights.eq((upper << half) + lower)
        m.d.sync += both.eq(weights * self._input(m, factors, place))
        return both


class SingleDotProducts(DotProducts):
    """The same, less nothing, with a multiplication for each product: an ECP5 multiplies 18 bits by
    18, too few for two products of 8 bits by 8, and has no adder behind the multiplier that Yosys
    uses.

    Timing: that of `DotProducts`.
    """

    less = 0

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config
        width = config.inp_width + config.wgt_width
        factors = self._factors(m)
        for b, j in product(range(config.batch), range(config.block_out)):
            if j % 2 == 0:
                inputs = [self._input(m, factors, (b, j, k)) for k in range(config.block_in)]
            products = []
            for k in range(config.block_in):
                name = f"product_b{b}_o{j}_i{k}"
                products.append(Signal(signed(width), name=name, reset_less=True))
                m.d.sync += products[-1].eq(inputs[k] * factors.wgt[j][k])
            terms = []
            for k in range(0, config.block_in, 2):
                terms.append(Signal(signed(width + 1), name=f"both_b{b}_o{j}_i{k}"))
                m.d.sync += terms[-1].eq(products[k] + products[k + 1])
            while len(terms) > 1:
                sums = [one + other for one, other in zip(terms[::2], terms[1::2], strict=True)]
                # Kept, or Yosys makes one sum of all, of compressors.
                terms = [
                    Signal(total.shape(), name=f"tree_b{b}_o{j}", attrs={"keep": 1})
                    for total in sums
                ]
                m.d.comb += [term.eq(total) for term, total in zip(terms, sums, strict=True)]
            self._register(m, (b, j), terms[0])
        return m


class LoopedDotProducts(DotProducts):
    """The same registers, written as loops in the module `LOOPS`: for simulation, where they take a
    third of the host's instructions.

    Timing: that of `DotProducts`.
    """

    LOOPS = Path(__file__).with_name("dot_products.sv")

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config
        inp, wgt, further, tapped = self._factors(m)
        taps = {} if further is None else {"p_TAPS": config.taps}
        m.submodules.loops = Instance(
            "dot_products",
            p_BATCH=config.batch,
            p_BLOCK_IN=config.block_in,
            p_BLOCK_OUT=config.block_out,
            p_INP_WIDTH=config.inp_width,
            p_WGT_WIDTH=config.wgt_width,
            p_SUM_WIDTH=len(Value.cast(self.sums[0][0])),
            i_clk=ClockSignal(),
            i_clear=self.clear,
            **taps,
            i_inp=Value.cast(inp) if further is None else Cat(inp, further),
            i_tapped=Const(0, 1) if tapped is None else tapped,
            i_wgt=Value.cast(wgt),
            o_less_one=Value.cast(self.sums),
        )
        return m


def multiplies_singly(config: Config) -> bool:
    """Whether each product of GEMM takes a multiplication: in small machines, unless factors of two
    products fit the multipliers of a small FPGA."""
    return is_small(config) and _factor_width(config) > SMALL_FACTOR_WIDTH


def _factor_width(config: Config) -> int:
    """Bits of the weights of two outputs in one factor."""
    return config.inp_width + 2 * config.wgt_width + 1


def _further_ports(config: Config) -> dict[str, Any]:
    tiles = data.ArrayLayout(tile_layout(config.inp), config.taps - 1)
    return {"further": In(tiles), "tapped": In(1)}
