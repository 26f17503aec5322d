"""The machines whose simulators `make test` builds; tests of the RTL on others run nightly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from amaranth_vta.hw.config import PRESETS, Config
from tests.support.corners import CORNERS

# Each path of the hardware that depends on the configuration is in one of these: scalars of 4 and
# 8 bits, one and two rows, square tiles and others, buses of 64 and 256 bits, extensions, lanes of
# the ALU that columns share.
DAILY = ("tiny", "batch2", "int4", "tiny-extended", "bus256-one-lane", "pynq-extended")
_CONFIGS = [(PRESETS | CORNERS)[name] for name in DAILY]


def is_daily(config: Config) -> bool:
    """Whether `make test` builds the simulator of ``config``."""
    return config in _CONFIGS


def others_nightly(
    names: Iterable[str], is_daily: Callable[[str], bool] = DAILY.__contains__
) -> list[Any]:
    """Test parameters in which all ``names`` except the daily ones are marked `nightly`."""
    return [
        name if is_daily(name) else pytest.param(name, marks=pytest.mark.nightly) for name in names
    ]
