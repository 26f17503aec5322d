"""Descriptions of instructions, fields and fault causes; `hw.isa` defines the encodings."""

from __future__ import annotations

from amaranth_vta.hw.isa import (
    MOST_TAPS,
    MULTIPLIED_WIDTH,
    QUEUE_DEPTH,
    REQUANTIZE_PARAMETERS,
    ROUND_TWICE_BIT,
    SCALE_FRACTION,
    SCALE_WIDTH,
    SECOND_SHIFT_BIT,
    SECOND_SHIFT_WIDTH,
    TABLE_BYTES,
    TOKEN_LIMIT,
    WIDE_BIT,
    AluOp,
    Cause,
    Memory,
    Module,
    Opcode,
    Padding,
    memory_id,
)
from amaranth_vta.hw.timing import INSTRUCTIONS_IN_FLIGHT

ORDER = (
    "Fetch dispatches each instruction to one module: LOADs of INP and WGT to load, STOREs to "
    "store, all others, including unknown opcodes and memories, to compute. The effect is as if "
    "each module executed its instructions sequentially. Only tokens order instructions of "
    "different modules: four counters connect neighbours, in the order load, compute, store. An "
    "instruction pops all its tokens before it starts and pushes its own when its last effect is "
    f"visible. A counter holds {TOKEN_LIMIT:,}; a module that finds it full waits. A module's "
    f"queue holds {QUEUE_DEPTH} instructions until they retire."
)

ADDRESSES = (
    "DRAM is addressed in elements: byte address = base register of the memory + index × bytes of "
    "an element, without wrapping. Each memory may have a limit: a transfer that would access an "
    "element at or beyond that index is a `bus_error` before its first access; 0 disables the "
    "limit. ACC_8BIT uses the base and the limit of OUT, WGT_4BIT those of WGT, in whose limit an "
    "element counts as half of one. Scratchpads keep their contents between runs and are undefined "
    "after power-up."
)

INSTRUCTIONS: dict[Opcode, str] = {
    Opcode.LOAD: (
        "Writes consecutive elements of a scratchpad from `sram_base`: `y_pad_0` rows of padding, "
        "`y_size` rows, `y_pad_1` rows of padding. A row is `x_pad_0` padding elements, `x_size` "
        "elements from DRAM element `dram_base + y · x_stride`, `x_pad_1` padding elements. "
        "Padding is zero. With `x_size = 0` it only exchanges tokens, with `y_size = 0` it writes "
        "only rows of padding. Any stride is legal."
    ),
    Opcode.STORE: (
        "Reads consecutive accumulators from `sram_base` and writes their low bits, without "
        "saturation, to DRAM: `y_size` rows of `x_size` elements, `x_stride` apart, in order. "
        "Pads must be zero."
    ),
    Opcode.GEMM: (
        "For o < `iter_out`, i < `iter_in` and each micro-op from `uop_begin` up to `uop_end`: "
        "acc[dst] += inp[src] · wgt[wgt]ᵀ, or with `reset` acc[dst] = 0. Each index is the field "
        "of the micro-op + o · factor_out + i · factor_in. The effect is as if micro-ops ran "
        "sequentially; sums wrap."
    ),
    Opcode.FINISH: (
        "Ends the stream; legal only as its last instruction. Waits until load and store have "
        "retired all instructions. Remaining tokens are reported and cleared."
    ),
    Opcode.ALU: (
        "Loops as GEMM does: acc[dst] = operation(acc[dst], operand), lane by lane; the operand "
        "is `immediate` with `use_immediate`, else acc[src]. `reset` is ignored."
    ),
    Opcode.MULTIPLY: (
        "GEMM that overwrites: acc[dst] = inp[src] · wgt[wgt]ᵀ. Where a destination repeats, the "
        "last micro-op wins. `reset` must be 0."
    ),
    Opcode.DEPTHWISE: (
        "GEMM of several taps of each channel: acc[dst] += the products of inp[src], inp[src + 1] "
        "and so on, see DEPTHWISE below; with `overwrite` it sets acc[dst], and the last micro-op "
        "of a destination wins. Each of these inputs must be within the depth."
    ),
}

FIELDS: dict[str, str] = {
    "opcode": "opcode",
    "pop_prev": "pop a token of the previous neighbour before it starts",
    "pop_next": "pop a token of the next neighbour before it starts",
    "push_prev": "push a token to the previous neighbour when it retires",
    "push_next": "push a token to the next neighbour when it retires",
    "memory": "memory id",
    "sram_base": "first element of the scratchpad",
    "dram_base": "first element in DRAM",
    "reserved": "zero",
    "y_size": "rows",
    "x_size": "elements of a row",
    "x_stride": "elements from the start of a row to the next",
    "y_pad_0": "rows of padding before",
    "y_pad_1": "rows of padding after",
    "x_pad_0": "elements of padding before each row",
    "x_pad_1": "elements of padding after each row",
    "reset": "set accumulators to zero",
    "overwrite": "set accumulators instead of adding to them",
    "uop_begin": "first micro-op",
    "uop_end": "index after the last micro-op",
    "iter_out": "iterations of the outer loop",
    "iter_in": "iterations of the inner loop",
    "dst_factor_out": "increment of dst per outer iteration",
    "dst_factor_in": "increment of dst per inner iteration",
    "src_factor_out": "increment of src per outer iteration",
    "src_factor_in": "increment of src per inner iteration",
    "wgt_factor_out": "increment of wgt per outer iteration",
    "wgt_factor_in": "increment of wgt per inner iteration",
    "alu_opcode": "operation",
    "use_immediate": "the operand is the immediate",
    "immediate": "operand, signed; of MULTIPLY_ADD the index of an accumulator, unsigned",
    "independent": "does not wait for the other unit (OVERLAP)",
    "dst": "destination accumulator",
    "src": "input; for ALU an accumulator",
    "wgt": "weight; unused by ALU",
}

MEMORIES: dict[Memory | Padding, str] = {
    Memory.UOP: "micro-ops",
    Memory.WGT: "weights, one row per output channel",
    Memory.INP: "inputs",
    Memory.ACC: "accumulators",
    Memory.OUT: "the low bits of accumulators, as STORE writes them",
    Memory.ACC_8BIT: "accumulators, from sign-extended elements as wide as OUT",
    Memory.WGT_4BIT: "in a LOAD: weights, from sign-extended elements of 4 bits (WGT_4BIT)",
    Padding.LOAD: "the padding value of load (PAD_VALUE)",
    Padding.COMPUTE: "the padding value of compute (PAD_VALUE)",
}

ALU_OPS: dict[AluOp, str] = {
    AluOp.MIN: "the smaller, signed",
    AluOp.MAX: "the larger, signed",
    AluOp.ADD: "the sum, which wraps",
    AluOp.SHR: (
        "arithmetic right shift by the operand, left shift if it is negative; shifts by the "
        "width or more result in all sign bits, or 0"
    ),
    AluOp.MUL: "the low bits of the product",
    AluOp.REQUANTIZE: "see REQUANTIZE below",
    AluOp.LOOKUP: "see LOOKUP below",
    AluOp.MULTIPLY_ADD: "see MULTIPLY_ADD below",
}

MODULES: dict[Module, str] = {
    Module.LOAD: "LOADs of INP and WGT",
    Module.COMPUTE: "everything else, unknown opcodes and memories included",
    Module.STORE: "STOREs",
    Module.FETCH: "reads the stream",
}

CONTAINMENT = (
    "Of several faults, the one of the earliest instruction in the stream is reported. A module "
    "that faults pushes no tokens and starts nothing more, and all of its units stop: none of its "
    "later instructions changes memory or scratchpads. A refused write is known only from memory's "
    "response; words of later STOREs that were on the bus before it have been written, and later "
    "words are sent without strobes (except two that were registered). After a fault only the "
    "writes of retired instructions are defined."
)

CAUSES: dict[Cause, str] = {
    Cause.ILLEGAL_INSTRUCTION: (
        "an unknown opcode, memory or ALU operation, a token flag without a neighbour, or a set "
        "bit outside all fields; detected before tokens are popped"
    ),
    Cause.INDEX_OUT_OF_RANGE: "an index past the depth of a scratchpad",
    Cause.BUS_ERROR: (
        "memory answers with an error; or a transfer would exceed the limit of its memory or the "
        "addressable range (`LOG_DRAM_SIZE`), and is not started"
    ),
    Cause.TOKEN_OVERFLOW: (
        "the machine is stuck, and a module waits for room for a token; up to "
        f"{INSTRUCTIONS_IN_FLIGHT - 1} of its later instructions were in flight and may have "
        "executed"
    ),
    Cause.BAD_STREAM: (
        "a FINISH that is not last, a last instruction that is not FINISH, an empty stream, or "
        "an address that is not a multiple of an instruction"
    ),
    Cause.DEADLOCK: "all modules wait for each other, and nothing is in flight",
    Cause.TIMEOUT: "memory did not answer in time",
}

EXTENSIONS: dict[str, str] = {
    "overwrite": "The opcode MULTIPLY.",
    "overlap": (
        "The field `independent` of GEMM, MULTIPLY and ALU. Without it a GEMM instruction waits "
        "for all older ALU instructions, and vice versa. With it, the instruction claims that it "
        "touches no accumulator written by such an older instruction in flight, and writes none "
        "that such an instruction reads; then the two overlap. The functional model checks the "
        "claim. Accumulators are in two banks by the top bit of their index; two instructions in "
        "one bank alternate."
    ),
    "requantize": (
        f"The ALU operation REQUANTIZE; {REQUANTIZE_PARAMETERS} consecutive accumulators from "
        "acc[src] hold the parameters of each lane, and `use_immediate` must be 0. The first is a "
        "bias. The second has the lower and the third the upper bits of an unsigned "
        f"number of {SCALE_WIDTH} bits, the scale times 2^{SCALE_FRACTION}. The fourth has, from "
        "bit 0 up, the bytes zero_point, low and high, signed, and at bit "
        f"{WIDE_BIT} the flag `wide`. Other bits are ignored without ROUND_TWICE. With "
        "t = acc[dst] + bias, wrapping, the result is clip(rint(float32(t · scale)) + zero_point, "
        "low, high): the product is exact, the two roundings are half to even. Without `wide`, a t "
        f"that exceeds {MULTIPLIED_WIDTH} bits saturates to low or high. With it, t is first "
        f"divided by 2^{32 - MULTIPLIED_WIDTH}, rounded down, and the last bit of the quotient is "
        "set if there is a remainder. The result equals ONNX Runtime's, "
        "clip(rint(float32(float32(t) · scale)) + zero_point, low, high), if t and the scale have "
        "24 significant bits."
    ),
    "pad_value": (
        f"A LOAD of memory {Padding.LOAD.value} sets the padding value of INP and WGT, one of "
        f"memory {Padding.COMPUTE.value} that of ACC: the low bits of `dram_base`, as wide as a "
        "scalar of the scratchpad. All its other fields except the token flags must be 0. Both "
        "values are zero when a run starts."
    ),
    "lookup": (
        f"The ALU operation LOOKUP; consecutive accumulators from acc[src] hold a table of "
        f"{TABLE_BYTES} bytes, in memory order, and `use_immediate` must be 0. A table takes "
        f"as many elements as {TABLE_BYTES} bytes fill, or the beginning of one larger "
        "element. Each accumulator v of acc[dst] becomes entry v mod "
        f"{TABLE_BYTES} of the table, sign-extended: entry 0 is for 0, entry {TABLE_BYTES - 1} for "
        "-1."
    ),
    "forward": (
        f"A STORE of memory {Memory.INP.value}. Its fields have the meaning of a LOAD of INP, "
        "including padding, but its rows are the low bits of accumulators instead of DRAM: bits 15 "
        "to 0 of `dram_base` are the first accumulator, `x_stride` counts accumulators from row to "
        "row, and each padding scalar is the low bits of bits 31 to 16. Inputs written and "
        "accumulators read must be within their depths. An input element is as wide as a result "
        "element; bases and limits have no effect."
    ),
    "depthwise": (
        f"The opcode DEPTHWISE. A micro-op takes T taps, {MOST_TAPS} or, where BLOCK_IN is 4, 2. "
        "Outputs, and channels of inputs, are in pairs: column 2t + i of the weights, for t < T, "
        "is for channel i of the pair in inp[src + t]. So output j, in each row of the tiles, is "
        "the sum over t < T and i < 2 of inp[src + t][(2⌊j/2⌋ + i) mod BLOCK_IN] · "
        "wgt[wgt][j][2t + i], and, over the columns k that remain, of inp[src][k] · wgt[wgt][j][k],"
        " as in GEMM. For a channel by itself the weights of the other one are 0, and for a row of "
        "T taps so are the weights that remain."
    ),
    "multiply_add": (
        "The ALU operation MULTIPLY_ADD: the low bits of acc[dst] = acc[dst] · acc[F] + acc[src], "
        "lane by lane. F is `immediate` as an unsigned number, the same for all "
        "micro-ops, and `use_immediate` must be 0. Unless there are no micro-ops, an F past the "
        "depth is an `index_out_of_range`. An instruction may read what it has written itself as "
        "acc[src], but must not write acc[F]."
    ),
    "wgt_4bit": (
        f"A LOAD of memory {memory_id(Memory.WGT_4BIT)}, which otherwise cannot be loaded: weights "
        "of 4 bits in DRAM, sign-extended to the 8 of the scratchpad. The scalars of an element "
        "are in the order of WGT, two per byte, the first in the low half. `dram_base` and "
        "`x_stride` count elements of half of WGT's bytes. Padding is that of WGT."
    ),
    "round_twice": (
        f"The flag `round_twice` of REQUANTIZE, bit {ROUND_TWICE_BIT} of the fourth parameter, and "
        f"the number e in the {SECOND_SHIFT_WIDTH} bits from bit {SECOND_SHIFT_BIT} up. With the "
        "flag the product is rounded once: the result is clip(⌊t · scale + 1/2 + s⌋ + zero_point, "
        "low, high), where s is 0 if e is 0, otherwise 2^-(e + 1) with the sign of t; 0 counts as "
        "positive. With scale = m · 2^-(31 + e) this equals the two roundings of TensorFlow Lite's "
        "reference kernels for the multiplier m of 31 bits and a right shift by e: "
        "`RoundingDivideByPOT(SaturatingRoundingDoublingHighMul(t, m), e)`. For e up to "
        f"{SCALE_FRACTION - 31} the scale holds all bits of m."
    ),
}
