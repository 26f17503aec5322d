"""The tensor ALU: one vector operation a cycle on accumulators."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from . import isa
from .config import Config
from .gemm import tile_layout
from .sequencer import IndexedUop


class AluOp(enum.Enum, shape=3):
    """`isa.AluOp` as a hardware enumeration."""

    MIN = isa.AluOp.MIN
    MAX = isa.AluOp.MAX
    ADD = isa.AluOp.ADD
    SHR = isa.AluOp.SHR
    MUL = isa.AluOp.MUL


class AluLane(wiring.Component):
    """``result = operation(a, b)`` on one pair of scalars, wrapped to their width.

    Timing: combinational up to a register; the result is there in the next cycle.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        super().__init__(
            {
                "enable": In(1),
                "operation": In(AluOp),
                "a": In(signed(width)),
                "b": In(signed(width)),
                "result": Out(signed(width)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        width = self._width
        less = Signal()
        m.d.comb += less.eq(self.a < self.b)

        # A shift to the right by b, or to the left by -b; beyond the width nothing but sign bits
        # or zeros is left.
        magnitude = Signal(width)
        m.d.comb += magnitude.eq(Mux(self.b < 0, -self.b, self.b))
        log_width = (width - 1).bit_length()
        amount, beyond = Signal(log_width), Signal()
        m.d.comb += [amount.eq(magnitude), beyond.eq(magnitude[log_width:] != 0)]
        right, left, shifted = Signal(signed(width)), Signal(width), Signal(width)
        m.d.comb += [
            right.eq(self.a >> amount),
            left.eq(self.a.as_unsigned() << amount),
            shifted.eq(
                Mux(
                    self.b < 0,
                    Mux(beyond, 0, left),
                    Mux(beyond, self.a[-1].replicate(width), right),
                )
            ),
        ]

        simple = Signal(width)
        with m.Switch(self.operation):
            with m.Case(AluOp.MIN):
                m.d.comb += simple.eq(Mux(less, self.a, self.b))
            with m.Case(AluOp.MAX):
                m.d.comb += simple.eq(Mux(less, self.b, self.a))
            with m.Case(AluOp.SHR):
                m.d.comb += simple.eq(shifted)
            with m.Default():
                m.d.comb += simple.eq(self.a + self.b)

        # The product has a register of its own, so that it can be the multipliers' own.
        simple_result, product, is_product = Signal(width), Signal(width), Signal()
        with m.If(self.enable):
            m.d.sync += [
                simple_result.eq(simple),
                product.eq(self.a.as_unsigned() * self.b.as_unsigned()),
                is_product.eq(self.operation == AluOp.MUL),
            ]
        m.d.comb += self.result.eq(Mux(is_product, product, simple_result))
        return m


class AluContext(data.Struct):
    """What an ALU instruction says apart from its loops."""

    operation: AluOp
    use_immediate: 1
    immediate: signed(isa.IMMEDIATE_WIDTH)


class AluUnit(wiring.Component):
    """Executes micro-ops: ``acc[dst] = operation(acc[dst], immediate or acc[src])``.

    Timing: one micro-op a cycle. An item taken in cycle t reads its operands in t, computes in
    t + 1 and writes in t + 2; the read ports are transparent. Only a micro-op that reads what
    the one immediately before it writes is taken one cycle later.

    Ports
    -----
    i : micro-ops from the sequencer
    dst_read_*, src_read_* : two read ports of the accumulators
    write_* : their write port
    done, error : as in the GEMM unit
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self.operands = alu_operands(config)
        acc = tile_layout(config.acc)
        index = config.acc.index_width
        super().__init__(
            {
                "i": In(stream.Signature(IndexedUop(self.operands, AluContext))),
                "dst_read_enable": Out(1),
                "dst_read_index": Out(index),
                "dst_read_data": In(acc),
                "src_read_enable": Out(1),
                "src_read_index": Out(index),
                "src_read_data": In(acc),
                "write_enable": Out(1),
                "write_index": Out(index),
                "write_data": Out(acc),
                "busy": Out(1),
                "done": Out(1),
                "error": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        index_width = self._config.acc.index_width
        control = data.StructLayout(
            {"write": 1, "dst": index_width, "context": AluContext, "done": 1, "error": 1}
        )
        entering, computing, writing, finished = (
            Signal(control, name=name) for name in ("entering", "computing", "writing", "finished")
        )
        item = self.i.payload

        stopped, depends, works, taken = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            depends.eq(
                computing.write
                & (
                    (computing.dst == item.indices.dst)
                    | (~item.context.use_immediate & (computing.dst == item.indices.src))
                )
            ),
            self.i.ready.eq(~depends),
            taken.eq(self.i.valid & self.i.ready),
            works.eq(taken & item.enable & ~item.error & ~stopped),
            self.dst_read_enable.eq(works),
            self.dst_read_index.eq(item.indices.dst),
            self.src_read_enable.eq(works & ~item.context.use_immediate),
            self.src_read_index.eq(item.indices.src),
            entering.write.eq(works),
            entering.dst.eq(item.indices.dst),
            entering.context.eq(item.context),
            entering.done.eq(taken & (item.last | item.error) & ~stopped),
            entering.error.eq(item.error),
        ]
        with m.If(taken & item.error):
            m.d.sync += stopped.eq(1)
        m.d.sync += [computing.eq(entering), writing.eq(computing), finished.eq(writing)]

        for b in range(self._config.batch):
            for j in range(self._config.block_out):
                lane = AluLane(self._config.acc_width)
                m.submodules[f"lane_{b}_{j}"] = lane
                m.d.comb += [
                    lane.enable.eq(computing.write),
                    lane.operation.eq(computing.context.operation),
                    lane.a.eq(self.dst_read_data[b][j]),
                    lane.b.eq(
                        Mux(
                            computing.context.use_immediate,
                            computing.context.immediate,
                            self.src_read_data[b][j],
                        )
                    ),
                    self.write_data[b][j].eq(lane.result),
                ]
        m.d.comb += [
            self.write_enable.eq(writing.write),
            self.write_index.eq(writing.dst),
            self.done.eq(finished.done),
            self.error.eq(finished.error),
            self.busy.eq(
                self.i.valid
                | computing.write
                | computing.done
                | writing.write
                | writing.done
                | finished.done
            ),
        ]
        return m


def alu_operands(config: Config) -> dict[str, int]:
    """Index width of each operand of an ALU micro-op."""
    return {"dst": config.acc.index_width, "src": config.acc.index_width}
