"""Memory-mapped access to a machine next to this processor, as on a Zynq: `open_mapped`."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.boards.protocol import WORD_BYTES
from amaranth_vta.hw.registers import ADDRESS_WIDTH

from .transport import BoardError

PHYSICAL = "/dev/mem"
# Where the kernel describes the memory regions of UIO devices.
UIO_CLASS = "/sys/class/uio"
# Prefixes of the place of a machine.
KINDS = ("mem:", "uio:", "pynq:")
FORMS = (
    "mem:REGISTERS,MEMORY+BYTES, such as mem:0x43c00000,0x1c000000+0x4000000; uio:DEVICE, such as "
    "uio:/dev/uio0; and pynq:REGISTERS, such as pynq:0x43c00000"
)
_LINE_WORDS = 16
_REGISTER_BYTES = 1 << ADDRESS_WIDTH


class Words(Protocol):
    """Registers: 32-bit words by number; each access is one bus access."""

    def __getitem__(self, number: int, /) -> Any: ...
    def __setitem__(self, number: int, value: Any, /) -> None: ...


def _nothing() -> None:
    """No-op, for memory that is mapped uncached."""


@dataclass
class MappedTransport:
    """A `Transport` for ``registers`` and ``memory``, a 1-D array of 32-bit words that the machine
    sees from byte ``origin`` on.

    Only its LIMIT registers limit the machine, and only its registers tell its configuration.
    ``flush_cache`` and ``invalidate_cache`` implement `Transport.flush` and `invalidate`;
    ``release`` is called on close.
    """

    registers: Words
    memory: npt.NDArray[np.uint32]
    origin: int
    flush_cache: Callable[[], None] = _nothing
    invalidate_cache: Callable[[], None] = _nothing
    release: Callable[[], None] = _nothing

    limits_machine = False
    configuration: int | None = None

    def __post_init__(self) -> None:
        self.memory_bytes = self.memory.nbytes

    def read(self, address: int, count: int) -> bytes:
        return b"".join(self.memory[part].tobytes() for part in _parts(address, count))

    def write(self, address: int, data: bytes) -> None:
        words = np.frombuffer(data, "<u4")
        first = address // WORD_BYTES
        for part in _parts(address, words.size):
            # Copied first: the copy is 16-byte aligned, like the part.
            self.memory[part] = words[part.start - first : part.stop - first].copy()

    def fill(self, address: int, count: int) -> None:
        for part in _parts(address, count):
            self.memory[part] = 0

    def read_registers(self, address: int, count: int) -> list[int]:
        first = address // WORD_BYTES
        return [int(self.registers[number]) for number in range(first, first + count)]

    def write_registers(self, address: int, words: Sequence[int]) -> None:
        for number, word in enumerate(words, address // WORD_BYTES):
            self.registers[number] = word

    def limit(self, size: int) -> None:
        """No-op: `BoardDevice.set_limits` limits all transfers."""

    def flush(self) -> None:
        self.flush_cache()

    def invalidate(self) -> None:
        self.invalidate_cache()

    def close(self) -> None:
        self.release()


def open_mapped(place: str, memory_bytes: int) -> MappedTransport:
    """Open the machine at ``place``, in one of `FORMS`.

    ``mem:`` maps physical addresses through /dev/mem: the registers, and a region of memory that
    the kernel does not use. ``uio:`` is a UIO device with the registers as its first map and the
    memory as its second. ``pynq:`` takes ``memory_bytes`` from the allocator of the package pynq.
    Raises `BoardError` if the place does not exist, is not permitted, or has another form.
    """
    kind, _, rest = place.partition(":")
    if kind == "uio" and rest:
        return _open_uio(Path(rest))
    try:
        numbers = [int(part, 0) for part in rest.replace(",", "+").split("+")]
    except ValueError:
        numbers = []
    match kind, numbers:
        case "mem", [registers, memory, size]:
            return _open_physical(registers, memory, size)
        case "pynq", [registers]:
            return _open_pynq(registers, memory_bytes)
    raise BoardError(f"{place} does not locate a machine; the forms are {FORMS}")


def _parts(address: int, count: int) -> Iterator[slice]:
    """Split ``count`` words from byte ``address`` into one run of whole 64-byte lines, and single
    words before and after it.

    Uncached mapped memory is device memory on ARM, where each access must be aligned, including the
    16-byte accesses of the C library's copy functions.
    """
    first = address // WORD_BYTES
    end = first + count
    whole = -(-first // _LINE_WORDS) * _LINE_WORDS
    behind = max(whole, end // _LINE_WORDS * _LINE_WORDS)
    yield from (slice(at, at + 1) for at in range(first, min(whole, end)))
    if whole < behind:
        yield slice(whole, behind)
    yield from (slice(at, at + 1) for at in range(behind, end))


def _open_physical(registers: int, memory: int, size: int) -> MappedTransport:
    shown = map_words(PHYSICAL, registers, _REGISTER_BYTES)
    return MappedTransport(shown, map_words(PHYSICAL, memory, size), memory)


def _open_uio(path: Path) -> MappedTransport:
    maps = Path(UIO_CLASS, path.name, "maps")
    try:
        (_, registers), (origin, size) = (
            [int((maps / f"map{number}" / name).read_text(), 0) for name in ("addr", "size")]
            for number in range(2)
        )
    except (OSError, ValueError):
        raise BoardError(
            f"{path} is not a UIO device with two maps, registers and memory, in {maps}"
        ) from None
    # Map N of a UIO device is at an offset of N pages.
    shown = map_words(str(path), 0, registers)
    return MappedTransport(shown, map_words(str(path), mmap.PAGESIZE, size), origin)


def _open_pynq(registers: int, memory_bytes: int) -> MappedTransport:
    try:
        import pynq
    except ImportError:
        raise BoardError(
            "pynq: takes memory from the package pynq, which PYNQ's images have, and which is not "
            "installed here"
        ) from None
    pages = -(-memory_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    buffer = pynq.allocate(shape=(pages // WORD_BYTES,), dtype=np.uint32)
    shown = pynq.MMIO(registers, _REGISTER_BYTES)
    return MappedTransport(
        shown.array,
        buffer,
        int(buffer.physical_address),
        buffer.flush,
        buffer.invalidate,
        buffer.freebuffer,
    )


def map_words(path: str, offset: int, size: int) -> npt.NDArray[np.uint32]:
    """Map ``size`` bytes of the device at ``path`` from ``offset`` on, as words, uncached where the
    kernel can; raises `BoardError`.
    """
    where = f"{size:#x} bytes at {offset:#x} of {path}"
    if offset % mmap.PAGESIZE or size % WORD_BYTES or size <= 0:
        raise BoardError(
            f"{where} cannot be mapped: addresses must be multiples of "
            f"{mmap.PAGESIZE:#x}, and sizes of {WORD_BYTES}"
        )
    try:
        # O_SYNC makes the kernel map /dev/mem uncached.
        descriptor = os.open(path, os.O_RDWR | os.O_SYNC)
    except OSError as error:
        hint = ": run as root" if isinstance(error, PermissionError) else ""
        raise BoardError(f"{path} cannot be opened: {error.strerror}{hint}") from None
    try:
        mapping = mmap.mmap(descriptor, size, offset=offset)
    except (OSError, ValueError, OverflowError) as error:
        raise BoardError(f"{where} cannot be mapped: {error}") from None
    finally:
        os.close(descriptor)
    return np.frombuffer(mapping, np.uint32)
