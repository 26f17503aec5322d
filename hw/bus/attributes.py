"""Attributes of the AXI4 master port: `BusAttributes`."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth_vta.hw.config import ConfigError


@dataclass(frozen=True)
class BusAttributes:
    """Attributes of each burst on the AXI4 master port.

    ``prot`` is AxPROT, by default unprivileged, non-secure, data; ``cache`` is AxCACHE, by default
    bufferable and modifiable, not allocated. Raises `ConfigError` if one does not fit.
    """

    prot: int = 0b010
    cache: int = 0b0011

    def __post_init__(self) -> None:
        for name, bits in (("prot", 3), ("cache", 4)):
            if not 0 <= (value := getattr(self, name)) < 1 << bits:
                raise ConfigError(f"Ax{name.upper()} = {value} is not a number of {bits} bits")


DEFAULT_ATTRIBUTES = BusAttributes()
