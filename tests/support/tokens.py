"""The tokens of a program, and the program without one of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from amaranth_vta.hw import isa
from amaranth_vta.sim.programs.image import ProgramImage


@dataclass(frozen=True)
class Token:
    """One token: the ``number``-th of its queue, and the instructions that push and pop it."""

    queue: isa.TokenQueue
    number: int
    giver: int
    taker: int

    def __str__(self) -> str:
        giver, taker = (module.name.lower() for module in self.queue)
        return (
            f"token {self.number} from {giver} to {taker}, given by instruction {self.giver}, "
            f"taken by {self.taker}"
        )


def tokens_of(image: ProgramImage) -> list[Token]:
    """All tokens that are both pushed and popped. Queues keep their order, so the pop of each push
    follows from the stream alone."""
    givers: dict[isa.TokenQueue, list[int]] = defaultdict(list)
    takers: dict[isa.TokenQueue, list[int]] = defaultdict(list)
    decode = isa.instruction_set(image.config).decode
    for index, bits in enumerate(image.instruction_bits()):
        instruction = decode(bits)
        module = isa.module_of(instruction)
        for flag, step in _NEIGHBOURS.items():
            if getattr(instruction, flag):
                neighbour = isa.Module(module + step)
                if flag.startswith("push"):
                    givers[module, neighbour].append(index)
                else:
                    takers[neighbour, module].append(index)
    return [
        Token(queue, number, giver, taker)
        for queue in sorted(givers)
        for number, (giver, taker) in enumerate(zip(givers[queue], takers[queue], strict=False))
    ]


def without_token(image: ProgramImage, token: Token) -> ProgramImage:
    """The program in which ``token`` is neither pushed nor popped, otherwise unchanged.

    ``expected`` remains the whole program's result, except for the stream itself.
    """
    bits = image.instruction_bits()
    fields = isa.instruction_set(image.config).layouts[isa.Opcode.FINISH]
    giver, taker = token.queue
    given, taken = ("push_next", "pop_prev") if giver < taker else ("push_prev", "pop_next")
    bits[token.giver] &= ~fields[given].insert(1)
    bits[token.taker] &= ~fields[taken].insert(1)
    changed = ProgramImage.assemble(image.config, image.dram, image.insn_addr, bits)
    if image.expected is None:
        return changed
    expected = ProgramImage.assemble(image.config, image.expected, image.insn_addr, bits).dram
    return replace(changed, expected=expected)


_NEIGHBOURS = {"pop_prev": -1, "pop_next": 1, "push_prev": -1, "push_next": 1}
