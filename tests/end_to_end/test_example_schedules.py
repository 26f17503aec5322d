"""The schedules of examples/schedules.py, in the form of VTA's tutorials, are correct."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import amaranth_vta as vta
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.environment import Environment

EXAMPLES = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "schedules.py"))
RNG = np.random.default_rng(5)


def called(name: str, env: Environment, device: str, **sizes: int) -> list[npt.NDArray[Any]]:
    """The arguments of a call with random bytes; the last one is the output."""
    with env:
        schedule, args = EXAMPLES[name](**sizes)
        function = vta.build(schedule, args, device=device)
    arrays = [RNG.integers(-128, 128, arg.shape).astype(arg.dtype) for arg in args]
    function(*arrays)
    return arrays


@pytest.mark.parametrize(("config", "device"), [("tiny", "functional"), ("tiny", "rtl")])
def test_vector_add_adds(config: str, device: str) -> None:
    a, b, c = called("vector_add", Environment(PRESETS[config]), device, tiles=16)
    np.testing.assert_array_equal(c, (a + b).astype(c.dtype))


@pytest.mark.parametrize(
    ("config", "device"),
    [("tiny", "functional"), ("batch2", "functional"), ("pynq", "functional"), ("tiny", "rtl")],
)
@pytest.mark.parametrize("shift", [0, 8])
def test_a_padded_convolution_in_two_virtual_threads(config: str, device: str, shift: int) -> None:
    sizes = {"inputs": 2, "outputs": 4, "size": 6, "rows": 3, "shift": shift}
    x, w, y = called("convolution", Environment(PRESETS[config]), device, **sizes)
    x = np.pad(x.astype(np.int32), [(0, 0), (0, 0), (1, 1), (1, 1), (0, 0), (0, 0)])
    sums = np.zeros(y.shape, np.int32)
    for dy in range(3):
        for dx in range(3):
            window = x[:, :, dy : dy + 6, dx : dx + 6]
            sums += np.einsum("nchwbk,ocjk->nohwbj", window, w[:, :, dy, dx].astype(np.int32))
    np.testing.assert_array_equal(y, np.clip(sums >> shift, 0, 127).astype(y.dtype))
