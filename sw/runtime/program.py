"""Compiled programs: recorded instruction streams of the runtime, which can be saved to a file.

A program contains its instruction streams with addresses relative to buffers, the buffers with the
contents of constant ones (including micro-ops), and the configuration of its machine. Addresses
that change from run to run are relative to windows, parts of buffers that the host moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

from .archive import (
    ProgramError,
    check_config,
    load_archive,
    require,
    save_archive,
    save_arrays,
)
from .array_file import require_within_limit
from .device import Limits, RunResult, total
from .instruction_words import Words, element_bytes, field_of, memories_of, without_fields
from .launches.join import join
from .memory import Buffer, Motion, MovingWindow, buffer_alignment
from .runtime import Runtime
from .stream import Stream
from .uop_cache import merged_loads

_KIND = "program"
_ROLES = ("input", "output", "constant", "scratch")


@dataclass(frozen=True)
class ProgramBuffer:
    """A buffer that a program needs: ``size`` in bytes, ``role`` input, output, constant or
    scratch."""

    name: str
    size: int
    role: str


@dataclass(frozen=True)
class ProgramWindow:
    """A `MovingWindow` of ``size`` bytes in the buffer of that name."""

    name: str
    buffer: str
    size: int
    motion: Motion


@dataclass(frozen=True)
class RelocatableStream:
    """Instructions of one launch: uint64 (instructions, 2), low word first, FINISH included.

    ``buffer`` (int32) has, for each instruction, the index of the buffer to which its dram_base is
    relative, or -1. Windows are numbered after the buffers.
    """

    words: Words
    buffer: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Program:
    """Consecutive streams and the buffers that they use.

    ``contents`` has, by name, the initial bytes (uint8) of constant buffers.
    """

    config: Config
    buffers: tuple[ProgramBuffer, ...]
    streams: tuple[RelocatableStream, ...]
    contents: Mapping[str, npt.NDArray[np.uint8]]
    windows: tuple[ProgramWindow, ...] = ()

    def place(
        self,
        runtime: Runtime,
        streams: Collection[int] | None = None,
        shared: Mapping[str, Buffer] | None = None,
    ) -> PlacedProgram:
        """Place the program, or only its ``streams`` (indices), in the memory of the runtime's
        device, ready to run. Buffers that are ``shared``, by name, belong to another placement on
        the same runtime; their contents stay.

        Raises `ProgramError` if the machine has another configuration, and `OutOfMemory`.
        """
        check_config("the program", self.config, runtime.config)
        return PlacedProgram(self, runtime, streams, shared or {})

    def shared_with(self, other: Program) -> frozenset[str]:
        """The names of constant buffers that have the same contents in both programs."""
        sizes = {item.name: item.size for item in self.buffers}
        return frozenset(
            item.name
            for item in other.buffers
            if item.name in self.contents
            and sizes[item.name] == item.size
            and item.name in other.contents
            and np.array_equal(self.contents[item.name], other.contents[item.name])
        )

    def save(self, path: str | Path) -> None:
        """Write a file for `load`; raises `ProgramError` if it cannot be written."""
        save_archive(path, _KIND, *self.parts())

    @classmethod
    def load(cls, path: str | Path, config: Config | None = None) -> Program:
        """Load a program from a file.

        Raises `ProgramError` if the file is not a program, is damaged, has another format version,
        or was compiled for another machine than ``config``.
        """
        program = load_archive(path, _KIND, cls.from_parts)
        if config is not None:
            check_config(str(path), program.config, config)
        return program

    def parts(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """A JSON header, and arrays by name; `from_parts` rebuilds the program from both."""
        header = {
            "config": self.config.to_dict(),
            "buffers": [asdict(item) for item in self.buffers],
            "streams": len(self.streams),
            **({"windows": [asdict(item) for item in self.windows]} if self.windows else {}),
        }
        arrays: dict[str, npt.NDArray[Any]] = {}
        for index, stream in enumerate(self.streams):
            arrays[f"words_{index}"] = stream.words
            arrays[f"buffer_{index}"] = stream.buffer
        for index, item in enumerate(self.buffers):
            if item.name in self.contents:
                arrays[f"contents_{index}"] = self.contents[item.name]
        return header, arrays

    @classmethod
    def from_parts(
        cls, header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> Program:
        """Rebuild a program from its `parts`; malformed parts raise `ConfigError` or a Python
        error.
        """
        buffers = tuple(ProgramBuffer(**item) for item in header["buffers"])
        program = cls(
            config=Config.from_dict(header["config"]),
            buffers=buffers,
            streams=tuple(
                RelocatableStream(arrays[f"words_{index}"], arrays[f"buffer_{index}"])
                for index in range(header["streams"])
            ),
            contents={
                item.name: arrays[f"contents_{index}"]
                for index, item in enumerate(buffers)
                if f"contents_{index}" in arrays
            },
            windows=tuple(
                ProgramWindow(**{**item, "motion": Motion(**item["motion"])})
                for item in header.get("windows", ())
            ),
        )
        program.validate()
        return program

    def validate(self) -> None:
        """Raises `ValueError` if parts of the program do not fit together, and `FileLimitError`."""
        for item in self.buffers:
            valid = isinstance(item.name, str) and type(item.size) is int and item.size >= 0
            require(valid and item.role in _ROLES, f"its buffer {item.name} is malformed")
        names = {item.name for item in self.buffers}
        require(len(names) == len(self.buffers), "two of its buffers have the same name")
        self._validate_windows()
        for number, stream in enumerate(self.streams):
            words, used = stream.words, stream.buffer
            valid = words.dtype == np.uint64 and words.ndim == 2 and words.shape[1] == 2
            valid &= used.dtype == np.int32 and used.shape == words.shape[:1]
            require(valid, f"its stream {number} is malformed")
            inside = (
                used.size
                and used.min() >= -1
                and used.max() < len(self.buffers) + len(self.windows)
            )
            require(bool(inside), f"its stream {number} uses buffers that it does not have")
        for item in self.buffers:
            data = self.contents.get(item.name, np.empty(0, np.uint8))
            valid = data.dtype == np.uint8 and data.ndim == 1 and data.size <= item.size
            require(valid, f"the contents of its buffer {item.name} exceed the buffer")
        require_within_limit("the memory that it needs", self.placed_bytes())

    def _validate_windows(self) -> None:
        sizes = {item.name: item.size for item in self.buffers}
        for item in self.windows:
            motion = item.motion
            numbers = (item.size, motion.block, motion.stride, motion.step)
            valid = isinstance(item.name, str) and item.buffer in sizes
            valid = valid and all(type(value) is int and value >= 0 for value in numbers)
            valid = valid and item.size <= sizes[item.buffer] and motion.block > 0
            require(valid, f"its window {item.name} is malformed")
        names = {item.name for item in self.windows}
        require(len(names) == len(self.windows), "two of its windows have the same name")

    def save_image(self, path: str | Path, inputs: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Write a program image for ``vta replay``, with ``inputs``, by name, in their buffers.

        Raises `ProgramError` if the program has more than one stream, or if the file cannot be
        written.
        """
        if len(self.streams) != 1:
            raise ProgramError(
                f"a program image has one stream, the program has {len(self.streams)}"
            )
        memory, placed = self.placed_at_zero()
        for name, data in inputs.items():
            placed.buffer(name).write(data)
        address, words = placed.streams[0]
        arrays = {
            "config": np.array(self.config.to_json()),
            "dram": memory,
            "insn_addr": np.array(address, np.int64),
            "insn_count": np.array(len(words), np.int64),
        }
        save_arrays(path, arrays)

    def placed_at_zero(
        self, streams: Collection[int] | None = None
    ) -> tuple[npt.NDArray[np.uint8], PlacedProgram]:
        """A memory image (uint8, indexed by byte address) of the program, or only its ``streams``,
        at address 0, and the addresses of its parts. It is relocatable: add an offset to base
        registers and launch address.
        """
        device = _MemoryOnlyDevice(self.config, self.placed_bytes(streams))
        return device.memory, self.place(Runtime(device), streams)

    def placed_bytes(
        self,
        streams: Collection[int] | None = None,
        placements: int = 1,
        shared: Collection[str] = (),
    ) -> int:
        """Bytes of device memory that the program, or only its ``streams``, takes when placed,
        without its ``shared`` constants; several ``placements`` share their constants.
        """
        alignment = buffer_alignment(self.config)
        constants = [
            item.size
            for item in self.buffers
            if item.role == "constant" and item.name not in shared
        ]
        others = [item.size for item in self.buffers if item.role != "constant"]
        others += [self.streams[index].words.nbytes for index in self.chosen(streams)]
        return sum(-(-size // alignment) * alignment for size in constants + others * placements)

    def chosen(self, streams: Collection[int] | None) -> Collection[int]:
        """``streams``, or the indices of all streams if it is None."""
        return range(len(self.streams)) if streams is None else streams


class PlacedProgram:
    """A program placed in the memory of a runtime's device.

    ``streams`` has, by index, the address of each placed stream, and its instructions with absolute
    addresses.
    """

    def __init__(
        self,
        program: Program,
        runtime: Runtime,
        streams: Collection[int] | None = None,
        shared: Mapping[str, Buffer] | None = None,
    ) -> None:
        self._runtime = runtime
        self._buffers: dict[str, Buffer] = dict(shared or {})
        # Without buffers of another placement.
        self._own_buffers: list[Buffer] = []
        self.streams: dict[int, tuple[int, Words]] = {}
        # The instructions relative to windows, by stream.
        self._moved: list[_MovedInstructions] = []
        try:
            self._place(program, program.chosen(streams))
        except BaseException:
            self.free()
            raise

    def _place(self, program: Program, streams: Collection[int]) -> None:
        for item in program.buffers:
            if item.name in self._buffers:
                continue
            buffer = self._buffers[item.name] = self._runtime.allocate(item.size, item.name)
            self._own_buffers.append(buffer)
            if item.name in program.contents:
                buffer.write(program.contents[item.name])
        named = [item.name for item in program.buffers] + [item.buffer for item in program.windows]
        addresses = np.array([self._buffers[name].address for name in named])
        for index in streams:
            stream = program.streams[index]
            words = _relocated(program.config, stream.words, stream.buffer, addresses, 1)
            buffer = self._runtime.allocate(words.nbytes, f"stream {index}")
            self._own_buffers.append(buffer)
            buffer.write(words)
            self.streams[index] = buffer.address, words
            of_window = stream.buffer - len(program.buffers)
            if (of_window >= 0).any():
                moved = _MovedInstructions(program, buffer, words, of_window)
                self._moved.append(moved)

    def move_windows(self, names: Collection[str], place: int) -> None:
        """Move windows to ``place``: change the addresses of instructions in device memory."""
        for moved in self._moved:
            moved.move(tuple(names), place)

    def buffer(self, name: str) -> Buffer:
        """The buffer called ``name``; raises `ProgramError` if the program has none."""
        if name not in self._buffers:
            raise ProgramError(
                f"the program has no buffer {name}; it has {', '.join(sorted(self._buffers))}"
            )
        return self._buffers[name]

    def run(self, streams: range | None = None, time_limit: float | None = None) -> RunResult:
        """Run all streams, or the ``streams`` given by index, and sum up; raises `RuntimeFault`."""
        chosen = self.streams if streams is None else streams
        return total([self.run_one(index, (), time_limit) for index in chosen])

    def run_one(
        self, index: int, watched: Sequence[int] = (), time_limit: float | None = None
    ) -> RunResult:
        """Run a stream; ``watched`` as in `Device.run`. Raises `RuntimeFault`."""
        return self._runtime.run_stream(*self.streams[index], watched, time_limit)

    def free(self) -> None:
        """Frees the memory."""
        for buffer in self._own_buffers:
            buffer.free()
        self._buffers, self._own_buffers, self.streams, self._moved = {}, [], {}, []


class _MovedInstructions:
    """The instructions of a placed stream that are relative to windows of ``program``. ``words``
    are the stream's, in ``buffer``, with all windows at place 0; ``of_window`` has the number of
    the window of each, or less than 0.
    """

    def __init__(
        self, program: Program, buffer: Buffer, words: Words, of_window: npt.NDArray[np.int32]
    ) -> None:
        self._program, self._buffer, self._words = program, buffer, words
        (self._where,) = np.nonzero(of_window >= 0)
        self._of_window, self._originals = of_window[self._where], words[self._where]
        self._offsets = np.zeros(len(program.windows), np.int64)

    def move(self, names: tuple[str, ...], place: int) -> None:
        """Move the windows ``names`` to ``place``, all at once: each has few instructions."""
        offsets = self._offsets.copy()
        for number, window in enumerate(self._program.windows):
            if window.name in names:
                offsets[number] = window.motion.offset(place)
        chosen = (offsets != self._offsets)[self._of_window]
        self._offsets = offsets
        if not chosen.any():
            return
        given = self._originals[chosen], self._of_window[chosen]
        where = self._where[chosen]
        self._words[where] = _relocated(self._program.config, *given, offsets, 1)
        for run in np.split(where, np.flatnonzero(np.diff(where) > 1) + 1):
            begin, end = int(run[0]), int(run[-1]) + 1
            self._buffer.write(self._words[begin:end], begin * isa.INSTRUCTION_BYTES)


class Recorder(Runtime):
    """A runtime that records its streams for a `Program` instead of running them.

    It needs no device: ``memory_bytes`` is the memory available to buffers. A stream ends at
    `synchronize`, or at ``stream_limit`` instructions. Each stream is self-contained: it first
    reloads the micro-ops that it uses from earlier streams.
    """

    def __init__(
        self, config: Config, memory_bytes: int = 1 << 30, stream_limit: int = 1 << 40
    ) -> None:
        self._recording = _MemoryOnlyDevice(config, memory_bytes)
        super().__init__(self._recording, stream_limit)
        self.streams: list[tuple[Words, list[tuple[int, Buffer]]]] = []
        # Recorded streams in order, without FINISH.
        self._made: list[Stream] = []

    def join(self, streams: range) -> tuple[int, tuple[int, ...]]:
        """Add a stream that joins ``streams``, so that each starts while its predecessor drains.
        Returns its index, and the end of each joined stream as a number of instructions.

        The first of ``streams`` must not rely on micro-ops that earlier streams loaded. Raises
        `CannotJoin`.
        """
        parts = [self._made[index] for index in streams]
        joined = join(self.config, self._recording.memory, parts)
        stream = joined.stream
        self.streams.append((stream.finished(), stream.relocations))
        self._made.append(stream)
        return len(self.streams) - 1, tuple(joined.ends)

    def _run(self, stream: Stream, time_limit: float | None) -> None:
        alone = self._stream = Stream()
        for begin, sequence in merged_loads(self._cache.take_reused(), self._uops):
            self._load_uops(begin, sequence)
        self._stream = Stream()
        alone.extend(stream)
        self._made.append(stream)
        self.streams.append((alone.finished(), alone.relocations))

    def program(
        self,
        inputs: Sequence[Buffer] = (),
        outputs: Sequence[Buffer] = (),
        constants: Sequence[Buffer] = (),
    ) -> Program:
        """The recorded program. Buffers without another role are scratch. Constants are saved with
        their current contents.

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
        windows: dict[MovingWindow, None] = {}
        for _, relocations in self.streams:
            for _, buffer in relocations:
                if isinstance(buffer, MovingWindow):
                    windows[buffer] = None
                roles.setdefault(buffer.reached, "scratch")
        for name, count in Counter(buffer.name for buffer in roles).items():
            if count > 1:
                raise ProgramError(f"two buffers of the program are named {name}")
        numbers = {buffer: number for number, buffer in enumerate((*roles, *windows))}
        addresses = np.array([buffer.address for buffer in numbers])
        return Program(
            config=self.config,
            buffers=tuple(
                ProgramBuffer(buffer.name, buffer.size, role) for buffer, role in roles.items()
            ),
            streams=tuple(
                self._relocatable(*stream, numbers, addresses) for stream in self.streams
            ),
            contents={
                buffer.name: buffer.read(np.uint8, used.get(buffer, buffer.size))
                for buffer, role in roles.items()
                if role == "constant"
            },
            windows=tuple(
                ProgramWindow(item.name, item.reached.name, item.size, item.motion)
                for item in windows
            ),
        )

    def _relocatable(
        self,
        words: Words,
        relocations: list[tuple[int, Buffer]],
        numbers: Mapping[Buffer, int],
        addresses: npt.NDArray[np.int64],
    ) -> RelocatableStream:
        buffer = np.full(len(words), -1, np.int32)
        for index, used in relocations:
            buffer[index] = numbers[used]
        return RelocatableStream(_relocated(self.config, words, buffer, addresses, -1), buffer)


class _MemoryOnlyDevice:
    """A device for recording: zeroed memory without a machine."""

    name = "recorder"

    def __init__(self, config: Config, memory_bytes: int) -> None:
        self.config = config
        self.memory_bytes = -(-memory_bytes // isa.BASE_ALIGNMENT) * isa.BASE_ALIGNMENT
        self.memory = np.zeros(self.memory_bytes, np.uint8)

    def set_limits(self, limits: Limits) -> None:
        """Has no effect: this device runs nothing."""

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        return self.memory[address : address + size].copy()

    def write(self, address: int, data: npt.NDArray[np.generic] | bytes) -> None:
        flat = np.frombuffer(bytes(data), np.uint8)
        self.memory[address : address + flat.size] = flat

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        raise ProgramError("a recorder cannot run: place its program in the memory of a device")


def _relocated(
    config: Config,
    words: Words,
    buffer: npt.NDArray[np.int32],
    addresses: npt.NDArray[np.int64],
    sign: int,
) -> Words:
    """Instructions with their buffers' start addresses added to dram_base, or subtracted if
    ``sign`` is negative.
    """
    layout = isa.instruction_set(config).layouts[isa.Opcode.LOAD]
    base = layout["dram_base"]
    # At least 1: a LOAD that sets a padding value has no element size.
    size_of = np.maximum(element_bytes(config), 1)
    (where,) = np.nonzero(buffer >= 0)
    chosen = words[where]
    start = addresses[buffer[where]] // size_of[memories_of(chosen, layout, config.extensions)]
    elements = field_of(chosen, base) + sign * start
    if elements.size and int(elements.max()) >> base.width:
        raise ProgramError(
            f"the program lies beyond the addressable range: an instruction addresses "
            f"{1 << base.width:,} "
            "elements"
        )
    moved = words.copy()
    moved[where] = without_fields(chosen, [base])
    moved[where, 0] |= elements.astype(np.uint64) << np.uint64(base.offset)
    return moved
