"""Parameters of a system of several machines: `SystemConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth_vta.hw.config import Config, ConfigError

MOST_MACHINES = 8
_BUS_BITS = (64, 128, 256, 512)
# A buffer of the arbiter holds as many bytes as a machine with a bus of 64 bits has outstanding,
# and at least this number of words.
_BUFFER_BYTES, _LEAST_WORDS = 4096, 128


def id_bits(machines: int) -> int:
    """Bits of an ID on the bus of several machines, which is the number of a machine."""
    return max(1, (machines - 1).bit_length())


@dataclass(frozen=True)
class SystemConfig:
    """``machines`` equal machines, each as in ``config``, on one memory bus of ``bus_bits``.

    By default the bus is as wide as the buses of all machines together, but not wider than 512
    bits. Raises `ConfigError` for other numbers of machines than 1 to 8, and for a bus that is
    narrower than the bus of a machine or has no width of AXI4 between 64 and 512 bits.
    """

    config: Config
    machines: int
    bus_bits: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.machines <= MOST_MACHINES:
            raise ConfigError(
                f"MACHINES = {self.machines} is not a whole number from 1 to {MOST_MACHINES}"
            )
        own = 8 * self.config.bus_bytes
        if not self.bus_bits:
            sum_of_all = own << (self.machines - 1).bit_length()
            object.__setattr__(self, "bus_bits", min(sum_of_all, _BUS_BITS[-1]))
        if self.machines == 1 and self.bus_bits != own:
            raise ConfigError(
                f"a single machine has a memory bus of {own} bits, not {self.bus_bits}"
            )
        if self.bus_bits not in _BUS_BITS or self.bus_bits < own:
            widths = ", ".join(str(bits) for bits in _BUS_BITS if bits >= own)
            raise ConfigError(
                f"a memory bus of {self.bus_bits} bits does not fit machines with buses of {own} "
                f"bits; the widths are {widths}"
            )

    @property
    def is_single(self) -> bool:
        """Whether the system is one machine with its own bus, without an arbiter."""
        return self.machines == 1

    @property
    def macs_per_cycle(self) -> int:
        """Multiply-accumulates per cycle of all machines."""
        return self.machines * self.config.macs_per_cycle

    @property
    def bus_bytes(self) -> int:
        """Bytes of a word of the shared memory bus."""
        return self.bus_bits // 8

    @property
    def buffer_words(self) -> int:
        """Words of the shared bus in each of the arbiter's two buffers per machine."""
        return max(_BUFFER_BYTES // self.bus_bytes, _LEAST_WORDS)

    @property
    def id_bits(self) -> int:
        """`id_bits` of the machines."""
        return id_bits(self.machines)
