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
from amaranth_vta.hw.microarchitecture import Microarchitecture, paired_weights_width
from amaranth_vta.hw.tiles import TileMemory
from amaranth_vta.hw.timing import DOT_PRODUCT_LATENCY

# Products added in one chain of DSP slices per cycle.
_CHAINED = 4


def tile_layout(memory: TileMemory) -> data.ArrayLayout:
    """An element of ``memory`` as rows of signed scalars."""
    return data.ArrayLayout(
        data.ArrayLayout(signed(memory.scalar_width), memory.columns), memory.rows
    )


def sum_and_carries(m: Module, terms: list[Any], carries: list[Any], name: str) -> Any:
    """Sum of ``terms``, unsigned, and of one bit of ``carries`` per addition of two terms: the
    carry input of an adder is free, while adding a bit separately takes another adder.

    Each level is one bit wider than its predecessor.
    """
    level, carry = 0, iter(carries)
    while len(terms) > 1:
        sums = []
        for position in range(0, len(terms), 2):
            total = (Cat(1, terms[position]) + Cat(next(carry), terms[position + 1]))[1:]
            node = Signal(len(total), name=f"{name}_{level}_{position // 2}")
            m.d.comb += node.eq(total)
            sums.append(node)
        terms = sums
        level += 1
    return terms[0]


class Factors(NamedTuple):
    """Operands of dot products: ``inp`` and ``wgt``, and with DEPTHWISE the ``further`` input tiles
    and whether inputs are ``tapped``.
    """

    inp: Any
    wgt: Any
    further: Any
    tapped: Any


class _Chain(NamedTuple):
    """Sums of the products of a chain for two outputs: ``upper`` exceeds the second output's sum by
    the carry from ``lower``, its top bit.
    """

    lower: Value
    upper: Value


class DotProducts(wiring.Component):
    """``sums[b][j] + carries[b][j] = sum over k of inp[b][k] * wgt[j][k]``, one pair of tiles per
    cycle.

    Timing: tiles presented in one cycle produce their sums `latency` cycles later. Products are
    registered, then sums of four products, then the sums themselves; with
    `Microarchitecture.tile_registers` also the tiles. In the cycle after ``clear`` all sums and
    carries add up to 0.

    One multiplication computes the products of one input x with the weights v and w of two outputs,
    where n is the width of a product::

        (v * 2^n + w) * x  =  (v * x) * 2^n + w * x

    Four of these are added in a chain of DSP slices, each of which contains the adder of two
    weights, a multiplier, its register, and an adder; only sums of eight and more products use
    logic. Each half then is a sum of four products, at most 2^n and more than -2^n. With an offset
    of 2^n - 1 it is in the range from 0 to 2^(n + 1) - 1, so the lower half may carry 1 into the
    upper one. The affected bit equals the carry plus the upper half's last bit, which is known: the
    last bit of a sum of products is the parity of the ANDed last bits of the factors. The carry is
    subtracted in the free carry inputs of the adders after the chains, except for one, which
    ``carries`` passes to the accumulators' adder.

    Including these carry inputs, p / 4 such halves exceed the sum of p products by
    p * 2^(n - 2) - 1: a power of two, subtracted by inverting one bit, less the 1 in ``carries``.

    With DEPTHWISE, ``further`` tiles follow ``inp``. While ``tapped``, inputs 2t and 2t + 1 of each
    pair of outputs are its own two channels of tile t (`_input`).
    """

    def __init__(self, config: Config, choices: Microarchitecture | None = None) -> None:
        self._config = config
        self._tile_registers = (choices or Microarchitecture.of(config)).tile_registers
        self.latency = DOT_PRODUCT_LATENCY + self._tile_registers
        # Only the sum of products of the lowest scalars needs the topmost bit.
        width = config.inp_width + config.wgt_width + config.log_block_in
        outputs = config.block_out

        def of_outputs(shape: Any) -> data.ArrayLayout:
            return data.ArrayLayout(data.ArrayLayout(shape, outputs), config.batch)

        super().__init__(
            {
                "inp": In(tile_layout(config.inp)),
                "wgt": In(tile_layout(config.wgt)),
                **(_further_ports(config) if config.depthwise else {}),
                "clear": In(1),
                "sums": Out(of_outputs(signed(width))),
                "carries": Out(of_outputs(1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config
        factors = self._factors(m)
        for b in range(config.batch):
            for j in range(0, config.block_out, 2):
                chains = [
                    self._chain(m, factors, (b, j, k)) for k in range(0, config.block_in, _CHAINED)
                ]
                carried = [chain.lower[-1] for chain in chains]
                ones = [Const(1, 1) for _ in chains]
                self._add(m, (b, j), [chain.lower for chain in chains], ones)
                self._add(m, (b, j + 1), [chain.upper for chain in chains], [~c for c in carried])
        return m

    def _chain(self, m: Module, factors: Factors, place: tuple[int, int, int]) -> _Chain:
        """Sum of the products of `_CHAINED` inputs from k on, where ``place`` is (b, j, k)."""
        half = self._config.inp_width + self._config.wgt_width
        b, j, k = place
        name = f"b{b}_o{j}_i{k}"
        offset = (1 << half) - 1
        # The upper half has one bit more than a product, plus one for the lower half's carry.
        width = 2 * half + 2
        total: Value = Const((offset << half) + offset, width)
        parities = []
        for number in range(k, k + _CHAINED):
            inp = self._input(m, factors, (b, j, number))
            lower, upper = factors.wgt[j][number], factors.wgt[j + 1][number]
            weights = Signal(
                signed(paired_weights_width(self._config)), name=f"weights_b{b}_o{j}_i{number}"
            )
            both = Signal(signed(2 * half), name=f"product_b{b}_o{j}_i{number}", reset_less=True)
            m.d.comb += weights.eq((upper << half) + lower)
            m.d.sync += both.eq(weights * inp)
            # A signal per sum, to which the next DSP slice adds its product.
            before, total = total, Signal(width, name=f"chain_b{b}_o{j}_i{number}")
            m.d.comb += total.eq(before + both)
            parities.append(upper[0] & inp[0])
        halves = Signal(width, name=f"halves_{name}", reset_less=True)
        parity, odd = (Signal(name=f"{kind}_{name}", reset_less=True) for kind in ("parity", "odd"))
        # The offset is odd too.
        m.d.sync += [halves.eq(total), parity.eq(Cat(parities).xor()), odd.eq(~parity)]
        carry = Signal(name=f"carry_{name}")
        m.d.comb += carry.eq(halves[half] ^ odd)
        return _Chain(Cat(halves[:half], carry), halves[half:])

    def _add(self, m: Module, place: tuple[int, int], terms: list[Any], carries: list[Any]) -> None:
        """Add ``terms`` and ``carries`` of the output at ``place`` (row, column) and subtract the
        offsets.
        """
        b, j = place
        total = sum_and_carries(m, terms, carries, f"tree_b{b}_o{j}")
        top = len(self.sums[b][j]) - 2
        signed_total = Cat(total[:top], ~total[top], ~total[top:].any()).as_signed()
        with m.If(self.clear):
            m.d.sync += [self.sums[b][j].eq(-1), self.carries[b][j].eq(1)]
        with m.Else():
            m.d.sync += [self.sums[b][j].eq(signed_total), self.carries[b][j].eq(carries[-1])]

    def _factors(self, m: Module) -> Factors:
        """The tiles, or their registers."""
        has_taps = bool(self._config.depthwise)
        further, tapped = (self.further, self.tapped) if has_taps else (None, None)
        factors = Factors(self.inp, self.wgt, further, tapped)
        if not self._tile_registers:
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
        """Input k of row b for outputs j and j + 1, where ``place`` is (b, j, k)."""
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


class SingleDotProducts(DotProducts):
    """Dot products without carries, with one multiplication per product: an ECP5 multiplies 18 by
    18 bits, too few for two products of 8 by 8 bits, and Yosys uses no adder behind the multiplier.

    Timing: that of `DotProducts`, with sums of two products instead of four.
    """

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
                name = product_name(b, j, k)
                products.append(Signal(signed(width), name=name, reset_less=True))
                m.d.sync += products[-1].eq(inputs[k] * factors.wgt[j][k])
            terms = []
            for k in range(0, config.block_in, 2):
                terms.append(Signal(signed(width + 1), name=f"both_b{b}_o{j}_i{k}"))
                m.d.sync += terms[-1].eq(products[k] + products[k + 1])
            while len(terms) > 1:
                sums = [one + other for one, other in zip(terms[::2], terms[1::2], strict=True)]
                # Kept, or Yosys would merge all into one compressor tree.
                terms = [
                    Signal(total.shape(), name=f"tree_b{b}_o{j}", attrs={"keep": 1})
                    for total in sums
                ]
                m.d.comb += [term.eq(total) for term, total in zip(terms, sums, strict=True)]
            with m.If(self.clear):
                m.d.sync += self.sums[b][j].eq(0)
            with m.Else():
                m.d.sync += self.sums[b][j].eq(terms[0])
        return m


class LoopedDotProducts(DotProducts):
    """Dot products without carries, as loops in the module `LOOPS`: for simulation, where they need
    only a third of the host instructions.

    Timing: that of `SingleDotProducts`.
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
            o_sums=Value.cast(self.sums),
        )
        return m


def product_name(b: int, j: int, k: int) -> str:
    """Register name of a product of `SingleDotProducts`, for row b, input k and output j; synthesis
    selects products by name.
    """
    return f"product_b{b}_o{j}_i{k}"


def _further_ports(config: Config) -> dict[str, Any]:
    tiles = data.ArrayLayout(tile_layout(config.inp), config.taps - 1)
    return {"further": In(tiles), "tapped": In(1)}
