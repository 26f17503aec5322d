"""A program that leaves zeros in all scratchpads, so that the next finds nothing of the one before.

Scratchpads keep their contents between runs. Where one machine serves several users, as a board
does, what was loaded, weights above all, could be read by whoever comes next.
"""

from __future__ import annotations

from collections.abc import Iterator

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Finish, Load, Memory


def scrub_stream(config: Config) -> bytes:
    """The instructions, which read and write no memory: all that they load is padding."""
    encode = isa.instruction_set(config).encode
    return b"".join(
        encode(instruction).to_bytes(isa.INSTRUCTION_BYTES, "little")
        for instruction in _instructions(config)
    )


def _instructions(config: Config) -> Iterator[isa.Instruction]:
    for memory in (Memory.INP, Memory.WGT, Memory.UOP, Memory.ACC):
        depth = config.memory(memory).depth
        # A row may have no more than half of the elements of the deepest scratchpad.
        rows = min(depth, 2)
        # The last LOAD of load tells compute, which ends the run, that it is done.
        ends = memory == Memory.WGT
        yield Load(memory=memory, y_size=0, x_size=depth // rows, y_pad_0=rows, push_next=int(ends))
    yield Finish(pop_prev=1)
