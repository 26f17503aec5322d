"""Fuzzing cases for several machines, which run a program each on one memory."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sim.model.execution import leaves_bounds
from amaranth_vta.sim.programs.image import ProgramImage, transfer_of

from .cases import Case, drawn

# Zones of the memory are multiples of a page. A gap in each zone, which no program may access,
# separates the programs of two machines.
_PAGE, _GAP = 4096, 1 << 15
# Disturbances happen before one of these cycles: soon after the launch, or at any time, since most
# programs take fewer cycles than the last.
_WITHIN = (1 << 6, 1 << 10, 1 << 13)


@dataclass(frozen=True)
class Systems:
    """Systems of ``machines`` on a bus of ``bus_bits``, by default as in `SystemConfig`."""

    machines: int
    bus_bits: int = 0


@dataclass(frozen=True)
class Disturbance:
    """What happens after ``cycles`` of a run, on devices with a clock: a stop of a ``machine``, or
    a reset of all if that is None. The programs then run again from the beginning.
    """

    machine: int | None
    cycles: int

    def __str__(self) -> str:
        what = "a reset" if self.machine is None else f"a stop of machine {self.machine}"
        return f"{what} after {self.cycles:,} cycles"


@dataclass(frozen=True)
class SystemCase:
    """A case for each machine of a system, all of them with the same configuration and timing of
    memory, on a bus of ``bus_bits``.
    """

    parts: tuple[Case, ...]
    bus_bits: int
    disturbance: Disturbance | None

    @property
    def number(self) -> int:
        return self.parts[0].number

    @property
    def config_name(self) -> str:
        return self.parts[0].config_name

    @property
    def dram(self) -> str:
        return self.parts[0].dram

    def images(self) -> list[ProgramImage]:
        """The programs in consecutive zones of one memory, an image each. The first one begins with
        the memory, and the last one ends with it.
        """
        found: list[ProgramImage] = []
        first, last = self.parts[0], self.parts[-1]
        begin = first.origin
        for part in self.parts:
            front, back = (0 if part is end else _GAP for end in (first, last))
            image = replace(part, origin=begin + front).image()
            size = front + image.dram.size + back
            if part is not last:
                size = -(-size // _PAGE) * _PAGE
            dram = np.zeros(size, np.uint8)
            dram[front : front + image.dram.size] = image.dram
            found.append(replace(image, dram=dram, origin=begin))
            begin += size
        return found


def system_case(
    seed: int, number: int, configs: Mapping[str, Config], systems: Systems
) -> SystemCase:
    """Case ``number`` of ``seed``: ``configs`` in rotation, one in three programs faulty, and every
    second case disturbed.
    """
    machines = range(systems.machines)
    parts = [
        drawn(random.Random(f"{seed}:{number}:{machine}"), number, configs) for machine in machines
    ]
    first, chance = parts[0], random.Random(f"disturbance:{seed}:{number}")
    disturbance = None
    if chance.random() < 1 / 2:
        machine = chance.choice((None, chance.choice(machines)))
        disturbance = Disturbance(machine, 1 + chance.randrange(chance.choice(_WITHIN)))
    return SystemCase(
        tuple(replace(part, dram=first.dram, origin=first.origin, moved=False) for part in parts),
        SystemConfig(first.config, systems.machines, systems.bus_bits).bus_bits,
        disturbance,
    )


def are_apart(images: Sequence[ProgramImage]) -> bool:
    """Whether no program has an instruction that would access the zone of another one. The zones
    of ``images`` are consecutive.
    """
    memory = range(images[0].origin, _end(images[-1]))
    return not any(_leaves_zone(image, memory) for image in images)


def _end(image: ProgramImage) -> int:
    """The address after the memory of ``image``, which devices round up to a bus word."""
    return image.origin + -(-image.dram.size // 64) * 64


def _leaves_zone(image: ProgramImage, memory: range) -> bool:
    begin, end = image.origin, _end(image)
    for bits in set(image.instruction_bits()):
        transfer = transfer_of(image.config, bits)
        if transfer is None or leaves_bounds(transfer, image.limits):
            continue
        size = image.config.memory(isa.Memory(transfer.memory)).element_bytes
        rows = transfer.dram_base + np.arange(transfer.y_size, dtype=np.int64) * transfer.x_stride
        # Only bytes in memory matter: there is a bus error at others.
        first = np.maximum(rows * size, memory.start)
        stop = np.minimum((rows + transfer.x_size) * size, memory.stop)
        if ((first < stop) & ((first < begin) | (stop > end))).any():
            return True
    return False
