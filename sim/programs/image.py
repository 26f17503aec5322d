"""Program images: a memory with an instruction stream, and the expected result.

An image is saved as an ``.npz`` file, the format of the conformance vectors. Its keys: ``config``
(the JSON text of a `Config`), ``dram`` (uint8), ``insn_addr`` and ``insn_count`` (integers), and
optionally ``expected`` (``dram`` after the run), ``origin`` (byte address of ``dram[0]``, default
0; there is no memory below it), ``limits`` and ``bases`` (contents of the limit and base registers,
default 0, in the order of `isa.LIMITED`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.errors import VtaError
from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config, ConfigError
from amaranth_vta.sim.memory import instruction_words
from amaranth_vta.sw.runtime.array_file import (
    ArrayFile,
    DamagedFile,
    FileLimitError,
    write_arrays,
)
from amaranth_vta.sw.runtime.device import Limits, end_in_dram, limit_of

_KEYS = ("config", "dram", "insn_addr", "insn_count")
_OPTIONAL = ("expected", "origin", "limits", "bases")


class ImageError(VtaError, ValueError):
    """A file that is not a program image, or an image whose parts contradict each other."""


@dataclass(frozen=True)
class ProgramImage:
    """A program and its memory for the machine of ``config``.

    ``dram`` is a 1-D uint8 array that begins at address ``origin``, a multiple of 64; ``expected``,
    if given, has the same shape. ``limits`` are those of `Device.set_limits`, and ``bases`` those
    of `RegisterDriver.set_bases`: multiples of the element size of their memory and of a bus word.
    The stream of ``insn_count`` instructions starts at address ``insn_addr``, a multiple of 16, and
    lies within the memory. Raises `ImageError` naming the condition that is violated.
    """

    config: Config
    dram: npt.NDArray[np.uint8]
    insn_addr: int
    insn_count: int
    expected: npt.NDArray[np.uint8] | None = None
    origin: int = 0
    limits: Limits = field(default_factory=dict)
    bases: Mapping[isa.Memory, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, array in (("dram", self.dram), ("expected", self.expected)):
            if array is not None and (array.dtype != np.uint8 or array.ndim != 1):
                raise ImageError(
                    f"{name} is a {array.ndim}-dimensional array of {array.dtype}, not a "
                    "1-dimensional one of uint8"
                )
        if self.expected is not None and self.expected.size != self.dram.size:
            raise ImageError(
                f"expected has {self.expected.size} bytes, dram has {self.dram.size}: they must "
                "have the same size"
            )
        if self.insn_addr < 0 or self.insn_addr % isa.INSTRUCTION_BYTES:
            raise ImageError(
                f"insn_addr = {self.insn_addr:#x} is not aligned to an instruction "
                f"({isa.INSTRUCTION_BYTES} bytes)"
            )
        if self.insn_count < 0:
            raise ImageError(f"insn_count = {self.insn_count} is negative")
        if not 0 <= self.origin < 1 << 47 or self.origin % 64:
            raise ImageError(f"origin = {self.origin:#x} is not a multiple of 64 below 2^47")
        for memory, base in self.bases.items():
            size = max(self.config.memory(memory).element_bytes, self.config.bus_bytes)
            if base % size:
                raise ImageError(
                    f"the base of {memory.name}, {base:#x}, is not a multiple of {size} bytes, an "
                    "element or a bus word"
                )
        end = self.insn_addr + self.insn_count * isa.INSTRUCTION_BYTES
        if self.insn_addr < self.origin or end > self.origin + self.dram.size:
            begins = f" from {self.origin:#x} on" if self.origin else ""
            raise ImageError(
                f"the program lies outside the memory: {self.insn_count} instructions from byte "
                f"{self.insn_addr:#x} end at {end:#x}, dram has {self.dram.size:#x} bytes{begins}"
            )

    @classmethod
    def assemble(
        cls,
        config: Config,
        dram: npt.NDArray[np.uint8],
        insn_addr: int,
        instructions: Sequence[isa.Instruction | int],
        origin: int = 0,
    ) -> ProgramImage:
        """An image with ``instructions``, or their 128 bits, written into a copy of ``dram``.

        Raises `ImageError` if they do not fit there, `EncodingError` if one cannot be encoded.
        """
        encode = isa.instruction_set(config).encode
        bits = [
            encode(item) if isinstance(item, isa.Instruction) else item for item in instructions
        ]
        stream = b"".join(item.to_bytes(isa.INSTRUCTION_BYTES, "little") for item in bits)
        image = cls(config, dram.copy(), insn_addr, len(instructions), origin=origin)
        first = insn_addr - origin
        image.dram[first : first + len(stream)] = np.frombuffer(stream, np.uint8)
        return image

    @classmethod
    def load(cls, path: str | Path) -> ProgramImage:
        """Load an image; raises `ImageError` with the path and the problem."""
        arrays = _arrays(Path(path))
        try:
            return cls(
                config=_config(arrays["config"]),
                dram=arrays["dram"],
                insn_addr=_whole_number("insn_addr", arrays["insn_addr"]),
                insn_count=_whole_number("insn_count", arrays["insn_count"]),
                expected=arrays.get("expected"),
                origin=_whole_number("origin", arrays["origin"]) if "origin" in arrays else 0,
                limits=_registers("limits", arrays, isa.DRAM_BASE_WIDTH),
                bases=_registers("bases", arrays, 63),
            )
        except ImageError as error:
            raise ImageError(f"{path}: {error}") from None

    def save(self, path: str | Path) -> None:
        """Writes the file, compressed; raises `ImageError` if it cannot be written."""
        arrays: dict[str, Any] = {
            "config": np.array(self.config.to_json()),
            "dram": self.dram,
            "insn_addr": np.int64(self.insn_addr),
            "insn_count": np.int64(self.insn_count),
        }
        if self.expected is not None:
            arrays["expected"] = self.expected
        if self.origin:
            arrays["origin"] = np.int64(self.origin)
        if self.limits:
            values = [limit_of(self.limits, memory) for memory in isa.LIMITED]
            arrays["limits"] = np.array(values, np.int64)
        if any(self.bases.values()):
            values = [self.bases.get(memory, 0) for memory in isa.LIMITED]
            arrays["bases"] = np.array(values, np.int64)
        try:
            with Path(path).open("wb") as file:
                write_arrays(file, arrays, compressed=True)
        except OSError as error:
            raise ImageError(f"{path} cannot be written: {error.strerror}") from None

    def instruction_bits(self) -> list[int]:
        """The stream in ``dram``: 128 bits per instruction."""
        return instruction_words(self.dram, self.insn_addr - self.origin, self.insn_count)


def limits_of(image: ProgramImage) -> Limits:
    """The tightest DRAM limits with which a program still runs: per memory, the index after the
    last element that its legal LOADs and STOREs access; 1 if there are none.
    """
    limits = dict.fromkeys(isa.LIMITED, 1)
    for bits in set(image.instruction_bits()):
        transfer = transfer_of(image.config, bits)
        if transfer is not None:
            moved = isa.Memory(transfer.memory)
            memory = isa.limited_as(moved)
            end = -(-end_in_dram(transfer) // isa.per_limited(moved))
            limits[memory] = max(limits[memory], end)
    return limits


def transfer_of(config: Config, bits: int) -> isa.Load | isa.Store | None:
    """The instruction if it is a legal LOAD or STORE of at least one element, else None."""
    instructions = isa.instruction_set(config)
    transfer = instructions.decode(bits)
    if not isinstance(transfer, isa.Load | isa.Store) or instructions.problem(bits):
        return None
    return transfer if transfer.x_size and transfer.y_size else None


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise ImageError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        if file.read(4) not in (b"PK\x03\x04", b"PK\x05\x06"):
            raise ImageError(f"{path} is not a program image: it is not an .npz file")
        file.seek(0)
        try:
            archive = ArrayFile(file)
            missing = [key for key in _KEYS if key not in archive.names]
            if missing:
                raise ImageError(
                    f"{path} is not a program image: it has no {' and no '.join(missing)}"
                )
            wanted = [key for key in (*_KEYS, *_OPTIONAL) if key in archive.names]
            return {key: archive.read(key) for key in wanted}
        except FileLimitError as error:
            raise FileLimitError(f"{path}: {error}") from None
        except DamagedFile as error:
            raise ImageError(f"{path} is truncated or damaged: {error}") from None


def _config(array: npt.NDArray[Any]) -> Config:
    if array.dtype.kind != "U" or array.ndim != 0:
        raise ImageError(f"config is an array of {array.dtype}, not a single JSON text")
    try:
        return Config.from_json(str(array))
    except ConfigError as error:
        raise ImageError(f"config: {error}") from None


def _registers(
    name: str, arrays: Mapping[str, npt.NDArray[Any]], width: int
) -> dict[isa.Memory, int]:
    """Register contents stored under ``name`` in the file, of equal widths; empty if absent."""
    if name not in arrays:
        return {}
    array = arrays[name]
    whole = array.dtype.kind in "iu" and array.shape == (len(isa.LIMITED),)
    if not whole or array.min() < 0 or int(array.max()) >> width:
        names = ", ".join(memory.name for memory in isa.LIMITED)
        raise ImageError(f"{name} is not one number of {width} bits for each of {names}")
    return dict(zip(isa.LIMITED, array.tolist(), strict=True))


def _whole_number(name: str, array: npt.NDArray[Any]) -> int:
    if array.dtype.kind not in "iu" or array.ndim != 0:
        raise ImageError(
            f"{name} is a {array.ndim}-dimensional array of {array.dtype}, not one whole number"
        )
    return int(array)
