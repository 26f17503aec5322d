"""The instruction set one scalar at a time, in Python integers.

This defines the effects of LOAD, STORE, GEMM and ALU, to be read together with docs/isa.md. It
shares no code with the models checked against it: the NumPy model
(`amaranth_vta.sim.model.execution`), and through it the compiled model and the RTL. Instructions
are legal and their indices and addresses in range; `amaranth_vta.sim.model.machine` defines faults,
tokens and the order between modules."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import floor

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import AluOp, Memory

# The scratchpad that a LOAD or STORE of each memory accesses; accumulators for all others.
_SCRATCHPADS = {Memory.UOP: "uop", Memory.INP: "inp", Memory.WGT: "wgt"}


class ScalarMachine:
    """Scratchpads as lists of elements, each a flat list of scalars, and ``memory`` as bytes.

    ``scratchpads`` has "uop", "inp", "wgt" and "acc"; scalars are signed, micro-ops plain words.
    Both arguments are changed in place. Padding values are zero at first, as at the start of a run.
    """

    def __init__(
        self, config: Config, memory: bytearray, scratchpads: dict[str, list[list[int]]]
    ) -> None:
        self.config = config
        self.memory = memory
        self.scratchpads = scratchpads
        self.padding = dict.fromkeys(isa.Padding, 0)

    def execute(self, instruction: isa.Instruction) -> None:
        match instruction:
            case isa.SetPadding():
                self.padding[isa.Padding(instruction.memory)] = instruction.value
            case isa.Load():
                self._load(instruction)
            case isa.Store():
                self._store(instruction)
            case isa.Forward():
                self._forward(instruction)
            case isa.Gemm():
                self._gemm(instruction)
            case isa.Alu():
                self._alu(instruction)

    def _load(self, load: isa.Load) -> None:
        if load.x_size == 0:
            return
        memory = Memory(load.memory)
        target = self.scratchpads[_SCRATCHPADS.get(isa.filled_by(memory), "acc")]
        source = self.config.memory(memory)
        scalars = source.rows * source.columns
        padding = [self._padding_scalar(memory)] * scalars
        at = load.sram_base
        for y in range(-load.y_pad_0, load.y_size + load.y_pad_1):
            for x in range(-load.x_pad_0, load.x_size + load.x_pad_1):
                if 0 <= y < load.y_size and 0 <= x < load.x_size:
                    address = (load.dram_base + y * load.x_stride + x) * source.element_bytes
                    target[at] = [
                        self._scalar(address, number, source.scalar_width, memory is not Memory.UOP)
                        for number in range(scalars)
                    ]
                else:
                    target[at] = list(padding)
                at += 1

    def _scalar(self, address: int, number: int, width: int, signed: bool) -> int:
        """The ``number``-th scalar, of ``width`` bits, of the element at byte ``address``."""
        value = 0
        for position in range(width):
            bit = number * width + position
            value |= (self.memory[address + bit // 8] >> bit % 8 & 1) << position
        return as_signed(value, width) if signed else value

    def _padding_scalar(self, memory: Memory) -> int:
        """The module's padding value, truncated to the scalar width; zero for micro-ops."""
        padding = isa.padding_of(memory)
        if padding is None:
            return 0
        width = self.config.memory(isa.filled_by(memory)).scalar_width
        return as_signed(self.padding[padding], width)

    def _store(self, store: isa.Store) -> None:
        width, size = self.config.out_width, self.config.out.element_bytes
        at = store.sram_base
        for y in range(store.y_size):
            for x in range(store.x_size):
                bits = 0
                for number, value in enumerate(self.scratchpads["acc"][at]):
                    bits |= value % (1 << width) << number * width
                address = (store.dram_base + y * store.x_stride + x) * size
                self.memory[address : address + size] = bits.to_bytes(size, "little")
                at += 1

    def _forward(self, forward: isa.Forward) -> None:
        if forward.x_size == 0:
            return
        out, inp = self.config.out_width, self.config.inp_width
        scalars = self.config.inp.rows * self.config.inp.columns
        at = forward.sram_base
        for y in range(-forward.y_pad_0, forward.y_size + forward.y_pad_1):
            for x in range(-forward.x_pad_0, forward.x_size + forward.x_pad_1):
                element = [as_signed(forward.dram_base >> 16, inp)] * scalars
                if 0 <= y < forward.y_size and 0 <= x < forward.x_size:
                    source = forward.dram_base % (1 << 16) + y * forward.x_stride + x
                    bits = 0
                    for number, value in enumerate(self.scratchpads["acc"][source]):
                        bits |= value % (1 << out) << number * out
                    element = [as_signed(bits >> n * inp, inp) for n in range(scalars)]
                self.scratchpads["inp"][at] = element
                at += 1

    def _gemm(self, gemm: isa.Gemm) -> None:
        batch, k, n = self.config.batch, self.config.block_in, self.config.block_out
        acc, inp, wgt = (self.scratchpads[name] for name in ("acc", "inp", "wgt"))
        for o, i, (dst, src, weight) in self._uops(gemm):
            dst += o * gemm.dst_factor_out + i * gemm.dst_factor_in
            src += o * gemm.src_factor_out + i * gemm.src_factor_in
            weight += o * gemm.wgt_factor_out + i * gemm.wgt_factor_in
            for b in range(batch):
                for c in range(n):
                    if gemm.reset:
                        acc[dst][b * n + c] = 0
                        continue
                    total = 0 if gemm.overwrites else acc[dst][b * n + c]
                    for r in range(k):
                        element, lane = src, r
                        if isinstance(gemm, isa.Depthwise) and r < 2 * self.config.taps:
                            element, lane = src + r // 2, (c // 2 * 2 + r % 2) % k
                        total += inp[element][b * k + lane] * wgt[weight][c * k + r]
                    acc[dst][b * n + c] = as_signed(total, self.config.acc_width)

    def _alu(self, alu: isa.Alu) -> None:
        acc = self.scratchpads["acc"]
        for o, i, (dst, src, _) in self._uops(alu):
            dst += o * alu.dst_factor_out + i * alu.dst_factor_in
            src += o * alu.src_factor_out + i * alu.src_factor_in
            if alu.alu_opcode == AluOp.LOOKUP:
                table = self._table(src)
                acc[dst] = [as_signed(table[value % 256], 8) for value in acc[dst]]
                continue
            if alu.alu_opcode == AluOp.REQUANTIZE:
                parameters = acc[src : src + isa.REQUANTIZE_PARAMETERS]
                twice = bool(self.config.round_twice)
                lanes = zip(acc[dst], *parameters, strict=True)
                acc[dst] = [requantize(*lane, rounds_twice=twice) for lane in lanes]
                continue
            if alu.factor is not None:
                factors = acc[alu.factor]
                acc[dst] = [
                    as_signed(a * factor + b, self.config.acc_width)
                    for a, factor, b in zip(acc[dst], factors, acc[src], strict=True)
                ]
                continue
            second = [alu.immediate] * len(acc[dst]) if alu.use_immediate else list(acc[src])
            acc[dst] = [
                as_signed(self._operation(AluOp(alu.alu_opcode), a, b), self.config.acc_width)
                for a, b in zip(acc[dst], second, strict=True)
            ]

    def _table(self, src: int) -> bytes:
        """The 256 bytes from accumulator element ``src`` on, in memory layout."""
        width = self.config.acc_width
        elements = self.scratchpads["acc"][src : src + self.config.table_elements]
        scalars = [value for element in elements for value in element]
        return b"".join((value % (1 << width)).to_bytes(width // 8, "little") for value in scalars)

    def _uops(
        self, instruction: isa.Gemm | isa.Alu
    ) -> Iterator[tuple[int, int, tuple[int, int, int]]]:
        """Outer and inner iteration, and fields dst, src and wgt, of each micro-op in order."""
        a, i, w = (
            (memory.depth - 1).bit_length()
            for memory in (self.config.acc, self.config.inp, self.config.wgt)
        )
        for outer in range(instruction.iter_out):
            for inner in range(instruction.iter_in):
                for number in range(instruction.uop_begin, instruction.uop_end):
                    word = self.scratchpads["uop"][number][0]
                    src = word >> a & (1 << max(a, i)) - 1
                    wgt = word >> a + max(a, i) & (1 << w) - 1
                    yield outer, inner, (word & (1 << a) - 1, src, wgt)

    def _operation(self, operation: AluOp, a: int, b: int) -> int:
        match operation:
            case AluOp.MIN:
                return min(a, b)
            case AluOp.MAX:
                return max(a, b)
            case AluOp.ADD:
                return a + b
            case AluOp.MUL:
                return a * b
            case AluOp.SHR:
                if abs(b) >= self.config.acc_width:
                    return (-1 if a < 0 else 0) if b > 0 else 0
                return a >> b if b >= 0 else a << -b
            case AluOp.REQUANTIZE | AluOp.LOOKUP | AluOp.MULTIPLY_ADD:
                raise ValueError(f"{operation.name} has more than two operands")


def requantize(
    acc: int,
    bias: int,
    low_scale: int,
    high_scale: int,
    bounds: int,
    *,
    rounds_twice: bool = False,
) -> int:
    """min(max(rint(float32((acc + bias) · scale)) + zero_point, low), high), one scalar.

    The definition of requantization. The NumPy code of the model (`arithmetic.requantized`) and of
    the compiler (`te.requantized`) is checked against it, the compiled model and the RTL against
    `arithmetic.requantized`, and all of them against float32 arithmetic where that applies.

    The parameters are the words of `isa.REQUANTIZE_PARAMETERS`; the scale is in units of 2^-43.
    Both roundings are half to even, of exact fractions. If the machine ``rounds_twice``, with the
    flag ``round_twice`` the rounded value is ⌊(acc + bias) · scale + 1/2 ± 2^-(e + 1)⌋ instead,
    with the sign of the sum; without the last term if e is 0.
    """
    total = as_signed(acc + bias, 32)
    if bounds >> isa.WIDE_BIT & 1:
        total = total >> 7 | (total % 128 > 0)
    scale = low_scale % (1 << 32) | high_scale % (1 << 17) << 32
    product = Fraction(total * scale, 1 << isa.SCALE_FRACTION)
    quotient = round(_to_24_bits(product))
    if rounds_twice and bounds >> isa.ROUND_TWICE_BIT & 1:
        shift = bounds >> isa.SECOND_SHIFT_BIT & (1 << isa.SECOND_SHIFT_WIDTH) - 1
        second = Fraction(-1 if total < 0 else 1, 2 << shift) if shift else 0
        quotient = floor(product + Fraction(1, 2) + second)
    if not -1 << 24 <= total < 1 << 24:
        quotient = 1000 if total > 0 else -1000
    zero_point, low, high = (as_signed(bounds >> shift, 8) for shift in (0, 8, 16))
    return min(max(quotient + zero_point, low), high)


def as_signed(value: int, width: int) -> int:
    """The low ``width`` bits of ``value``, sign-extended."""
    value %= 1 << width
    return value - (1 << width) if value >> width - 1 else value


def _to_24_bits(value: Fraction) -> Fraction:
    """``value`` rounded half to even to 24 significant bits, with unlimited exponent."""
    if not value:
        return value
    unit = Fraction(1)
    while abs(value) / unit >= 1 << 24:
        unit *= 2
    while abs(value) / unit < 1 << 23:
        unit /= 2
    return round(value / unit) * unit
