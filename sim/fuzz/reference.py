"""Reference run of a program on the clear model, and which parts of its result are defined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Memory
from amaranth_vta.hw.timing import INSTRUCTIONS_IN_FLIGHT
from amaranth_vta.sim.model.execution import leaves_bounds
from amaranth_vta.sim.model.machine import ClearModel, Outcome, pushes_of
from amaranth_vta.sim.model.observers.false_claims import FalseClaims
from amaranth_vta.sim.model.observers.observer import Elements, Observer
from amaranth_vta.sim.model.observers.races import Races
from amaranth_vta.sim.model.observers.uninitialized_reads import UninitializedReads
from amaranth_vta.sim.programs.builder import probe
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.runtime.device import Limits

_SHOWN = (Memory.INP, Memory.WGT, Memory.ACC)


@dataclass(frozen=True)
class Reference:
    """Result of a reference run. ``memory`` is equal on every device where it is ``defined``:
    nowhere if the program is not ``ordered``, that is, if no token orders some accesses of its
    modules.

    ``probe`` is a second program, run after a fault, that dumps the scratchpads to memory;
    ``probed`` is the memory after it.
    """

    outcome: Outcome
    ordered: bool
    memory: npt.NDArray[np.uint8]
    defined: npt.NDArray[np.bool_]
    probe: ProgramImage | None
    probed: npt.NDArray[np.uint8] | None


def reference_of(image: ProgramImage, is_ordered: bool = False) -> Reference:
    """Run ``image`` on the clear model; detect unordered accesses unless it ``is_ordered``."""
    config, size = image.config, -(-image.dram.size // 64) * 64
    memory = np.zeros(size, np.uint8)
    memory[: image.dram.size] = image.dram
    footprint = _Footprint(config, image.limits)
    watchers: list[Races | FalseClaims | UninitializedReads] = []
    if not is_ordered:
        watchers = [Races(config, size), FalseClaims(config), UninitializedReads(config)]
    model = ClearModel(config, memory, "program", [*watchers, footprint], image.origin)
    model.set_limits(image.limits)
    outcome = model.run(image.insn_addr, image.insn_count, None)
    footprint.run_ahead(image, outcome.tokens_left)
    ordered = not any(watcher.found for watcher in watchers)
    defined = footprint.defined_bytes(image, size) if ordered else np.zeros(size, bool)
    after = memory.copy()
    if outcome.fault is None or not ordered:
        return Reference(outcome, ordered, after, defined, None, None)
    shown = probe(config, footprint.defined_elements(), outcome.fault.instruction, image.origin)
    if shown.dram.size > size:
        return Reference(outcome, ordered, after, defined, None, None)
    memory[: shown.dram.size] = shown.dram
    model.set_limits(shown.limits)
    result = model.run(shown.insn_addr, shown.insn_count, None)
    assert result.fault is None, result.fault
    return Reference(outcome, ordered, after, defined, shown, memory)


class _Footprint(Observer):
    """Records scratchpad elements written, and instructions started but not finished."""

    def __init__(self, config: Config, limits: Limits) -> None:
        self._config = config
        self._limits = limits
        self._written = {memory: np.zeros(config.memory(memory).depth, bool) for memory in _SHOWN}
        self._unfinished: dict[int, isa.Instruction] = {}

    def begin(self) -> None:
        self._unfinished = {}

    def start(
        self, index: int, instruction: isa.Instruction, pops: Sequence[isa.TokenQueue]
    ) -> None:
        self._unfinished[index] = instruction

    def finish(self, index: int, module: isa.Module, pushes: Sequence[isa.TokenQueue]) -> None:
        del self._unfinished[index]

    def write(self, index: int, memory: str, elements: Elements) -> None:
        if memory in Memory.__members__ and Memory[memory] in self._written:
            self._written[Memory[memory]][elements] = True

    def run_ahead(self, image: ProgramImage, tokens: Mapping[str, int]) -> None:
        """Add the instructions that a machine may have executed behind one that waits for room for
        a token: its module issues younger ones up to the in-flight limit. ``tokens``: tokens left
        in each queue.
        """
        full = {
            queue for queue in isa.TOKEN_QUEUES if tokens[isa.queue_name(queue)] == isa.TOKEN_LIMIT
        }
        decode = isa.instruction_set(image.config).decode
        for index, instruction in list(self._unfinished.items()):
            if full.isdisjoint(pushes_of(instruction)):
                continue
            module = isa.module_of(instruction)
            stream = map(decode, image.instruction_bits()[index + 1 :])
            behind = [at for at in enumerate(stream, index + 1) if isa.module_of(at[1]) is module]
            self._unfinished.update(behind[: INSTRUCTIONS_IN_FLIGHT - 1])

    def defined_elements(self) -> dict[Memory, npt.NDArray[np.bool_]]:
        """Elements that were written, except those that an unfinished instruction may have
        overwritten in part.
        """
        result = {memory: written.copy() for memory, written in self._written.items()}
        for instruction in self._unfinished.values():
            if self._is_out_of_bounds(instruction):
                continue
            match instruction:
                case isa.Gemm() | isa.Alu():
                    # Instructions that overlapped with it may also have written.
                    result[Memory.ACC][:] = False
                case isa.Forward():
                    first = instruction.sram_base
                    result[Memory.INP][first : first + instruction.elements] = False
                case isa.Load() if instruction.memory != Memory.UOP:
                    memory = Memory(instruction.memory)
                    target = isa.filled_by(memory)
                    first = instruction.sram_base
                    result[target][first : first + instruction.elements] = False
        return result

    def defined_bytes(self, image: ProgramImage, size: int) -> npt.NDArray[np.bool_]:
        """All bytes except those of an unfinished STORE; if the bus rejected it, also except those
        of later STOREs, whose data may have been on the bus before the response.
        """
        defined = np.ones(size, bool)
        decode = isa.instruction_set(image.config).decode
        for index, instruction in self._unfinished.items():
            if isinstance(instruction, isa.Store) and not self._is_out_of_bounds(instruction):
                inside = self._mark(defined, image, instruction)
                if not inside:
                    for bits in image.instruction_bits()[index + 1 :]:
                        later = decode(bits)
                        if isinstance(later, isa.Store) and isa.illegal_reason(later) is None:
                            self._mark(defined, image, later)
        return defined

    def _is_out_of_bounds(self, instruction: isa.Instruction) -> bool:
        """Whether the instruction is a transfer that exceeds its limit, so that it accesses
        nothing.
        """
        if not isinstance(instruction, isa.Load | isa.Store):
            return False
        return leaves_bounds(instruction, self._limits)

    def _mark(self, defined: npt.NDArray[np.bool_], image: ProgramImage, store: isa.Store) -> bool:
        """Mark the bytes that ``store`` writes as undefined; returns whether all of them are in
        memory.
        """
        if store.elements > self._config.acc.depth:
            return True  # rejected before writing anything
        size = self._config.out.element_bytes
        rows = (store.dram_base + np.arange(store.y_size) * store.x_stride) * size - image.origin
        addresses = (rows[:, np.newaxis] + np.arange(store.x_size * size)).reshape(-1)
        inside = addresses[(addresses >= 0) & (addresses < defined.size)]
        defined[inside] = False
        return bool(inside.size == addresses.size)
