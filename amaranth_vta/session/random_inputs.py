"""Random network inputs, for runs without given inputs."""

from __future__ import annotations

import numpy as np

from amaranth_vta.sw.runtime.network.tile_layout import Array

from .session import Session


def random_inputs(session: Session) -> dict[str, Array]:
    """Inputs of one run, the same at each call: floats from 0 to 1, 8-bit integers of the full
    range, and 0 or 1 for wider integers, which are indices or masks.
    """
    random = np.random.default_rng(0)
    inputs: dict[str, Array] = {}
    for name, info in session.inputs.items():
        shape = tuple(session.images_per_run if size is None else size for size in info.shape)
        if np.issubdtype(info.dtype, np.integer) and info.dtype.itemsize > 1:
            inputs[name] = random.integers(0, 2, shape, info.dtype)
        elif np.issubdtype(info.dtype, np.integer):
            limits = np.iinfo(info.dtype)
            inputs[name] = random.integers(limits.min, limits.max, shape, info.dtype, True)
        else:
            inputs[name] = random.random(shape).astype(info.dtype)
    return inputs
