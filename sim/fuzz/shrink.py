"""Minimizes a program that shows a difference between devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from amaranth_vta.hw import isa
from amaranth_vta.sim.programs.image import ProgramImage

# Maximum number of programs tried.
_MAX_TRIALS = 200


def shrink(image: ProgramImage, differs: Callable[[ProgramImage], bool]) -> ProgramImage:
    """Shortest program found for which ``differs`` holds, as it does for ``image``.

    First reduces instructions to their tokens, in chunks of decreasing size, then removes
    instructions in the same way.
    """
    trials = _Trials(image, differs)
    trials.replace_chunks(trials.empty)
    trials.replace_chunks(lambda _: None)
    return trials.image


class _Trials:
    def __init__(self, image: ProgramImage, differs: Callable[[ProgramImage], bool]) -> None:
        self.image = image
        self._differs = differs
        self._left = _MAX_TRIALS
        self._instructions = isa.instruction_set(image.config)

    def replace_chunks(self, change: Callable[[int], int | None]) -> None:
        """Apply ``change`` to chunks of instructions, from half of the stream down to single ones.
        ``change`` maps 128 bits to 128 bits, or to None to remove the instruction.
        """
        size = max(1, self.image.insn_count // 2)
        while self._left:
            at = 0
            while at < self.image.insn_count and self._left:
                # After a removal, the next chunk is at the same position.
                at += 0 if self._try(at, size, change) else size
            if size == 1:
                return
            size //= 2

    def empty(self, bits: int) -> int:
        """The instruction reduced to its tokens."""
        instruction = self._instructions.decode(bits)
        if self._instructions.problem(bits) is not None:
            return bits
        tokens = {
            name: getattr(instruction, name)
            for name in ("pop_prev", "pop_next", "push_prev", "push_next")
        }
        match instruction:
            case isa.SetPadding():
                return bits
            case isa.Load():
                nothing: isa.Instruction = isa.Load(memory=instruction.memory, x_size=0, **tokens)
            case isa.Store() | isa.Forward():
                nothing = isa.Store(x_size=0, **tokens)
            case isa.Gemm() | isa.Alu():
                nothing = isa.Gemm(uop_end=0, **tokens)
            case _:
                return bits
        return self._instructions.encode(nothing)

    def _try(self, at: int, size: int, change: Callable[[int], int | None]) -> bool:
        """Change one chunk if the program still differs; returns whether it has become shorter."""
        stream = self.image.instruction_bits()
        changed = [change(bits) for bits in stream[at : at + size]]
        kept = [bits for bits in changed if bits is not None]
        candidate = [*stream[:at], *kept, *stream[at + size :]]
        if candidate == stream or not candidate:
            return False
        self._left -= 1
        image = _with_stream(self.image, candidate)
        if not self._differs(image):
            return False
        self.image = image
        return len(candidate) < len(stream)


def _with_stream(image: ProgramImage, stream: list[int]) -> ProgramImage:
    first = image.insn_addr - image.origin
    dram = image.dram.copy()
    dram[first : first + image.insn_count * isa.INSTRUCTION_BYTES] = 0
    without = replace(image, dram=dram, expected=None)
    shorter = ProgramImage.assemble(
        without.config, without.dram, without.insn_addr, stream, without.origin
    )
    return replace(shorter, limits=image.limits)
