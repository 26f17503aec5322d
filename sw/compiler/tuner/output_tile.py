"""Operators that compute their output tile by tile, with schedules that are their own model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.environment import Environment

from .schedule_model.cycles import ScheduleModel
from .schedule_model.regions import Regions
from .schedule_model.storage import ScheduleStorage
from .search import Candidates, Choice
from .workload import Scheduled

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class OutputTile:
    """Knobs: the ``extents`` of a tile along axes named by the operator. With ``in_turn`` the next
    tile is computed during a store. In a family of schedules the extents are arrays.
    """

    extents: tuple[int, ...]
    in_turn: bool = False


class Tiled(ABC):
    """Base of operators whose only knobs are those of `OutputTile`. Whether tiles fit and how many
    cycles they take follows from the schedule (`ScheduleModel`).
    """

    # Whether the schedule depends on `OutputTile.in_turn`.
    takes_turns: ClassVar[bool] = True

    @abstractmethod
    def candidate_tiles(self, config: Config) -> Array:
        """Extents of the tiles to consider, int64 (tiles, axes); `NO_TILES` if the machine lacks
        an extension that the operator needs.
        """

    @abstractmethod
    def scheduled(self, env: Environment, knobs: OutputTile) -> Scheduled:
        """The schedule for ``knobs``, and the arguments of the function."""

    def considered(self, config: Config) -> Choice[OutputTile]:
        """The tiles that fit, ranked by estimated cycles."""
        env, tiles = Environment(config), self.candidate_tiles(config)
        turns = (True, False) if self.takes_turns else (False,)
        if not len(tiles):
            return Choice([], [], [])
        cycles = np.full((len(turns), len(tiles)), np.inf)
        for number, in_turn in enumerate(turns):
            columns: Any = tuple(tiles.T)
            schedule, _ = self.scheduled(env, OutputTile(columns, in_turn))
            fits = ScheduleStorage(Regions(schedule), config).fits
            cycles[number] = np.where(fits, ScheduleModel(schedule, config).cycles, np.inf)
        turn, tile = np.nonzero(np.isfinite(cycles))
        fields = {"extents": tiles[tile], "in_turn": np.array(turns)[turn]}
        return Choice([], [], Candidates(cycles[turn, tile], fields, _knobs))


def _knobs(extents: list[int], in_turn: bool) -> OutputTile:
    return OutputTile(tuple(extents), in_turn)
