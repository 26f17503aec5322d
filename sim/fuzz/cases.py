"""Numbered fuzzing cases, each determined by the seed and its number."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from amaranth_vta.hw.config import EXTENSIONS, PRESETS, Config, ConfigError
from amaranth_vta.sim.programs.faults import FAULT_KINDS, faulty_program
from amaranth_vta.sim.programs.image import ProgramImage, limits_of
from amaranth_vta.sim.programs.random_programs import legal_program, most_origin
from amaranth_vta.sim.programs.relocation import random_relocation

# Small presets that take different branches in hardware and software.
CONFIGS = ("tiny", "batch2", "int4", "tiny-extended")
# More than the memory of any case, and less than the DRAM of any machine.
_MEMORY = 1 << 24


@dataclass(frozen=True)
class Case:
    """A program for one machine. ``kinds`` are its faults, none for a legal program; ``dram`` is
    the timing of its memory, which begins at ``origin``. A ``bounded`` program has the tightest
    limits that it keeps to; a ``moved`` one is relocated, on devices with base registers.
    """

    number: int
    seed: int
    config_name: str
    config: Config
    dram: str
    origin: int
    kinds: tuple[str, ...]
    deep_tokens: bool
    bounded: bool
    moved: bool

    def image(self) -> ProgramImage:
        if self.kinds:
            return faulty_program(self.config, self.kinds, self.seed, self.origin)
        image = legal_program(
            self.config, self.seed, deep_tokens=self.deep_tokens, origin=self.origin
        )
        return replace(image, limits=limits_of(image)) if self.bounded else image

    @property
    def parts(self) -> tuple[Case, ...]:
        """The only case, as one per machine of a system."""
        return (self,)

    def images(self) -> list[ProgramImage]:
        """The only `image`, as one per machine of a system."""
        return [self.image()]

    def relocation(self, image: ProgramImage) -> ProgramImage | None:
        """``image``, of this case or shortened, relocated if ``moved``; otherwise None."""
        return random_relocation(image, random.Random(self.seed)) if self.moved else None


def case(seed: int, number: int, configs: Mapping[str, Config]) -> Case:
    """Case ``number`` of ``seed``: ``configs`` in rotation, one in three programs faulty."""
    return drawn(random.Random(f"{seed}:{number}"), number, configs)


def drawn(chance: random.Random, number: int, configs: Mapping[str, Config]) -> Case:
    """Case ``number``, with all choices but the configuration by ``chance``."""
    names = list(configs)
    name = names[number % len(names)]
    kinds: list[str] = []
    if chance.random() < 1 / 3:
        kinds = chance.sample((*FAULT_KINDS, "flipped_bits"), chance.choice((1, 1, 2, 3)))
    return Case(
        number=number,
        seed=chance.randrange(1 << 32),
        config_name=name,
        config=configs[name],
        dram=chance.choice(("ideal", "ddr", f"random:{number}", f"random:{number}")),
        origin=_origin(configs[name], chance),
        kinds=tuple(kinds),
        deep_tokens=chance.random() < 0.01,
        bounded=chance.random() < 0.25,
        moved=chance.random() < 0.4,
    )


def _origin(config: Config, chance: random.Random) -> int:
    """A start address of memory: 0, the highest possible, or between, often near a power of two.

    Always 0 if DRAM is no larger than the memory that a case may need.
    """
    most = most_origin(config, _MEMORY)
    if most <= 0:
        return 0
    power = 1 << chance.randrange(12, max(most.bit_length(), 13))
    return chance.choice((0, 0, most, min(power, most), chance.randrange(most >> 12) << 12))


def random_configs(seed: int, count: int) -> dict[str, Config]:
    """Machines with random parameters and extensions, by the names ``random-0`` and up."""
    chance = random.Random(f"configurations:{seed}")
    found: dict[str, Config] = {}
    while len(found) < count:
        config = _random_config(chance)
        if config is not None:
            found[f"random-{len(found)}"] = config
    return found


def named_configs(names: tuple[str, ...]) -> dict[str, Config]:
    return {name: PRESETS[name] for name in names}


def _random_config(chance: random.Random) -> Config | None:
    """A machine whose memories have at most a few hundred elements; None if the random parameters
    are illegal.
    """
    batch, block_in, block_out = (
        chance.choice((0, 0, 1)),
        chance.randint(1, 4),
        chance.randint(1, 4),
    )
    width = chance.choice((3, 3, 2))
    extensions = {name: chance.randrange(2) for name in EXTENSIONS}
    columns = chance.randint(0, 2) if extensions["requantize"] else 0
    try:
        config = Config(
            log_inp_width=width,
            log_wgt_width=chance.choice((width, width, 3, 2)),
            log_acc_width=chance.choice((5, 5, 5, 4)),
            log_out_width=chance.choice((width, 3, 4)),
            log_batch=batch,
            log_block_in=block_in,
            log_block_out=block_out,
            log_uop_buff_size=chance.randint(5, 10),
            log_inp_buff_size=batch + block_in + chance.randint(1, 8),
            log_wgt_buff_size=block_in + block_out + chance.randint(1, 7),
            log_acc_buff_size=batch + block_out + 2 + chance.randint(2, 8),
            log_bus_width=chance.choice((6, 6, 6, 7, 8, 9)),
            log_dram_size=chance.choice((46, 46, 46, chance.randint(25, 45))),
            log_lane_columns=columns,
            **extensions,
        )
    except ConfigError:
        return None
    return config
