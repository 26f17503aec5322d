"""The tightest DRAM limits with which a program still runs."""

from __future__ import annotations

from amaranth_vta.hw import isa
from amaranth_vta.sw.runtime.device import Limits, end_in_dram

from .image import ProgramImage
from .transfers import transfer_of


def limits_of(image: ProgramImage) -> Limits:
    """Per memory, the index after the last element that legal LOADs and STOREs of the program
    access; 1 if there are none.
    """
    limits = dict.fromkeys(isa.LIMITED, 1)
    for bits in set(image.instruction_bits()):
        transfer = transfer_of(image.config, bits)
        if transfer is not None:
            memory = isa.limited_as(isa.Memory(transfer.memory))
            limits[memory] = max(limits[memory], end_in_dram(transfer))
    return limits
