"""Relocation of a program in DRAM, by base registers."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

from .image import ProgramImage, transfer_of

# Bases are multiples of this, the widest bus word, or of a larger element.
_ALIGNMENT = 64


def random_relocation(image: ProgramImage, chance: random.Random) -> ProgramImage:
    """`relocated` to the end of DRAM, to a power of two, or to a random address."""
    size = -(-image.dram.size // _ALIGNMENT) * _ALIGNMENT
    most = image.config.dram_bytes - size
    powers = [1 << log for log in range(12, most.bit_length())] or [0]
    to = chance.choice((most, chance.choice(powers), chance.randrange(most // _ALIGNMENT + 1)))
    return relocated(image, to, chance)


def relocated(image: ProgramImage, to: int, chance: random.Random) -> ProgramImage:
    """Move a program with bases of 0 to address ``to`` or close to it. Each memory gets a base of
    its own, at or below the program's first access to that memory.

    The result reads and writes the same data as ``image``, in the same order, and has the same
    faults.
    """
    firsts = _first_elements(image)
    sizes = {name: image.config.memory(name).element_bytes for name in isa.LIMITED}
    # The program moves by a multiple of the largest element, so that bases stay aligned.
    step = max(_ALIGNMENT, *sizes.values())
    # Lower bound of the shift: no access, even one below the program's memory, may move below
    # address 0.
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
    """Number of elements from address 0 to the base, before the shift by ``shift`` bytes. DRAM
    indices decrease by it.

    At most ``first``; the shifted base is not negative.
    """
    size = config.memory(memory).element_bytes
    step = max(_ALIGNMENT // size, 1)
    least = -(-max(0, -shift) // (step * size))
    return step * chance.choice((least, first // step, chance.randint(least, first // step)))


def _first_elements(image: ProgramImage) -> dict[isa.Memory, int]:
    """Per memory, the lowest DRAM index of the program's transfers; without any, the index of the
    first element of the image.
    """
    config = image.config
    found: dict[isa.Memory, list[int]] = {memory: [] for memory in isa.LIMITED}
    for bits in set(image.instruction_bits()):
        transfer = transfer_of(config, bits)
        if transfer is not None:
            memory = isa.Memory(transfer.memory)
            first = transfer.dram_base // isa.per_limited(memory)
            found[isa.limited_as(memory)].append(first)
    return {
        memory: min(indices, default=image.origin // config.memory(memory).element_bytes)
        for memory, indices in found.items()
    }


def _moved(config: Config, bits: int, before: Mapping[isa.Memory, int]) -> int:
    """The instruction with its DRAM index made relative to the base."""
    transfer = transfer_of(config, bits)
    if transfer is None:
        return bits
    memory = isa.Memory(transfer.memory)
    fewer = before[isa.limited_as(memory)] * isa.per_limited(memory)
    moved = replace(transfer, dram_base=transfer.dram_base - fewer)
    return isa.instruction_set(config).encode(moved)
