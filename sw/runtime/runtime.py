"""The runtime: turns the calls of a lowered loop nest into instructions.

Micro-op kernels are compiled at their first use (JIT) and stay in the micro-op buffer, between
instructions and between runs, until they are evicted. Instructions are collected in a stream that
runs on the device at `Runtime.synchronize`, or earlier when it is full.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Memory, Module
from amaranth_vta.sw.disassembly import instruction_text, listing

from .device import Device, Fault, RunResult, RuntimeFault, SystemDevice, SystemResult, total
from .kernels import CommandError, Indices, KernelBuilder, KernelOperation, UopMode
from .memory import Buffer, DeviceMemory
from .stream import Stream
from .transfers import MemoryRows, Pads, TransferEncoder
from .uop_cache import UopCache, UopSequence, UopStore, merged_loads

__all__ = ["CommandError", "Runtime", "RuntimeFault"]


class Runtime:
    """Emits and runs instructions for one device.

    A stream that reaches ``stream_limit`` instructions is run without waiting for `synchronize`,
    or, if a pop in it waits for a later push, as soon as none does. So the host may access the
    buffers of queued instructions only after `synchronize`. ``time_limit``, in seconds, applies to
    each run.

    All calls raise `CommandError` for anything that the machine cannot do.
    """

    def __init__(
        self, device: Device, stream_limit: int = 1 << 16, time_limit: float | None = None
    ) -> None:
        if stream_limit < 2:
            raise ValueError(f"a stream of at most {stream_limit} instructions holds no work")
        self.device = device
        self.config = device.config
        self.memory = DeviceMemory(device)
        self.time_limit = time_limit
        self._full = stream_limit - 1  # leaves room for FINISH
        self._stream = Stream()
        self._stream_buffer: Buffer | None = None
        self._results: list[RunResult] = []
        self._uops = UopStore(self.memory)
        self._cache = UopCache(self.config.uop.depth)
        self._kernels: dict[Hashable, list[tuple[int, UopSequence]]] = {}
        self._builder: KernelBuilder | None = None
        # Contents of the micro-op buffer at the start of the stream.
        self._resident: list[tuple[int, UopSequence]] = []

        self._transfers = TransferEncoder(self.config)
        # GEMM and ALU have these two fields at the same position.
        instructions = isa.instruction_set(self.config)
        gemm = instructions.layouts[isa.Opcode.GEMM]
        self._at_uop_begin = gemm["uop_begin"].offset
        self._at_uop_end = gemm["uop_end"].offset
        self._no_gemm = instructions.encode(isa.Gemm(uop_end=0))

    # Buffers.

    def allocate(self, size: int, name: str = "buffer") -> Buffer:
        """Allocate ``size`` bytes of device memory, aligned so that any memory of the machine can
        use them.

        Raises `OutOfMemory`.
        """
        return self.memory.allocate(size, name)

    def free(self, buffer: Buffer) -> None:
        """Free a buffer; raises `CommandError` while queued instructions use it."""
        if any(used is buffer for _, used in self._stream.relocations):
            raise CommandError(f"{buffer.name} is used by queued instructions; synchronize first")
        buffer.free()

    # Data.

    def load_buffer_2d(
        self,
        buffer: Buffer,
        element_offset: int,
        x_size: int,
        y_size: int,
        x_stride: int,
        x_pad_before: int,
        y_pad_before: int,
        x_pad_after: int,
        y_pad_after: int,
        sram_index: int,
        memory: Memory,
        pad_value: int = 0,
    ) -> None:
        """Load ``y_size`` rows of ``x_size`` elements from ``buffer``, rows ``x_stride`` elements
        apart, with padding around them, to consecutive elements of ``memory`` from ``sram_index``
        on.

        All counts are in elements of ``memory``. Transfers that exceed one instruction are split.
        Every scalar of the padding is ``pad_value``; only machines with the extension PAD_VALUE can
        pad with a value other than 0, and none can for UOP.
        """
        info = self._transfers.memory(memory)
        pads = Pads(x_pad_before, y_pad_before, x_pad_after, y_pad_after)
        self._check_owned(buffer)
        rows = info.rows_of(buffer, element_offset, x_size, y_size, x_stride)
        info.check_reach("load", sram_index, pads.around(rows))
        if pad_value:
            info.check_pad_value(pad_value, self.config)
        if pads.any_bits and info.padding is not None:
            self._stream.set_padding_value(info.padding, pad_value)
        for transfer in self._transfers.load(info, sram_index, rows, pads):
            self._append(info.module, transfer.bits, buffer if transfer.moves else None)

    def store_buffer_2d(
        self,
        sram_index: int,
        buffer: Buffer,
        element_offset: int,
        x_size: int,
        y_size: int,
        x_stride: int,
    ) -> None:
        """Store consecutive accumulators from ``sram_index`` on, truncated to their low bits, to
        ``y_size`` rows of ``x_size`` elements of ``buffer``, rows ``x_stride`` elements apart.

        All counts are in elements of OUT. Transfers that exceed one instruction are split.
        """
        info = self._transfers.memory(Memory.OUT)
        self._check_owned(buffer)
        rows = info.rows_of(buffer, element_offset, x_size, y_size, x_stride)
        info.check_reach("store", sram_index, y_size * x_size)
        if x_size:
            for transfer in self._transfers.rows(info, sram_index, rows):
                self._append(info.module, transfer.bits, buffer)

    def forward_buffer_2d(
        self, accumulator: int, *sizes_and_pads: int, sram_index: int, pad_value: int = 0
    ) -> None:
        """Forward the low bits of accumulators to INP, on a machine with the extension FORWARD.
        Arguments as in `load_buffer_2d`, with ``accumulator`` instead of the buffer and its
        element. Must fit one instruction.
        """
        rows, pads = MemoryRows(accumulator, *sizes_and_pads[:3]), Pads(*sizes_and_pads[3:])
        bits = self._transfers.forward(rows, pads, sram_index, pad_value)
        self._append(Module.STORE, bits)

    def _check_owned(self, buffer: Buffer) -> None:
        if not buffer.belongs_to(self.memory):
            raise CommandError(f"{buffer.name} is freed, or is in the memory of another runtime")

    def _append(self, module: Module, bits: int, buffer: Buffer | None = None) -> None:
        if len(self._stream.words) >= self._full and self._stream.can_be_split():
            self._run_and_continue()
        self._stream.append(module, bits, None if buffer is None else buffer.whole)

    # Micro-op kernels.

    def push_gemm(self, body: Callable[[], None], key: Hashable = None) -> None:
        """Run the GEMM micro-op kernel that ``body`` builds by calling `uop_loop_begin`, `uop_push`
        and `uop_loop_end`.

        ``key`` identifies the kernel: for a key already known to this runtime, ``body`` is not
        called again.
        """
        self._push_kernel(UopMode.GEMM, body, key)

    def push_alu(self, body: Callable[[], None], key: Hashable = None) -> None:
        """Like `push_gemm`, for a kernel of ALU micro-ops."""
        self._push_kernel(UopMode.ALU, body, key)

    def uop_loop_begin(
        self, extent: int, dst_factor: int, src_factor: int, wgt_factor: int
    ) -> None:
        """Open one of at most two loops around a kernel's micro-ops; each iteration adds the
        factors to their indices.
        """
        self._kernel().loop_begin(extent, dst_factor, src_factor, wgt_factor)

    def uop_loop_end(self) -> None:
        self._kernel().loop_end()

    def uop_push(
        self,
        mode: int,
        reset: int,
        dst: Indices,
        src: Indices,
        wgt: Indices,
        alu_opcode: int = 0,
        use_immediate: int = 0,
        immediate: int = 0,
        overwrite: int = 0,
        independent: int = 0,
        depthwise: int = 0,
    ) -> None:
        """Add one micro-op, or one per element of the arrays ``dst``, ``src`` and ``wgt``.

        ``mode`` is a `UopMode`: 0 for GEMM, 1 for ALU. ``reset``: the accumulators become 0;
        ``overwrite``: they become the product instead of the sum. ``independent``: the kernel
        touches no accumulator used by instructions of the other unit, ALU or GEMM, in flight.
        ``depthwise``: GEMM multiplies several taps of each channel (extension DEPTHWISE). All
        micro-ops of a kernel must agree in everything but their indices; for MULTIPLY_ADD also in
        ``wgt``, the factor accumulator.
        """
        if mode not in (UopMode.GEMM, UopMode.ALU):
            raise CommandError(f"uop_push of mode {mode}: the mode is 0 for GEMM or 1 for ALU")
        if mode == UopMode.ALU:
            given = immediate if use_immediate else 0
            of_mode: dict[str, int] = {"alu_opcode": alu_opcode, "immediate": given}
            of_mode["use_immediate"] = use_immediate
        else:
            of_mode = {"reset": reset, "overwrite": overwrite, "depthwise": depthwise}
        operation = KernelOperation(UopMode(mode), independent=independent, **of_mode)
        self._kernel().push(operation, dst, src, wgt)

    def wait_for_alu(self) -> None:
        """Make later GEMM kernels, including independent ones, wait for all earlier ALU kernels, by
        a no-op GEMM instruction without the claim.
        """
        self._append(Module.COMPUTE, self._no_gemm)

    def _kernel(self) -> KernelBuilder:
        if self._builder is None:
            raise CommandError("micro-ops are pushed by the body of push_gemm or push_alu")
        return self._builder

    def load_kernels(self, kernels: Iterable[tuple[UopMode, Callable[[], None], Hashable]]) -> None:
        """Prefetch the micro-ops of kernels: mode, body and key of each, as in `push_gemm` and
        `push_alu`.

        Loading them together takes few instructions, none of which delays a kernel. If they do not
        all fit the micro-op buffer, nothing is prefetched, and each is loaded on first use.
        """
        sequences: dict[UopSequence, None] = {}
        for mode, body, key in kernels:
            sequences |= dict.fromkeys(sequence for _, sequence in self._pieces(mode, body, key))
        if sum(sequence.count for sequence in sequences) > self.config.uop.depth:
            return
        for begin, sequence in merged_loads(self._cache.place_all(sequences), self._uops):
            self._load_uops(begin, sequence)

    def _pieces(
        self, mode: UopMode, body: Callable[[], None], key: Hashable
    ) -> list[tuple[int, UopSequence]]:
        pieces = self._kernels.get((mode, key)) if key is not None else None
        if pieces is None:
            pieces = self._make_kernel(mode, body)
            if key is not None:
                self._kernels[mode, key] = pieces
        return pieces

    def _push_kernel(self, mode: UopMode, body: Callable[[], None], key: Hashable) -> None:
        for bits, sequence in self._pieces(mode, body, key):
            begin, missing = self._cache.place(sequence)
            if missing:
                self._load_uops(begin, sequence)
            self._append(
                Module.COMPUTE,
                bits | begin << self._at_uop_begin | begin + sequence.count << self._at_uop_end,
            )

    def _make_kernel(
        self, mode: UopMode, body: Callable[[], None]
    ) -> list[tuple[int, UopSequence]]:
        if self._builder is not None:
            raise CommandError("the body of a micro-op kernel pushes micro-ops, not kernels")
        self._builder = KernelBuilder(self.config, mode)
        try:
            body()
            pieces = self._builder.pieces()
        finally:
            self._builder = None
        return [(piece.bits, self._uops.intern(piece.uops)) for piece in pieces]

    def _load_uops(self, begin: int, sequence: UopSequence) -> None:
        # Compute loads and uses micro-ops in order, so no token is needed to overwrite micro-ops of
        # earlier instructions or to make these visible to later ones. The load also need not wait
        # for the tokens that the kernel pops.
        info = self._transfers.memory(Memory.UOP)
        rows = info.rows_of(sequence.buffer, sequence.offset, sequence.count, 1, 0)
        bits = self._transfers.encode(info, begin, rows)
        self._stream.append_before_pops(Module.COMPUTE, bits, sequence.buffer)

    # Dependences.

    def dep_push(self, producer: Module, consumer: Module) -> None:
        """``producer`` pushes a token to ``consumer`` when its latest instruction retires."""
        self._stream.push(producer, consumer)

    def dep_pop(self, producer: Module, consumer: Module) -> None:
        """``consumer`` pops a token from ``producer`` before its next instruction."""
        self._stream.pop(producer, consumer)

    def barrier(self) -> None:
        """Order all later instructions after all earlier ones, device memory included."""
        if not self._stream.balanced():
            # Tokens are anonymous: a barrier's tokens could be mistaken for others in flight.
            if not self._stream.can_be_split():
                raise CommandError("a barrier between a dep_pop and the dep_push that it waits for")
            self._run_and_continue()
            return
        for producer in (Module.LOAD, Module.STORE):
            self.dep_push(producer, Module.COMPUTE)
            self.dep_pop(producer, Module.COMPUTE)
        for consumer in (Module.LOAD, Module.STORE):
            self.dep_push(Module.COMPUTE, consumer)
            self.dep_pop(Module.COMPUTE, consumer)

    # Runs.

    def synchronize(self, time_limit: float | None = None) -> RunResult:
        """Run the queued instructions and wait for completion.

        Returns the sums over the runs since the last call. Raises `RuntimeFault` if the machine
        stops early, which discards the queue. Its cause is ``timeout``, with the module that is
        stuck, if a run takes longer than ``time_limit``, by default the runtime's.
        """
        if not self._stream.is_empty():
            self._stream.flush_pops()
            self._run(self._take_stream(), time_limit)
        results, self._results = self._results, []
        return total(results)

    def run_stream(
        self,
        address: int,
        words: npt.NDArray[np.uint64],
        watched: Sequence[int] = (),
        time_limit: float | None = None,
    ) -> RunResult:
        """Run instructions that are already in device memory: ``words``, uint64 (instructions, 2),
        at ``address``. The contents of the micro-op buffer are unknown afterwards. ``watched`` is
        as in `Device.run`.

        Raises `RuntimeFault`, and `CommandError` while other instructions are queued.
        """
        self._leave_to_streams()
        return self._launch(address, words, time_limit, watched)

    def run_together(self, streams: Sequence[tuple[int, npt.NDArray[np.uint64]]]) -> SystemResult:
        """Run a stream on each machine of a `SystemDevice` at once; each is as in `run_stream`.

        Raises `RuntimeFault` for the first machine that stopped, after all have ended.
        """
        self._leave_to_streams()
        device = cast(SystemDevice, self.device)
        device.set_limits(self.memory.limits)
        counts = [(address, len(words)) for address, words in streams]
        result = device.run_all(counts, self.time_limit)
        for run, (_, words) in zip(result.runs, streams, strict=True):
            self._check(run, words, self.time_limit)
        return result

    def _leave_to_streams(self) -> None:
        """Leave the machine to instructions in memory; raises `CommandError` if others are
        queued.
        """
        if not self._stream.is_empty():
            raise CommandError("instructions are queued; synchronize before running others")
        self.invalidate_micro_ops()

    def invalidate_micro_ops(self) -> None:
        """Invalidate the micro-op cache, for use after others have used the machine."""
        self._cache.clear()
        self._resident = []

    @property
    def queued(self) -> int:
        """Number of queued instructions."""
        return len(self._stream.words)

    def dump(self) -> str:
        """The queued instructions as text, each with its micro-ops."""
        resident = {
            sequence_begin + at: int(bits)
            for sequence_begin, sequence in self._resident
            for at, bits in enumerate(sequence.read())
        }
        return "\n".join(listing(self.config, self._stream.words, self.device.read, resident))

    def _run_and_continue(self) -> None:
        stream = self._take_stream()
        self._run(stream, self.time_limit)
        self._stream = stream.continuation()

    def _take_stream(self) -> Stream:
        stream, self._stream = self._stream, Stream()
        self._resident = self._cache.resident()
        return stream

    def _run(self, stream: Stream, time_limit: float | None) -> None:
        words = stream.finished()
        try:
            buffer = self._stream_buffer
            if buffer is None or buffer.size < words.nbytes:
                if buffer is not None:
                    buffer.free()
                self._stream_buffer = None
                buffer = self.memory.allocate(words.nbytes, "instructions")
                self._stream_buffer = buffer
            buffer.write(words)
            result = self._launch(buffer.address, words, time_limit)
        except BaseException:
            # Unknown which of its micro-ops have been loaded.
            self.invalidate_micro_ops()
            self._results = []
            raise
        self._results.append(result)

    def _launch(
        self,
        address: int,
        words: npt.NDArray[np.uint64],
        time_limit: float | None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        if time_limit is None:
            time_limit = self.time_limit
        self.device.set_limits(self.memory.limits)
        result = self.device.run(address, len(words), time_limit, watched)
        self._check(result, words, time_limit)
        return result

    def _check(
        self, result: RunResult, words: npt.NDArray[np.uint64], time_limit: float | None
    ) -> None:
        """Raise `RuntimeFault` if the run of ``words`` stopped early."""
        if result.fault is not None:
            raise _runtime_fault(self.config, result.fault, words, time_limit)


def _runtime_fault(
    config: Config, fault: Fault, words: npt.NDArray[np.uint64], time_limit: float | None
) -> RuntimeFault:
    instruction = None
    text = f"the machine stopped: {fault} of {len(words)}"
    if fault.instruction < len(words):
        bits = int.from_bytes(words[fault.instruction].tobytes(), "little")
        instruction = isa.instruction_set(config).decode(bits)
        text += f" ({instruction_text(instruction)})"
    if fault.cause == "timeout" and time_limit is not None:
        text += f"; the time limit is {time_limit:g} s"
    return RuntimeFault(fault, instruction, text)
