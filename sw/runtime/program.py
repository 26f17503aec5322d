"""Compiled programs: recorded runs of the runtime that can be kept in a file and run elsewhere.

A program holds its instruction streams with addresses relative to buffers, the buffers with the
contents of those that are constant (micro-ops among them), and the configuration of the machine
it was made for.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config, ConfigError

from .command import Runtime
from .device import RunResult, total
from .memory import Buffer, buffer_alignment
from .stream import Stream

_FORMAT = "amaranth-vta program"
_VERSION = 1
_ROLES = ("input", "output", "constant", "scratch")
# What reading a damaged archive raises, by the part of the file that is damaged.
_DAMAGE = (
    ValueError,
    EOFError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TypeError,
    zipfile.BadZipFile,
    zlib.error,
)


class ProgramError(ValueError):
    """A program that is damaged, incomplete, or made for another machine."""


@dataclass(frozen=True)
class BufferPlan:
    """A buffer that a program needs: ``size`` in bytes, ``role`` input, output, constant or
    scratch."""

    name: str
    size: int
    role: str


@dataclass(frozen=True)
class StreamPlan:
    """Instructions to run at once: uint64 (instructions, 2), low word first, FINISH included.

    ``buffer`` (int32) has for each instruction the index of the buffer to whose first element its
    dram_base is relative, or -1.
    """

    words: npt.NDArray[np.uint64]
    buffer: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Program:
    """Streams that run one after the other, and the buffers that they use.

    ``contents`` has the first bytes (uint8) of constant buffers, by name.
    """

    config: Config
    buffers: tuple[BufferPlan, ...]
    streams: tuple[StreamPlan, ...]
    contents: Mapping[str, npt.NDArray[np.uint8]]

    def place(self, runtime: Runtime) -> PlacedProgram:
        """The program in the memory of the runtime's device, ready to run.

        Raises `ProgramError` if the machine has another configuration, and `OutOfMemory`.
        """
        _check_config("the program", self.config, runtime.config)
        return PlacedProgram(self, runtime)

    def save(self, path: str | Path) -> None:
        """Writes a file for `load`; raises `ProgramError` if it cannot be written."""
        arrays = self._arrays()
        header = self._header() | {"checksum": _checksum(self._header(), arrays)}
        _write(Path(path), {"header": np.array(json.dumps(header))} | arrays)

    @classmethod
    def load(cls, path: str | Path, config: Config | None = None) -> Program:
        """The program in a file.

        Raises `ProgramError` if it is none, damaged, of another format version, or made for
        another machine than ``config``.
        """
        archive = _read(Path(path))
        header = _parsed_header(Path(path), archive.pop("header"))
        checksum = header.pop("checksum", None)
        if checksum != _checksum(header, archive):
            raise ProgramError(f"{path} is damaged: its checksum does not match its contents")
        try:
            made_for = Config.from_dict(header["config"])
        except ConfigError as error:
            raise ProgramError(f"{path}: {error}") from None
        if config is not None:
            _check_config(str(path), made_for, config)
        buffers = tuple(BufferPlan(**item) for item in header["buffers"])
        return cls(
            config=made_for,
            buffers=buffers,
            streams=tuple(
                StreamPlan(archive[f"words_{index}"], archive[f"buffer_{index}"])
                for index in range(header["streams"])
            ),
            contents={
                item.name: archive[f"contents_{index}"]
                for index, item in enumerate(buffers)
                if f"contents_{index}" in archive
            },
        )

    def save_image(self, path: str | Path, inputs: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Writes a program image with these contents of input buffers, for ``vta replay``.

        An image has one stream: raises `ProgramError` if the program has more, or if the file
        cannot be written.
        """
        if len(self.streams) != 1:
            raise ProgramError(
                f"a program image has one stream, the program has {len(self.streams)}"
            )
        tape = _Tape(self.config, self._placed_bytes())
        placed = self.place(Runtime(tape))
        for name, data in inputs.items():
            placed.buffer(name).write(data)
        ((address, words),) = placed.streams
        arrays = {
            "config": np.array(self.config.to_json()),
            "dram": tape.memory,
            "insn_addr": np.int64(address),
            "insn_count": np.int64(len(words)),
        }
        _write(Path(path), arrays)

    def _placed_bytes(self) -> int:
        alignment = buffer_alignment(self.config)
        sizes = [item.size for item in self.buffers] + [item.words.nbytes for item in self.streams]
        return sum(-(-size // alignment) * alignment for size in sizes)

    def _header(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "config": self.config.to_dict(),
            "buffers": [asdict(item) for item in self.buffers],
            "streams": len(self.streams),
        }

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays: dict[str, npt.NDArray[Any]] = {}
        for index, stream in enumerate(self.streams):
            arrays[f"words_{index}"] = stream.words
            arrays[f"buffer_{index}"] = stream.buffer
        for index, item in enumerate(self.buffers):
            if item.name in self.contents:
                arrays[f"contents_{index}"] = self.contents[item.name]
        return arrays


class PlacedProgram:
    """A program in the memory of a runtime's device.

    ``streams`` has the address of each stream and its instructions as they stand there.
    """

    def __init__(self, program: Program, runtime: Runtime) -> None:
        self._runtime = runtime
        self._buffers: dict[str, Buffer] = {}
        self._stream_buffers: list[Buffer] = []
        self.streams: list[tuple[int, npt.NDArray[np.uint64]]] = []
        try:
            self._place(program)
        except BaseException:
            self.free()
            raise

    def _place(self, program: Program) -> None:
        for item in program.buffers:
            buffer = self._buffers[item.name] = self._runtime.allocate(item.size, item.name)
            if item.name in program.contents:
                buffer.write(program.contents[item.name])
        addresses = [self._buffers[item.name].address for item in program.buffers]
        for index, stream in enumerate(program.streams):
            words = _moved(program.config, stream.words, stream.buffer, addresses, 1)
            buffer = self._runtime.allocate(words.nbytes, f"stream {index}")
            self._stream_buffers.append(buffer)
            buffer.write(words)
            self.streams.append((buffer.address, words))

    def buffer(self, name: str) -> Buffer:
        """Raises `ProgramError` if the program has no buffer of that name."""
        if name not in self._buffers:
            raise ProgramError(
                f"the program has no buffer {name}; it has {', '.join(sorted(self._buffers))}"
            )
        return self._buffers[name]

    def run(self, streams: range | None = None, time_limit: float | None = None) -> RunResult:
        """Runs all streams, or those of these indices, and sums up; raises `RuntimeFault`."""
        chosen = self.streams if streams is None else [self.streams[index] for index in streams]
        return total([self._runtime.run_stream(*stream, time_limit) for stream in chosen])

    def free(self) -> None:
        """Gives the memory back."""
        for buffer in (*self._buffers.values(), *self._stream_buffers):
            buffer.free()
        self._buffers, self._stream_buffers, self.streams = {}, [], []


class Recorder(Runtime):
    """A runtime that keeps its streams, for a `Program`, instead of running them.

    It needs no device: ``memory_bytes`` is the memory that buffers can take. A stream ends at
    `synchronize`, or at ``stream_limit`` instructions if that is given.
    """

    def __init__(
        self, config: Config, memory_bytes: int = 1 << 30, stream_limit: int = 1 << 40
    ) -> None:
        super().__init__(_Tape(config, memory_bytes), stream_limit)
        self.streams: list[tuple[npt.NDArray[np.uint64], list[tuple[int, Buffer]]]] = []

    def _run(self, stream: Stream, time_limit: float | None) -> None:
        self.streams.append((stream.finished(), stream.relocations))

    def program(
        self,
        inputs: Sequence[Buffer] = (),
        outputs: Sequence[Buffer] = (),
        constants: Sequence[Buffer] = (),
    ) -> Program:
        """What was recorded. Other buffers that it uses are scratch. Constants are saved as they
        are now.

        Raises `ProgramError` if instructions are queued, or if buffers share a name or a role.
        """
        if not self._stream.is_empty():
            raise ProgramError("instructions are queued; synchronize before asking for the program")
        roles: dict[Buffer, str] = {}
        for role, buffers in zip(_ROLES, (inputs, outputs, constants), strict=False):
            for buffer in buffers:
                if buffer in roles:
                    raise ProgramError(f"{buffer.name} is listed as {roles[buffer]} and as {role}")
                roles[buffer] = role
        used = self._uops.used_bytes()
        roles |= dict.fromkeys(used, "constant")
        for _, relocations in self.streams:
            for _, buffer in relocations:
                roles.setdefault(buffer, "scratch")
        names = [buffer.name for buffer in roles]
        for name in names:
            if names.count(name) > 1:
                raise ProgramError(f"two buffers of the program are named {name}")
        numbers = {buffer: number for number, buffer in enumerate(roles)}
        return Program(
            config=self.config,
            buffers=tuple(
                BufferPlan(buffer.name, buffer.size, role) for buffer, role in roles.items()
            ),
            streams=tuple(self._plan(*stream, numbers) for stream in self.streams),
            contents={
                buffer.name: buffer.read(np.uint8, used.get(buffer, buffer.size))
                for buffer, role in roles.items()
                if role == "constant"
            },
        )

    def _plan(
        self,
        words: npt.NDArray[np.uint64],
        relocations: list[tuple[int, Buffer]],
        numbers: Mapping[Buffer, int],
    ) -> StreamPlan:
        buffer = np.full(len(words), -1, np.int32)
        for index, used in relocations:
            buffer[index] = numbers[used]
        addresses = [item.address for item in numbers]
        return StreamPlan(_moved(self.config, words, buffer, addresses, -1), buffer)


class _Tape:
    """A device to record for: memory that starts as zeros, and no machine."""

    name = "recorder"

    def __init__(self, config: Config, memory_bytes: int) -> None:
        self.config = config
        self.memory_bytes = -(-memory_bytes // isa.BASE_ALIGNMENT) * isa.BASE_ALIGNMENT
        self.memory = np.zeros(self.memory_bytes, np.uint8)

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        return self.memory[address : address + size].copy()

    def write(self, address: int, data: npt.NDArray[np.generic] | bytes) -> None:
        flat = np.frombuffer(bytes(data), np.uint8)
        self.memory[address : address + flat.size] = flat

    def run(self, insn_addr: int, insn_count: int, time_limit: float | None = None) -> RunResult:
        raise ProgramError("a recorder runs nothing; place its program on a device")


def _moved(
    config: Config,
    words: npt.NDArray[np.uint64],
    buffer: npt.NDArray[np.int32],
    addresses: Sequence[int],
    sign: int,
) -> npt.NDArray[np.uint64]:
    """Instructions with the start of their buffers added to dram_base, or taken from it."""
    fields_ = isa.instruction_set(config).layouts[isa.Opcode.LOAD]
    memory, base = fields_["memory"], fields_["dram_base"]
    element_bytes = np.ones(1 << memory.width, np.int64)
    for item in isa.Memory:
        element_bytes[item] = config.memory(item).element_bytes
    words = words.copy()
    (where,) = np.nonzero(buffer >= 0)
    low = words[where, 0].astype(np.uint64)
    kind = low >> np.uint64(memory.offset) & np.uint64((1 << memory.width) - 1)
    mask = np.uint64((1 << base.width) - 1)
    elements = (low >> np.uint64(base.offset) & mask).astype(np.int64)
    start = np.asarray(addresses, np.int64)[buffer[where]] // element_bytes[kind.astype(np.int64)]
    elements += sign * start
    if elements.size and int(elements.max()) > int(mask):
        raise ProgramError(
            f"the program was placed out of reach: an instruction addresses {int(mask) + 1:,} "
            "elements"
        )
    cleared = low & ~(mask << np.uint64(base.offset))
    words[where, 0] = cleared | elements.astype(np.uint64) << np.uint64(base.offset)
    return words


def _check_config(what: str, made_for: Config, config: Config) -> None:
    if made_for != config:
        names = [
            item.name
            for item in fields(Config)
            if getattr(made_for, item.name) != getattr(config, item.name)
        ]
        differences = ", ".join(
            f"{name.upper()} = {getattr(made_for, name)} (here {getattr(config, name)})"
            for name in names
        )
        raise ProgramError(f"{what} was made for a machine with {differences}")


def _checksum(header: dict[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _write(path: Path, arrays: Mapping[str, Any]) -> None:
    try:
        # An open file, since savez would append .npz to a path without it.
        with path.open("wb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise ProgramError(f"{path} cannot be written: {error.strerror}") from None


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise ProgramError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        if file.read(4) != b"PK\x03\x04":
            raise ProgramError(f"{path} is not a compiled program")
        file.seek(0)
        try:
            archive = np.load(file, allow_pickle=False)
            if "header" not in archive.files:
                raise ProgramError(f"{path} is not a compiled program: it has no header")
            return {name: archive[name] for name in archive.files}
        except ProgramError:
            raise
        except _DAMAGE:
            raise ProgramError(f"{path} is truncated or damaged") from None


def _parsed_header(path: Path, array: npt.NDArray[Any]) -> dict[str, Any]:
    try:
        header = json.loads(str(array))
    except ValueError:
        raise ProgramError(f"{path} is damaged: its header cannot be read") from None
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise ProgramError(f"{path} is not a compiled program")
    if header.get("version") != _VERSION:
        raise ProgramError(
            f"{path} has format version {header.get('version')}; this release reads {_VERSION}"
        )
    return header
