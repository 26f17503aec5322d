"""Compiles a network and its C runtime to firmware for the processor of a board: `firmware`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

from amaranth_vta.errors import VtaError
from amaranth_vta.export.host_tensors import c_type, size_in_bytes
from amaranth_vta.export.network import export
from amaranth_vta.export.network_memory import NetworkMemory
from amaranth_vta.extras import explain_missing_extras
from amaranth_vta.hw.boards import protocol
from amaranth_vta.hw.boards.boards import BOARDS
from amaranth_vta.hw.boards.processor import parameters
from amaranth_vta.hw.boards.processor.parameters import Interrupt, Peripheral
from amaranth_vta.hw.boards.protocol import WORD_BYTES, BoardRegister
from amaranth_vta.sim.cache import ToolchainError
from amaranth_vta.sim.toolchain import Command, run_tool
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .elf import loaded_images

if TYPE_CHECKING:
    from amaranth_vta.serving.mlperf_tiny.tasks import TinyNetwork

_SOURCE = Path(__file__).with_name("source")
_LINKER_SCRIPT = "firmware.ld"
# The files with `main`.
_RAW, _MLPERF_TINY = "raw.c", "mlperf_tiny.c"
# Of the firmware's memory, at least.
_STACK_BYTES = 1024
_OPTIONS = (
    "-target",
    "riscv32-freestanding-none",
    "-mcpu=generic_rv32+m",  # the instructions of `hw.boards.processor.riscv_core.RiscvCore`
    "-std=c11",
    "-O2",
    "-s",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fno-sanitize=undefined",  # Zig enables UBSan by default
    "-ffunction-sections",
    "-fdata-sections",  # `_LINKER_SCRIPT` places the network's data by the names of their sections
    "-Wl,--gc-sections",
)
_OVERFLOW = re.compile(r"region '(\w+)': overflowed by (\d+) bytes")
# Boundary for the network's data in the shared memory.
_PAGE_BYTES = 4096


class FirmwareError(VtaError, ValueError):
    """Firmware cannot be made for a network and a board; the message says why."""


class _Overflow(Exception):
    """The ``memory`` of this name in the linker script is too small by ``count`` bytes."""

    def __init__(self, count: int, memory: str) -> None:
        super().__init__()
        self.count, self.memory = count, memory


@dataclass(frozen=True)
class Firmware:
    """Contents of the firmware's memory, in whole words, and the tensors that it receives and
    sends, in this order.

    ``data`` are the weights and instructions of the network if they do not fit into the firmware's
    memory. The firmware loads them from the flash memory, or, on a board without one, the host
    writes them to ``data_address`` before the firmware starts.
    """

    image: bytes
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    data: bytes = b""
    data_address: int = 0


class Target(Protocol):
    """What firmware depends on: the sizes of the memory that is shared with the machine and of the
    processor's own, in bytes, the clock, and the address of data in the flash memory, or 0 if the
    processor has none. A `Board` is one; ``title`` is for messages.
    """

    @property
    def title(self) -> str: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def firmware_bytes(self) -> int: ...
    @property
    def clock_hz(self) -> int: ...
    @property
    def flash_offset(self) -> int: ...


def firmware(network: NetworkProgram, board: Target, task: TinyNetwork | None = None) -> Firmware:
    """Firmware that runs ``network`` on ``board`` for each input from the serial line; with
    ``task``, it answers the runner of MLPerf Tiny.

    Data of a network that does not fit into the firmware's memory are in the shared memory, after
    the part that the network uses.

    Raises `FirmwareError` if the board has no room for a processor or the network no room on the
    board, `ExportError` for a network that cannot be exported, and `MissingExtra` without the
    compiler.
    """
    if not board.firmware_bytes:
        able = ", ".join(name for name, other in BOARDS.items() if other.firmware_bytes)
        raise FirmwareError(f"{board.title} has no processor; boards with one are {able}")
    needed = NetworkMemory(network).size
    if needed > board.memory_bytes:
        raise FirmwareError(
            f"the network needs {needed:,} bytes of the machine's memory, and {board.title} has "
            f"{board.memory_bytes:,}"
        )
    sources = _sources(network, task)
    own = range(protocol.FIRMWARE_BASE, protocol.FIRMWARE_BASE + board.firmware_bytes)
    try:
        (image,) = _linked(sources, board, {"firmware": own})
        return Firmware(image, network.inputs, network.outputs)
    except _Overflow:
        pass
    shared = range(parameters.SHARED_BASE, parameters.SHARED_BASE + board.memory_bytes)
    outside = shared[-(-needed // _PAGE_BYTES) * _PAGE_BYTES :]
    memories = {"firmware": own, "data": outside}
    try:
        _, data = _linked(sources, board, memories)
        # The checksum does not change the data.
        image, data = _linked(sources, board, memories, crc32(data))
    except _Overflow as error:
        what, takes, size, purpose = (
            ("firmware", "takes", board.firmware_bytes, "for it")
            if error.memory == "firmware"
            else ("data", "take", len(outside), "beside the memory of its layers")
        )
        raise FirmwareError(
            f"the {what} of this network {takes} {error.count:,} bytes more than the {size:,} "
            f"bytes that {board.title} has {purpose}"
        ) from None
    return Firmware(image, network.inputs, network.outputs, data, outside.start - shared.start)


def standalone_firmware(
    network: NetworkProgram, board: Target, task: TinyNetwork | None = None
) -> Firmware:
    """`firmware` for a board that gets nothing from a host.

    Also raises `FirmwareError` if the network needs a flash memory and the board has none.
    """
    made = firmware(network, board, task)
    if made.data and not board.flash_offset:
        able = ", ".join(name for name, other in BOARDS.items() if other.flash_offset)
        raise FirmwareError(
            f"the network's {len(made.data):,} bytes of data do not fit into the firmware's memory "
            f"of {board.title}, whose processor has no flash memory; boards with one are {able}"
        )
    return made


@dataclass(frozen=True)
class _Sources:
    """The fixed file with the function ``main``, and the ``generated`` files by name."""

    main: str
    generated: Mapping[str, bytes]


def _sources(network: NetworkProgram, task: TinyNetwork | None) -> _Sources:
    """The sources that depend on the network, and not on where the linker places it."""
    generated = {**export(network), "network_tensors.h": _tensors(network).encode()}
    if task is None:
        return _Sources(_RAW, generated)
    from .task import task_header

    return _Sources(_MLPERF_TINY, {**generated, "task.h": task_header(task, network).encode()})


def _linked(
    sources: _Sources, board: Target, memories: Mapping[str, range], checksum: int = 0
) -> list[bytes]:
    """The contents of ``memories``: of ``firmware``, and of ``data`` for the network's data if they
    are outside it. Their CRC-32 should be ``checksum``. Raises `_Overflow`.
    """
    generated = {
        **sources.generated,
        "addresses.h": _addresses(board, "data" in memories, checksum).encode(),
        _LINKER_SCRIPT: _linker_script(memories).encode(),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in generated.items():
            (folder / file).write_bytes(content)
        return loaded_images(_compiled(folder, sources.main), [*memories.values()])


def _compiled(folder: Path, main: str) -> bytes:
    """The executable, as ELF, of the fixed sources, with the function ``main`` of one of them, and
    the generated ones in ``folder``.
    """
    with explain_missing_extras():
        import ziglang
    zig = Path(str(ziglang.__file__)).with_name("zig")
    target = folder / "firmware.elf"
    command: Command = (
        *(zig, "cc", *_OPTIONS),
        *("-I", folder, "-I", _SOURCE),
        f"-Wl,-T,{folder / _LINKER_SCRIPT}",
        *("-o", target),
        *(_SOURCE / name for name in ("start.S", "board.c", main)),
        *sorted(folder.glob("*.c")),
    )
    try:
        run_tool(command, "the firmware cannot be compiled")
    except ToolchainError as error:
        if overflows := _OVERFLOW.findall(str(error)):
            raise _Overflow(max(int(count) for _, count in overflows), overflows[0][0]) from None
        raise
    return target.read_bytes()


def _addresses(board: Target, has_data: bool, checksum: int) -> str:
    """The header with the address map of ``board``, and whether the firmware ``has_data`` outside
    its memory, with their ``checksum``.
    """
    values = {
        **{
            f"PERIPHERAL_{register.name}": parameters.PERIPHERAL_BASE + WORD_BYTES * register
            for register in Peripheral
        },
        "RECEIVED": parameters.RECEIVED,
        "MACHINE_BASE": parameters.MACHINE_BASE,
        "MACHINE_INTERRUPT": 1 << Interrupt.MACHINE,
        "BOARD_MEMORY_LIMIT": parameters.BOARD_BASE + WORD_BYTES * BoardRegister.MEMORY_LIMIT,
        "BOARD_MEMORY_BYTES": board.memory_bytes,
        "CLOCK_HZ": board.clock_hz,
        "FLASH": parameters.FLASH_BASE,
        "FLASH_OFFSET": board.flash_offset,
        "HAS_DATA": has_data,
        "DATA_CHECKSUM": checksum,
    }
    return "".join(f"#define {name} {value:#x}u\n" for name, value in values.items())


def _linker_script(memories: Mapping[str, range]) -> str:
    """The linker script, whose first lines depend on ``memories``."""
    regions = "".join(
        f"    {name} (rwx) : ORIGIN = {memory.start:#x}, LENGTH = {len(memory):#x}\n"
        for name, memory in memories.items()
    )
    fixed = (_SOURCE / _LINKER_SCRIPT).read_text(encoding="utf-8")
    return (
        f"MEMORY\n{{\n{regions}}}\n"
        f'REGION_ALIAS("network", {[*memories][-1]})\nstack_bytes = {_STACK_BYTES};\n'
        f"board_memory = {parameters.SHARED_BASE:#x};\n{fixed}"
    )


def _tensors(network: NetworkProgram) -> str:
    """The header with the buffers of the network's inputs and outputs."""
    buffers, tables, arguments = [], [], []
    for kind, tensors in (("input", network.inputs), ("output", network.outputs)):
        names = [f"{kind}_{number}" for number in range(len(tensors))]
        sizes = [size_in_bytes(info) for info in tensors.values()]
        buffers += [
            f"static _Alignas(4) uint8_t {name}[{size}];\n"
            for name, size in zip(names, sizes, strict=True)
        ]
        rows = ", ".join(f"{{{name}, sizeof {name}}}" for name in names)
        tables.append(f"static const tensor {kind}s[] = {{{rows}}};\n")
        arguments += [f"(void *){name}" for name in names]
    name, scores = next(iter(network.outputs.items()))
    assert scores.shape is not None
    # Scores of the first image.
    count = prod(scores.shape[1:] or scores.shape)
    return f"""\
#include "network.h"

typedef struct {{
    uint8_t *bytes;
    uint32_t size;
}} tensor;

{"".join(buffers)}{"".join(tables)}
typedef {c_type(name, scores)} score;
#define SCORES {count}

static vta_result run(const vta_port *port)
{{
    return network_run(port, {", ".join(arguments)});
}}
"""
