"""A program that clears all scratchpads, so that the next user cannot read the previous user's
data.

Scratchpads keep their contents between runs. On a machine shared by several users, such as a board,
loaded data, above all weights, would be readable by the next user.
"""

from __future__ import annotations

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Memory, Module

from .instruction_words import Words
from .stream import Stream
from .transfers import TransferEncoder


def scrub_stream(config: Config) -> Words:
    """The instructions; they do not access memory: all loads are only padding."""
    encoder, stream = TransferEncoder(config), Stream()
    for module, memory in (
        (Module.LOAD, Memory.INP),
        (Module.LOAD, Memory.WGT),
        (Module.COMPUTE, Memory.UOP),
        (Module.COMPUTE, Memory.ACC),
    ):
        depth = config.memory(memory).depth
        for transfer in encoder.padding(encoder.memory(memory), 0, depth):
            stream.append(module, transfer.bits)
    # Compute ends the run, so it waits for load.
    stream.push(Module.LOAD, Module.COMPUTE)
    stream.pop(Module.LOAD, Module.COMPUTE)
    stream.flush_pops()
    return stream.finished()
