"""The kernel's pixels are packed into channels where that is cheaper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.layers.support.choose_packing import best_packing
from amaranth_vta.sw.compiler.graph.layers.support.tiled_constants import input_layout
from amaranth_vta.sw.runtime.network.packing import Window

PYNQ = PRESETS["pynq"]


@pytest.mark.parametrize(
    ("kernel", "stride", "image", "outputs", "packed"),
    [
        # 147 channels, padded to 160, as in ResNet-18.
        (7, 2, (1, 3, 224, 224), 64, (7, 7)),
        # Loading two tiles per pixel would take longer than multiplying by three rows of the
        # kernel.
        (3, 1, (1, 3, 32, 32), 16, (1, 3)),
        (3, 1, (1, 1, 8, 8), 16, (3, 3)),
        (3, 1, (1, 16, 32, 32), 16, None),
        (1, 1, (1, 3, 32, 32), 16, None),
    ],
)
def test_what_takes_the_fewest_cycles_is_packed(
    kernel: int, stride: int, image: Any, outputs: int, packed: tuple[int, int] | None
) -> None:
    window = Window((kernel, kernel), (stride, stride), (1, 1), (kernel // 2,) * 4)
    packing, left = best_packing(window, 0, image, outputs, input_layout(PYNQ), PYNQ)
    assert (packing.window.kernel if packing else None) == packed
    assert left.size(packing.image(image)[2:] if packing else image[2:]) == window.size(image[2:])


def test_the_host_pads_what_the_machine_cannot() -> None:
    config = PYNQ
    window, image = Window((3, 3), (1, 1), (1, 1), (0, 1, 0, 1)), (1, 16, 32, 32)
    packing, left = best_packing(window, 7, image, 16, input_layout(config), config)
    assert packing is not None
    assert packing.window.kernel == (1, 3)
    assert not any(left.pads)


def test_packing_is_a_line_of_the_table(qdq: Callable[..., Any]) -> None:
    graph = qdq(("n", 3, 8, 8), np.uint8).qdq(0.03, 117).conv(3, 5, pads=[1, 1, 1, 1]).qdq(0.3, 99)
    with Session(graph.model(), "tiny-extended") as session:
        report = session.check({"x": graph.images(2)})
        (layout,) = [layer for layer in session.layers if layer.operator == "layout"]
        assert [layer.placed_on for layer in session.layers] == ["host", "host", "machine", "host"]
    assert report.ok
    assert layout.reason == ("3x3 pixels as channels of one: it writes 1,792 bytes instead of 256")
