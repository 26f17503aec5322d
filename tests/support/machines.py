"""The machines whose simulators `make test` builds; tests of the RTL on others run nightly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

# Each path of the hardware that depends on the configuration is in one of these: scalars of 4 and
# 8 bits, one and two rows, square tiles and others, buses of 64 and 256 bits, extensions.
DAILY = (
    *("tiny", "batch2", "int4"),
    *("tiny-extended", "bus256-extended", "one-lane", "pynq-extended"),
)


def others_nightly(
    names: Iterable[str], machine_of: Callable[[str], str] = lambda name: name
) -> list[Any]:
    """Parameters of a test on the RTL: those on machines that are not in `DAILY` run nightly."""
    return [
        name if machine_of(name) in DAILY else pytest.param(name, marks=pytest.mark.nightly)
        for name in names
    ]
