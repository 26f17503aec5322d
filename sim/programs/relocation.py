"""The same program elsewhere in DRAM, found by base registers."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

from .image import ProgramImage
from .transfers import transfer_of

# Bases are multiples of this, or of an element that is larger: no bus is wider.
_ALIGNMENT = 64


def random_relocation(image: ProgramImage, chance: random.Random) -> ProgramImage:
    """`relocated`, to the end of DRAM or to anywhere else."""
    size = -(-image.dram.size // _ALIGNMENT) * _ALIGNMENT
    most = image.config.dram_bytes - size
    powers = [1 << log for log in range(12, most.bit_length())] or [0]
    to = chance.choice((most, chance.choice(powers), chance.randrange(most // _ALIGNMENT + 1)))
    return relocated(image, to, chance)


def relocated(image: ProgramImage, to: int, chance: random.Random) -> ProgramImage:
    """A program with bases of 0, moved to address ``to`` or close to it, with a different base for
    each memory that is not above the program's first access to it.

    It reads and writes the same data as ``image``, in the same order, and has the same faults.
    """
    firsts = _first_elements(image)
    sizes = {name: image.config.memory(name).element_bytes for name in isa.LIMITED}
    # Bases stay multiples of the largest element, so the program moves by such a multiple.
    step = max(_ALIGNMENT, *sizes.values())
    # No access comes before address 0, not even one that comes before the program's memory.
    least = -(min(image.origin, *(firsts[name] * sizes[name] for name in sizes)) // step * step)
    shift = max((to - image.origin) // step * step, least)
    before = {
        memory: _before(image.config, memory, first, shift, chance)
        for memory, first in firsts.items()
    }
    stream = image.instruction_bits()
    different = {bits: _moved(image.config, bits, before) for bits in set(stream)}
    bits = [different[word] for word in stream]
    moved = ProgramImage.assemble(
        image.config, image.dram, image.insn_addr + shift, bits, image.origin + shift
    )
    limits = {
        memory: max(1, limit - before[memory]) if limit else 0
        for memory, limit in image.limits.items()
    }
    bases = {memory: shift + count * sizes[memory] for memory, count in before.items()}
    return replace(moved, limits=limits, bases=bases)


def _before(
    config: Config, memory: isa.Memory, first: int, shift: int, chance: random.Random
) -> int:
    """How many elements before the base lie: the index of each becomes smaller by as many.

    None may be behind ``first``, and the base, which is ``shift`` further on, is an address.
    """
    size = config.memory(memory).element_bytes
    step = max(_ALIGNMENT // size, 1)
    least = -(-max(0, -shift) // (step * size))
    return step * chance.choice((least, first // step, chance.randint(least, first // step)))


def _first_elements(image: ProgramImage) -> dict[isa.Memory, int]:
    """Per memory, the lowest index in DRAM that transfers access; the index of the image's first
    element if there are none.
    """
    config = image.config
    found: dict[isa.Memory, list[int]] = {memory: [] for memory in isa.LIMITED}
    for bits in set(image.instruction_bits()):
        transfer = transfer_of(config, bits)
        if transfer is not None:
            found[isa.limited_as(isa.Memory(transfer.memory))].append(transfer.dram_base)
    return {
        memory: min(indices, default=image.origin // config.memory(memory).element_bytes)
        for memory, indices in found.items()
    }


def _moved(config: Config, bits: int, before: Mapping[isa.Memory, int]) -> int:
    """The instruction, with its index in DRAM counted from the base."""
    transfer = transfer_of(config, bits)
    if transfer is None:
        return bits
    memory = isa.limited_as(isa.Memory(transfer.memory))
    moved = replace(transfer, dram_base=transfer.dram_base - before[memory])
    return isa.instruction_set(config).encode(moved)
