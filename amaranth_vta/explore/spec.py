"""The specification of an exploration: a SPEC.toml as a `Spec`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

from amaranth_vta.errors import VtaError
from amaranth_vta.fpga.chips import CHIPS, Chip
from amaranth_vta.hw.config import DEFAULT, Config, ConfigError
from amaranth_vta.sim.energy.technologies import TECHNOLOGIES
from amaranth_vta.sim.machine.dram import TIMINGS
from amaranth_vta.sw.runtime.array_file import FileLimitError, read_limited

METHODS = ("grid", "random", "optuna")
# Parameters beside the keys of a configuration: the number of machines, and the bits of the memory
# bus that they share.
MACHINE_COUNT, MEMORY_BUS = "MACHINES", "MEMORY_BUS"
# Energies by technology, and all metrics to minimize or limit, with units: columns of results.csv.
ENERGIES = {f"energy_{name}": f"pJ per image in {name}, estimated" for name in TECHNOLOGIES}
METRICS = {
    "cycles": "cycles per image",
    "seconds": "seconds per image at the clock of the chip",
    "bytes": "bytes moved per image",
    **ENERGIES,
    "lut": "LUTs",
    "ff": "flip-flops",
    "dsp": "multipliers",
    "bram36": "block RAMs of 36 kbit",
    "area": "largest share of what the chip has",
}
# Default limit on the host's share of MACs: a machine that leaves layers to the host would seem
# fast.
_HOST_SHARE = 0.1
_POINTS, _BATCH = 100, 24
_CHIP = "xc7z020"


class SpecError(VtaError, ValueError):
    """A SPEC is invalid; the message names the key."""


@dataclass(frozen=True)
class ResourceLimits:
    """The limits of a machine: the resources of the ``chip``, and the metrics in ``most``;
    ``host_share`` limits the host's share of MACs.
    """

    chip: Chip
    most: Mapping[str, float]
    host_share: float


@dataclass(frozen=True)
class SearchSettings:
    """How machines are chosen: by ``method``, until there are ``points`` rows, in batches of a
    fixed size, so that the choice does not depend on the number of workers.
    """

    method: str
    points: int
    seed: int
    batch: int


@dataclass(frozen=True)
class Spec:
    """An exploration. ``parameters`` are lists of values by configuration key, which override
    ``base``, or of `MACHINE_COUNT` and `MEMORY_BUS`; ``networks`` are files or names of generators.
    Several machines run an image each, or with ``split`` share each image. Of the front, at most
    ``rtl`` machines are simulated (None: a few, if that takes little time), ``synthesis`` are
    synthesized, and ``route`` are also placed and routed. ``clock_mhz`` is None for the chip's
    default.
    """

    networks: tuple[str, ...]
    memories: tuple[str, ...]
    parameters: Mapping[str, tuple[int, ...]]
    split: bool
    base: Config
    limits: ResourceLimits
    objectives: tuple[str, ...]
    search: SearchSettings
    rtl: int | None
    synthesis: int
    route: int
    clock_mhz: float | None

    @property
    def combinations(self) -> int:
        """The number of combinations of all parameter values, legal or not."""
        return prod(len(values) for values in self.parameters.values())

    @property
    def machines(self) -> int:
        """The number of machines needed for the points of the search."""
        return -(-self.search.points // (len(self.networks) * len(self.memories)))


def load_spec(path: str | Path) -> Spec:
    """Loads a SPEC file; paths in it are relative to its folder.

    Raises `SpecError`, `ConfigError` for the base configuration, and `OSError`.
    """
    try:
        values = tomllib.loads(read_limited(Path(path)).decode())
        return _spec(values, Path(path).parent)
    except (ValueError, RecursionError, FileLimitError) as error:
        if isinstance(error, ConfigError):
            raise
        raise SpecError(f"{path}: {error}") from None


def _spec(values: dict[str, Any], folder: Path) -> Spec:
    tables = {"parameters", "limits", "objectives", "search"}
    _require_known(
        "",
        values,
        {"networks", "memory", "base", "split", "rtl", "clock_mhz", "synthesis", "route", *tables},
    )
    for name in tables:
        if not isinstance(values.get(name, {}), dict):
            raise SpecError(f"{name} is not a table")
    networks = _texts("networks", values.get("networks"))
    memories = _texts("memory", values.get("memory", "ddr"))
    for memory in memories:
        if memory not in TIMINGS:
            known = ", ".join(TIMINGS)
            raise SpecError(f"memory: {memory!r} is not one that the estimate knows ({known})")
    parameters = _parameters(values.get("parameters", {}))
    rtl, limits = values.get("rtl"), _limits(values.get("limits", {}))
    route = _count("route", values.get("route", 0), 0)
    if route and not limits.chip.nextpnr:
        raise SpecError(f"route = {route}: only the vendor's tools place on {limits.chip.name}")
    return Spec(
        networks=tuple(_place(name, folder) for name in networks),
        memories=memories,
        parameters=parameters,
        split=_split(values.get("split", False), parameters),
        base=_base(values.get("base", DEFAULT), folder),
        limits=limits,
        objectives=_objectives(values.get("objectives", {})),
        search=_search(values.get("search", {})),
        rtl=None if rtl is None else _count("rtl", rtl, 0),
        synthesis=max(_count("synthesis", values.get("synthesis", 0), 0), route),
        route=route,
        clock_mhz=_number("clock_mhz", values["clock_mhz"]) if "clock_mhz" in values else None,
    )


def _parameters(table: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    keys = [item.name.upper() for item in fields(Config)]
    _require_known("parameters.", table, {*keys, "LOG_BLOCK", MACHINE_COUNT, MEMORY_BUS})
    if not table:
        raise SpecError("[parameters] is empty: it has lists of values by key, such as LOG_BLOCK")
    if "LOG_BLOCK" in table and table.keys() & {"LOG_BLOCK_IN", "LOG_BLOCK_OUT"}:
        raise SpecError("parameters.LOG_BLOCK stands for LOG_BLOCK_IN and LOG_BLOCK_OUT")
    found = {}
    for key, values in table.items():
        if not isinstance(values, list) or not values:
            raise SpecError(f"parameters.{key} is not a list of values")
        if any(type(value) is not int for value in values):
            raise SpecError(f"parameters.{key} has a value that is not a whole number")
        if len(set(values)) < len(values):
            raise SpecError(f"parameters.{key} has a value twice")
        found[key] = tuple(values)
    if MEMORY_BUS in found and MACHINE_COUNT not in found:
        raise SpecError(
            f"parameters.{MEMORY_BUS} is of several machines: add parameters.{MACHINE_COUNT}"
        )
    return found


def _split(value: Any, parameters: Mapping[str, tuple[int, ...]]) -> bool:
    if not isinstance(value, bool):
        raise SpecError(f"split = {value!r} is neither true nor false")
    if value and MACHINE_COUNT not in parameters:
        raise SpecError(f"split divides images between machines: add parameters.{MACHINE_COUNT}")
    return value


def _limits(table: dict[str, Any]) -> ResourceLimits:
    _require_known("limits.", table, {"device", "host_share", "mhz", *METRICS})
    name = table.get("device", _CHIP)
    if name not in CHIPS:
        raise SpecError(f"limits.device: {name!r} is not one of {', '.join(CHIPS)}")
    least = _number("limits.mhz", table.get("mhz", 0))
    chip = CHIPS[name]
    if chip.clock_mhz < least:
        raise SpecError(
            f"limits.mhz = {least:g} is more than the {chip.clock_mhz:g} MHz that machines reach "
            f"on {name}"
        )
    most = {key: _number(f"limits.{key}", table[key]) for key in METRICS if key in table}
    share = _number("limits.host_share", table.get("host_share", _HOST_SHARE))
    return ResourceLimits(chip, most, share)


def _objectives(table: dict[str, Any]) -> tuple[str, ...]:
    _require_known("objectives.", table, {"minimize"})
    wanted = _texts("objectives.minimize", table.get("minimize", ["cycles", "area"]))
    for name in wanted:
        if name not in METRICS:
            raise SpecError(f"objectives.minimize: {name!r} is not one of {', '.join(METRICS)}")
    return wanted


def _search(table: dict[str, Any]) -> SearchSettings:
    _require_known("search.", table, {item.name for item in fields(SearchSettings)})
    method = table.get("method", "optuna")
    if method not in METHODS:
        raise SpecError(f"search.method: {method!r} is not one of {', '.join(METHODS)}")
    points = table.get("points", 1 << 30 if method == "grid" else _POINTS)
    return SearchSettings(
        method,
        _count("search.points", points, 1),
        _count("search.seed", table.get("seed", 0), 0),
        _count("search.batch", table.get("batch", _BATCH), 1),
    )


def _base(value: Any, folder: Path) -> Config:
    if not isinstance(value, str):
        raise SpecError("base is neither the name of a preset nor a file")
    return Config.load(_place(value, folder))


def _place(name: str, folder: Path) -> str:
    """The path of a file in ``folder``; other names are unchanged."""
    return str(folder / name) if (folder / name).is_file() else name


def _require_known(where: str, table: Mapping[str, Any], known: set[str]) -> None:
    for key in table:
        if key not in known:
            raise SpecError(f"{where}{key} is unknown; there are {', '.join(sorted(known))}")


def _texts(key: str, value: Any) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not values or not all(isinstance(v, str) for v in values):
        raise SpecError(f"{key} is not a list of names")
    if len(set(values)) < len(values):
        raise SpecError(f"{key} has a name twice")
    return tuple(values)


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise SpecError(f"{key} = {value!r} is not a number of 0 or more")
    return float(value)


def _count(key: str, value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise SpecError(f"{key} = {value!r} is not a whole number of {least} or more")
    return value
