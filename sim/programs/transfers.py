"""The LOADs and STOREs of a stream that access DRAM."""

from __future__ import annotations

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config


def transfer_of(config: Config, bits: int) -> isa.Load | isa.Store | None:
    """The instruction if it is legal and moves elements to or from DRAM, else None."""
    instructions = isa.instruction_set(config)
    transfer = instructions.decode(bits)
    if not isinstance(transfer, isa.Load | isa.Store) or instructions.problem(bits):
        return None
    return transfer if transfer.x_size and transfer.y_size else None
