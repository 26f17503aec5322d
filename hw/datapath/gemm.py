"""The GEMM core: dot products of an input tile with a weight tile, and their accumulation."""

from itertools import product
from pathlib import Path
from typing import Any

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
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config, TileMemory
from amaranth_vta.hw.fabric.buffer import ReadPortSignature, WritePortSignature, geometry
from amaranth_vta.hw.fabric.groups import TOGETHER, ClockGroups
from amaranth_vta.hw.timing import DOT_PRODUCT_LATENCY, is_small

from .sequencer import IndexedUop

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


class DotProducts(wiring.Component):
    """``sums[b][j] = sum over k of inp[b][k] * wgt[j][k], less 1``, one pair of tiles per cycle.

    Timing: tiles presented in one cycle give their sums `latency` cycles later: products are
    registered, then the sums of two of them, then the sums themselves; in a machine for a small
    FPGA (`is_small`) the tiles before all these. In the cycle after ``clear`` all sums are 0, less
    1.

    One multiplication makes the products of one input x with the weights v and w of two outputs,
    where n is the bits of a product and h = 2^(bits of a weight - 1), since ``w + h`` is not
    negative and a plain concatenation makes the factor::

        (v * 2^n + w + h) * x  =  (v * x) * 2^n + w * x + h * x

    Two such are added, and the h * x of both, which all outputs share, is subtracted. Then each
    half is the sum of two products, at most 2^(n - 1) and more than -2^(n - 1): with an offset of
    2^(n - 1) - 1, no half borrows from the other or overflows. A DSP slice of an FPGA holds the
    multiplier, its register, and an adder, so that only sums of four products and more are made of
    logic; and no number has more than 32 bits, so that they simulate quickly.

    With the carries of their adders, p such halves add up to p * 2^(n - 1) - 1 more than the sum of
    products: a power of two, taken off by inverting one bit, less the 1 that ``sums`` lack.
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
        pairs = range(0, config.block_in, 2)
        inp, wgt = self._tiles(m)
        for b in range(config.batch):
            shared = []
            for k in pairs:
                inputs = inp[b][k] + inp[b][k + 1]
                rest = Signal(2 * half, name=f"shared_b{b}_i{k}", reset_less=True)
                m.d.sync += rest.eq((offset << half) + offset - (inputs << config.wgt_width - 1))
                shared.append(rest)
            for j in range(0, config.block_out, 2):
                lower, upper = [], []
                for k, rest in zip(pairs, shared, strict=True):
                    name = f"b{b}_o{j}_i{k}"
                    products = [self._product(m, inp, wgt, (b, j, k + place)) for place in range(2)]
                    both = Signal(2 * half, name=f"both_{name}", reset_less=True)
                    # Each DSP slice adds its product to a sum. Sums are as wide as their terms: the
                    # upper bits do not matter, and more than 32 bits take a simulator twice the
                    # time.
                    first = Signal(2 * half, name=f"first_{name}")
                    m.d.comb += first.eq(rest + products[0].as_unsigned())
                    m.d.sync += both.eq(first + products[1].as_unsigned())
                    lower.append(both[:half])
                    upper.append(both[half:])
                for place, terms in enumerate((lower, upper)):
                    total = sum_and_carries(m, terms, f"tree_b{b}_o{j + place}")
                    self._register(m, (b, j + place), Cat(total[:-1], ~total[-1]))
        return m

    def _tiles(self, m: Module) -> tuple[Any, Any]:
        """The factors: the tiles, or in a machine for a small FPGA registers of them."""
        if not is_small(self._config):
            return self.inp, self.wgt
        inp = Signal.like(self.inp, name="inp_tile", reset_less=True)
        wgt = Signal.like(self.wgt, name="wgt_tile", reset_less=True)
        m.d.sync += [inp.eq(self.inp), wgt.eq(self.wgt)]
        return inp, wgt

    def _register(self, m: Module, place: tuple[int, int], total: Value) -> None:
        """Makes ``total`` the sum of an output, whose row and column ``place`` is."""
        b, j = place
        with m.If(self.clear):
            m.d.sync += self.sums[b][j].eq(-self.less)
        with m.Else():
            m.d.sync += self.sums[b][j].eq(total)

    def _product(self, m: Module, inp: Any, wgt: Any, place: tuple[int, int, int]) -> Signal:
        """The product of input k of row b and the weights of outputs j and j + 1, where ``place``
        is b, j and k."""
        config = self._config
        half = config.inp_width + config.wgt_width
        b, j, k = place
        lower, upper = wgt[j][k], wgt[j + 1][k]
        weights = Signal(signed(half + config.wgt_width), name=f"weights_b{b}_o{j}_i{k}")
        both = Signal(signed(2 * half), name=f"product_b{b}_o{j}_i{k}", reset_less=True)
        m.d.comb += weights.eq(Cat(lower[:-1], ~lower[-1], Const(0, config.inp_width), upper))
        m.d.sync += both.eq(weights * inp[b][k])
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
        inp, wgt = self._tiles(m)
        for b, j in product(range(config.batch), range(config.block_out)):
            products = []
            for k in range(config.block_in):
                name = f"product_b{b}_o{j}_i{k}"
                products.append(Signal(signed(width), name=name, reset_less=True))
                m.d.sync += products[-1].eq(inp[b][k] * wgt[j][k])
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
        inp, wgt = self._tiles(m)
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
            i_inp=Value.cast(inp),
            i_wgt=Value.cast(wgt),
            o_less_one=Value.cast(self.sums),
        )
        return m


def multiplies_singly(config: Config) -> bool:
    """Whether each product of GEMM takes a multiplication: in small machines, unless factors of two
    products fit the multipliers of a small FPGA."""
    return is_small(config) and config.inp_width + 2 * config.wgt_width > SMALL_FACTOR_WIDTH


class GemmContext(data.Struct):
    """What a GEMM instruction says besides its loops."""

    reset: 1
    overwrite: 1


class GemmUnit(wiring.Component):
    """Executes micro-ops: ``acc[dst] += inp[src] . wgt[wgt]``, without the addition when it
    overwrites, or ``acc[dst] = 0`` on reset.

    Timing: one micro-op per cycle, whatever accumulators they name. An item taken in cycle t reads
    its tiles in t, reads its accumulator `DotProducts.latency` cycles later and writes it in the
    cycle after; the accumulators' read port forwards what is being written, so the next micro-op
    sees that value although it reads in the same cycle.

    Ports
    -----
    i : micro-ops from the sequencer
    inp, wgt : read ports of the scratchpads
    acc_read, acc_write : ports of the accumulators; whole elements are written
    denied : the other unit uses the bank that holds ``dst``: the item is not taken
    busy_banks : per half of the accumulators, whether a write to it is in flight
    done : high for a cycle when an instruction's last write has been made
    error : with ``done``: a micro-op named an index past the depth; nothing was or will be
        written from that micro-op on
    """

    def __init__(self, config: Config, groups: ClockGroups = TOGETHER) -> None:
        self._config = config
        self._groups = groups
        self.operands = gemm_operands(config)
        super().__init__(
            {
                "i": In(stream.Signature(IndexedUop(self.operands, GemmContext))),
                "inp": Out(ReadPortSignature(config.inp.element_bits, config.inp.depth, 1)),
                "wgt": Out(ReadPortSignature(config.wgt.element_bits, config.wgt.depth, 1)),
                "acc_read": Out(acc_read_port(config)),
                "acc_write": Out(acc_write_port(config)),
                "denied": In(1),
                "busy_banks": Out(2),
                "done": Out(1),
                "error": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        dot_products = self._dot_products()
        m.submodules.dot_products = self._groups.member("products", dot_products)

        stopped = Signal()
        item = self.i.payload
        would_work, works, taken = Signal(), Signal(), Signal()
        m.d.comb += [
            would_work.eq(item.enable & ~item.error & ~stopped),
            self.i.ready.eq(~would_work | ~self.denied),
            taken.eq(self.i.valid & self.i.ready),
            works.eq(taken & would_work),
            self.inp.enable.eq(works & ~item.context.reset),
            self.inp.index.eq(item.indices.src),
            self.wgt.enable.eq(self.inp.enable),
            self.wgt.index.eq(item.indices.wgt),
            Value.cast(dot_products.inp).eq(self.inp.data[0]),
            Value.cast(dot_products.wgt).eq(self.wgt.data[0]),
        ]
        with m.If(taken & item.error):
            m.d.sync += stopped.eq(1)

        stage = GemmStage(self._config.acc.index_width)
        entering = Signal(stage)
        m.d.comb += [
            entering.write.eq(works),
            entering.reset.eq(item.context.reset),
            entering.adds.eq(~item.context.reset & ~item.context.overwrite),
            entering.dst.eq(item.indices.dst),
            entering.done.eq(taken & (item.last | item.error) & ~stopped),
            entering.error.eq(item.error),
        ]
        # One cycle for the scratchpads, then the dot products'.
        stages = [entering]
        for number in range(1 + dot_products.latency + 1):
            following = Signal(stage, name=f"stage_{number}")
            m.d.sync += following.eq(stages[-1])
            stages.append(following)
        reading, writing = stages[dot_products.latency], stages[dot_products.latency + 1]

        m.d.comb += [
            dot_products.clear.eq(reading.reset),
            self.acc_read.enable.eq(reading.write & reading.adds),
            self.acc_read.index.eq(reading.dst),
            self.acc_write.enable.eq(writing.write),
            self.acc_write.lanes.eq(~0),
            self.acc_write.index.eq(writing.dst),
            self.done.eq(stages[-1].done),
            self.error.eq(stages[-1].error),
        ]
        m.d.comb += self.busy_banks.eq(busy_banks(stages[1:-1]))
        multiplying = stages[1 : 1 + dot_products.latency]
        self._groups.activate(m, "products", Cat(stage.write for stage in multiplying).any())
        tile = tile_layout(self._config.acc)
        kept, written = (data.View(tile, port.data[0]) for port in (self.acc_read, self.acc_write))
        for b in range(self._config.batch):
            for j in range(self._config.block_out):
                addend = Mux(writing.adds, kept[b][j], 0)
                # Two ones make a carry.
                one, other = Cat(dot_products.less, dot_products.sums[b][j]), Cat(1, addend)
                m.d.comb += written[b][j].eq((one.as_signed() + other.as_signed())[1:])
        return m

    def _dot_products(self) -> DotProducts:
        if self._groups.apart:
            return LoopedDotProducts(self._config)
        return (SingleDotProducts if multiplies_singly(self._config) else DotProducts)(self._config)


class GemmStage(data.StructLayout):
    """Control that follows a micro-op down the pipeline."""

    def __init__(self, index_width: int) -> None:
        super().__init__(
            {"write": 1, "reset": 1, "adds": 1, "dst": index_width, "done": 1, "error": 1}
        )


def busy_banks(stages: list[Any]) -> Value:
    """Per half of the accumulators: whether one of ``stages`` writes to it."""
    return Cat(
        Cat(stage.write & (stage.dst[-1] == bank) for stage in stages).any() for bank in range(2)
    )


def acc_read_port(config: Config) -> ReadPortSignature:
    """The port through which a unit reads one accumulator element per cycle."""
    return ReadPortSignature(config.acc.element_bits, config.acc.depth, 1)


def acc_write_port(config: Config) -> WritePortSignature:
    """The port through which a unit writes one accumulator element per cycle."""
    lanes = geometry(config, isa.Memory.ACC).lanes
    return WritePortSignature(config.acc.element_bits, config.acc.depth, 1, lanes)


def gemm_operands(config: Config) -> dict[str, int]:
    """Index width of each operand of a GEMM micro-op."""
    return {
        "dst": config.acc.index_width,
        "src": config.inp.index_width,
        "wgt": config.wgt.index_width,
    }
