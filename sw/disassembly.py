"""Disassembles instructions and micro-ops to text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

ReadMemory = Callable[[int, int], npt.NDArray[np.uint8]]
_UOP_BYTES = isa.UOP_WIDTH // 8


def listing(
    config: Config,
    words: Iterable[int],
    read_memory: ReadMemory | None = None,
    uop_buffer: Mapping[int, int] | None = None,
) -> Iterator[str]:
    """One line per instruction: index, module, operation, tokens, and the reason if it is illegal.

    With ``read_memory(address, size)``, which returns device memory at the start of the stream, the
    micro-ops of each GEMM and ALU instruction follow, one per line. ``uop_buffer`` is the known
    content of the micro-op buffer at the start of the stream: bits by index.
    """
    instructions = isa.instruction_set(config)
    uops = dict(uop_buffer or {})
    for index, bits in enumerate(words):
        instruction = instructions.decode(bits)
        module = isa.module_of(instruction).name.lower()
        problem = instructions.problem(bits)
        refused = f"; ILLEGAL: {problem}" if problem else ""
        yield f"{index:6}  {module:<7}  {instruction_text(instruction)}{refused}"
        if read_memory is None or problem:
            continue
        if isinstance(instruction, isa.Load) and instruction.memory == isa.Memory.UOP:
            # A LOAD that exceeds the buffer faults before it loads anything.
            if instruction.sram_base + instruction.elements <= config.uop.depth:
                uops |= _loaded_uops(instruction, read_memory)
        elif isinstance(instruction, isa.Gemm | isa.Alu):
            for at in range(instruction.uop_begin, instruction.uop_end):
                known = uops.get(at)
                text = (
                    "not loaded by this stream"
                    if known is None
                    else uop_text(config, instruction, instructions.decode_uop(known))
                )
                yield f"{'':17}uop[{at}]  {text}"


def instruction_text(instruction: isa.Instruction) -> str:
    """One line: the operation, its operands, then the tokens it pops and pushes."""
    match instruction:
        case isa.Load():
            text = f"LOAD {_memory_text(instruction)}"
        case isa.SetPadding():
            text = f"LOAD padding value {instruction.value} for {_padded_text(instruction.memory)}"
        case isa.Store():
            text = f"STORE {_memory_text(instruction)}"
        case isa.Forward():
            text = f"STORE {_forward_text(instruction)}"
        case isa.Gemm():
            reset = "reset " if instruction.reset else ""
            if isinstance(instruction, isa.Depthwise) and instruction.overwrite:
                reset = "overwrite "
            text = f"{instruction.opcode.name} {reset}{_loops_text(instruction)}"
        case isa.Alu():
            operand = f"immediate {instruction.immediate} " if instruction.use_immediate else ""
            if instruction.factor is not None:
                operand = f"by acc[{instruction.factor}] "
            name = isa.AluOp(instruction.alu_opcode).name
            text = f"ALU {name} {operand}{_loops_text(instruction)}"
        case isa.Unknown():
            text = f"opcode {instruction.number}, which is not in the instruction set"
        case _:
            text = instruction.opcode.name
    return text + _tokens_text(instruction)


def uop_text(config: Config, instruction: isa.Gemm | isa.Alu, uop: isa.Uop) -> str:
    """Effect of a micro-op of ``instruction`` in its first iteration."""
    target = f"acc[{uop.dst}]"
    if isinstance(instruction, isa.Gemm):
        if instruction.reset:
            return f"{target} = 0"
        sign = "=" if instruction.overwrites else "+="
        inputs = f"inp[{uop.src}]"
        if isinstance(instruction, isa.Depthwise):
            inputs = f"inp[{uop.src}:{uop.src + config.taps}]"
        return f"{target} {sign} {inputs} · wgt[{uop.wgt}]"
    if instruction.factor is not None:
        return f"{target} = {target} · acc[{instruction.factor}] + acc[{uop.src}]"
    operand = str(instruction.immediate) if instruction.use_immediate else f"acc[{uop.src}]"
    operation = isa.AluOp(instruction.alu_opcode)
    if operation in isa.extended_alu_ops(config.extensions):
        size = config.alu_sources(operation)
        operand = f"acc[{uop.src}:{uop.src + size}]"
    return f"{target} = {operation.name.lower()}({target}, {operand})"


def _memory_text(instruction: isa.Load | isa.Store) -> str:
    name = _memory_name(instruction.memory)
    if not instruction.elements:
        return f"{name} nothing"
    first = instruction.sram_base
    rows = f"{instruction.y_size} x {instruction.x_size} from {instruction.dram_base}"
    if instruction.y_size > 1:
        rows += f" stride {instruction.x_stride}"
    text = f"{name}[{first}:{first + instruction.elements}], memory {rows}"
    return text + _pads_text(instruction)


def _forward_text(instruction: isa.Forward) -> str:
    if not instruction.elements:
        return "INP nothing"
    first = instruction.sram_base
    text = (
        f"INP[{first}:{first + instruction.elements}], OUT {instruction.y_size} x "
        f"{instruction.x_size} from {instruction.source}"
    )
    if instruction.y_size > 1:
        text += f" stride {instruction.x_stride}"
    pads = _pads_text(instruction)
    return text + (f"{pads} value {instruction.padding}" if pads else "")


def _pads_text(instruction: isa.Load | isa.Store | isa.Forward) -> str:
    if instruction.y_pad_0 or instruction.y_pad_1 or instruction.x_pad_0 or instruction.x_pad_1:
        return (
            f", pad y {instruction.y_pad_0} {instruction.y_pad_1}"
            f" x {instruction.x_pad_0} {instruction.x_pad_1}"
        )
    return ""


def _padded_text(padding: int) -> str:
    memories = isa.transferred_memories(frozenset())
    padded = [memory.name for memory in memories if isa.padding_of(memory) == padding]
    return " and ".join(padded)


def _loops_text(instruction: isa.Gemm | isa.Alu) -> str:
    text = (
        f"uop[{instruction.uop_begin}:{instruction.uop_end}]"
        f" x {instruction.iter_out} x {instruction.iter_in}"
    )
    source = "inp" if isinstance(instruction, isa.Gemm) else "src"
    steps = [
        ("acc", instruction.dst_factor_out, instruction.dst_factor_in),
        (source, instruction.src_factor_out, instruction.src_factor_in),
    ]
    if isinstance(instruction, isa.Gemm):
        steps.append(("wgt", instruction.wgt_factor_out, instruction.wgt_factor_in))
    moving = [f"{name} +{outer} +{inner}" for name, outer, inner in steps if outer or inner]
    independent = ["independent"] if instruction.independent else []
    return ", ".join([text, *moving, *independent])


def _tokens_text(instruction: isa.Instruction) -> str:
    module = isa.module_of(instruction)
    neighbours = isa.neighbours(module)
    text = ""
    for verb, preposition in (("pop", "from"), ("push", "to")):
        partners = [
            neighbour.name.lower()
            for side, neighbour in neighbours.items()
            if getattr(instruction, f"{verb}_{side}")
        ]
        if partners:
            text += f"; {verb} {preposition} {' and '.join(partners)}"
    return text


def _memory_name(number: int) -> str:
    try:
        return isa.Memory(number).name
    except ValueError:
        return f"Memory {number}"


def _loaded_uops(load: isa.Load, read_memory: ReadMemory) -> dict[int, int]:
    """Micro-ops loaded by a LOAD UOP: bits by index of the micro-op buffer."""
    if not load.elements:
        return {}
    row = load.row_elements
    values = np.zeros((load.y_pad_0 + load.y_size + load.y_pad_1, row), np.uint32)
    for y in range(load.y_size):
        at = (load.dram_base + y * load.x_stride) * _UOP_BYTES
        data = read_memory(at, load.x_size * _UOP_BYTES).view("<u4")
        values[load.y_pad_0 + y, load.x_pad_0 : load.x_pad_0 + load.x_size] = data
    return dict(enumerate(values.ravel().tolist(), load.sram_base))
