"""Where the layers of a network load from and to: offsets in the scratchpads of inputs and weights,
and tensors stored in several places."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Memory, filled_by
from amaranth_vta.sw.runtime.kernels import Indices, UopMode
from amaranth_vta.sw.runtime.memory import Buffer
from amaranth_vta.sw.runtime.runtime import Runtime
from amaranth_vta.sw.runtime.transfers import Pads

from .scattered import ScatteredBuffer, split_load, split_store

Elements = Mapping[Memory, int]


class ScratchpadOffsets:
    """Allocates each layer after its predecessor, or at the start if it does not fit there, so that
    its first loads need not wait for the predecessor's last products.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._ends: dict[Memory, int] = {}

    def next(self, used: Elements) -> Elements:
        """The first element in each memory for the next layer, which uses ``used`` elements."""
        offsets = {}
        for memory, size in used.items():
            end = self._ends.get(memory, 0)
            offsets[memory] = end if end + size <= self._config.memory(memory).depth else 0
            self._ends[memory] = offsets[memory] + size
        return offsets


class OffsetRuntime:
    """Forwards calls to ``runtime``, with an offset added to elements of INP and WGT. Loads and
    stores of a `ScatteredBuffer` are split."""

    def __init__(self, runtime: Runtime, offsets: Elements) -> None:
        self._runtime: Any = runtime
        self._offsets = offsets
        # Calls that do not access elements of INP or WGT.
        self.push_alu = runtime.push_alu
        self.wait_for_alu = runtime.wait_for_alu
        self.dep_push, self.dep_pop = runtime.dep_push, runtime.dep_pop
        self.uop_loop_begin, self.uop_loop_end = runtime.uop_loop_begin, runtime.uop_loop_end

    def load_buffer_2d(
        self,
        buffer: Buffer | ScatteredBuffer,
        *rows: int,
        sram_index: int,
        memory: Memory,
        pad_value: int = 0,
    ) -> None:
        sram_index += self._offsets.get(filled_by(memory), 0)
        if not isinstance(buffer, ScatteredBuffer):
            self._runtime.load_buffer_2d(
                buffer, *rows, sram_index=sram_index, memory=memory, pad_value=pad_value
            )
            return
        offset, x_size, y_size, x_stride, *pads = rows
        element_bytes = self._runtime.config.memory(memory).element_bytes
        for part in split_load(
            buffer, element_bytes, offset, x_size, y_size, x_stride, Pads(*pads)
        ):
            self._runtime.load_buffer_2d(
                *(part.buffer, part.offset, part.x_size, part.y_size, x_stride, *part.pads),
                sram_index=sram_index + part.shift,
                memory=memory,
                pad_value=pad_value,
            )

    def store_buffer_2d(
        self, sram_index: int, buffer: Buffer | ScatteredBuffer, *rows: int
    ) -> None:
        if not isinstance(buffer, ScatteredBuffer):
            self._runtime.store_buffer_2d(sram_index, buffer, *rows)
            return
        element_bytes = self._runtime.config.memory(Memory.OUT).element_bytes
        for part in split_store(buffer, element_bytes, *rows):
            place = part.offset, part.x_size, part.y_size, part.x_stride
            self._runtime.store_buffer_2d(sram_index + part.shift, part.buffer, *place)

    def forward_buffer_2d(self, *rows: int, sram_index: int, pad_value: int = 0) -> None:
        sram_index += self._offsets.get(Memory.INP, 0)
        self._runtime.forward_buffer_2d(*rows, sram_index=sram_index, pad_value=pad_value)

    def push_gemm(self, body: Callable[[], None], key: Hashable) -> None:
        self._runtime.push_gemm(body, self._key(key))

    def load_kernels(self, kernels: Iterable[tuple[UopMode, Callable[[], None], Hashable]]) -> None:
        self._runtime.load_kernels(
            (mode, body, self._key(key) if mode is UopMode.GEMM else key)
            for mode, body, key in kernels
        )

    def _key(self, key: Hashable) -> Hashable:
        return key, *self._offsets.values()

    def uop_push(
        self, mode: UopMode, reset: int, dst: Indices, src: Indices, wgt: Indices, *others: Any
    ) -> None:
        if mode is UopMode.GEMM and not reset:
            src = src + self._offsets.get(Memory.INP, 0)
            wgt = wgt + self._offsets.get(Memory.WGT, 0)
        self._runtime.uop_push(mode, reset, dst, src, wgt, *others)
