"""Outputs that are sequences of tensors."""

from __future__ import annotations

from collections.abc import Mapping

from amaranth_vta.sw.runtime.network.tile_layout import Array


def flattened(outputs: Mapping[str, Array]) -> dict[str, Array]:
    """The ``outputs`` as arrays: a list of arrays, the value of a sequence, becomes one array per
    element, named ``NAME[0]``, ``NAME[1]`` and so on.
    """
    found: dict[str, Array] = {}
    for name, value in outputs.items():
        if isinstance(value, list):
            found |= {f"{name}[{number}]": element for number, element in enumerate(value)}
        else:
            found[name] = value
    return found
