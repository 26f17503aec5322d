"""Compiles a network and its C runtime to firmware for the processor of a board: `firmware`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol

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

from .elf import loaded_image

_SOURCE = Path(__file__).with_name("source")
_LINKER_SCRIPT = "firmware.ld"
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
    "-Wl,--gc-sections",
)
_OVERFLOW = re.compile(r"overflowed by (\d+) bytes")


class FirmwareError(VtaError, ValueError):
    """Firmware cannot be made for a network and a board; the message says why."""


@dataclass(frozen=True)
class Firmware:
    """Contents of the firmware's memory, in whole words, and the tensors that it receives and
    sends, in this order.
    """

    image: bytes
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]


class Target(Protocol):
    """What firmware depends on: the sizes of the memory that is shared with the machine and of the
    processor's own, in bytes, and the clock. A `Board` is one; ``title`` is for messages.
    """

    @property
    def title(self) -> str: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def firmware_bytes(self) -> int: ...
    @property
    def clock_hz(self) -> int: ...


def firmware(network: NetworkProgram, board: Target) -> Firmware:
    """Firmware that runs ``network`` on ``board`` for each input from the serial line.

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
    generated = {
        **export(network),
        "addresses.h": _addresses(board).encode(),
        _LINKER_SCRIPT: _linker_script(board).encode(),
        "network_tensors.h": _tensors(network).encode(),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in generated.items():
            (folder / file).write_bytes(content)
        image = loaded_image(_compiled(folder, board), protocol.FIRMWARE_BASE)
    return Firmware(image, network.inputs, network.outputs)


def _compiled(folder: Path, board: Target) -> bytes:
    """The executable, as ELF, of the fixed sources and the generated ones in ``folder``."""
    with explain_missing_extras():
        import ziglang
    zig = Path(str(ziglang.__file__)).with_name("zig")
    target = folder / "firmware.elf"
    command: Command = (
        *(zig, "cc", *_OPTIONS),
        *("-I", folder, "-I", _SOURCE),
        f"-Wl,-T,{folder / _LINKER_SCRIPT}",
        *("-o", target),
        *sorted([*_SOURCE.glob("*.S"), *_SOURCE.glob("*.c"), *folder.glob("*.c")]),
    )
    try:
        run_tool(command, "the firmware cannot be compiled")
    except ToolchainError as error:
        if (overflow := _OVERFLOW.search(str(error))) is None:
            raise
        raise FirmwareError(
            f"the firmware with this network takes {overflow[1]} bytes more than the "
            f"{board.firmware_bytes:,} bytes that {board.title} has for it"
        ) from None
    return target.read_bytes()


def _addresses(board: Target) -> str:
    """The header with the address map of ``board``."""
    values = {
        **{
            f"PERIPHERAL_{register.name}": parameters.PERIPHERAL_BASE + WORD_BYTES * register
            for register in Peripheral
        },
        "RECEIVED": parameters.RECEIVED,
        "MACHINE_BASE": protocol.MACHINE_BASE,
        "MACHINE_INTERRUPT": 1 << Interrupt.MACHINE,
        "BOARD_MEMORY_LIMIT": BoardRegister.MEMORY_LIMIT.address,
        "BOARD_MEMORY_BYTES": board.memory_bytes,
        "CLOCK_HZ": board.clock_hz,
    }
    return "".join(f"#define {name} {value:#x}u\n" for name, value in values.items())


def _linker_script(board: Target) -> str:
    """The linker script, whose first lines depend on ``board``."""
    region = f"ORIGIN = {protocol.FIRMWARE_BASE:#x}, LENGTH = {board.firmware_bytes:#x}"
    fixed = (_SOURCE / _LINKER_SCRIPT).read_text(encoding="utf-8")
    return f"MEMORY {{ firmware (rwx) : {region} }}\nstack_bytes = {_STACK_BYTES};\n{fixed}"


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
