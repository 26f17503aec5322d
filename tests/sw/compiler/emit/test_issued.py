"""The array form of a loop nest's instructions equals the calls of its host code."""

from __future__ import annotations

from typing import Any

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.emit.host_code import HostCode
from amaranth_vta.sw.compiler.emit.issued import Issued, issued_by
from amaranth_vta.sw.compiler.emit.uop_kernel import UopKernel
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.nest.ir import Dma, Kernel
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import RoundingShift
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d, conv2d
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling

SHIFT = RoundingShift(4, -128, 127)


class Calls:
    """A mock runtime that records the host code's calls in order, each with its statement."""

    def __init__(self) -> None:
        self.statement = 0
        self.calls: list[tuple[int, ...]] = []

    def at(self, statement: int) -> None:
        self.statement = statement

    def load_buffer_2d(
        self, _: Any, offset: int, x: int, y: int, __: int, *pads: int, sram_index: int, **___: Any
    ) -> None:
        self.calls.append((self.statement, sram_index, x, y, *pads))

    def store_buffer_2d(self, sram: int, _: Any, offset: int, x: int, y: int, __: int) -> None:
        self.calls.append((self.statement, sram, x, y))

    def kernel(self, _: UopKernel) -> Any:
        return lambda _, *starts: self.calls.append((self.statement, *starts))

    def ignored(self, *_: Any) -> None:
        pass

    dep_push = dep_pop = wait_for_alu = ignored


def operands(item: Issued) -> list[list[int]]:
    stmt = item.statement
    if isinstance(stmt, Kernel):
        return [values.tolist() for values in item.starts(stmt)]
    assert isinstance(stmt, Dma)
    values = [stmt.x_size, stmt.y_size]
    if stmt.is_load:
        values += [stmt.x_pad[0], stmt.y_pad[0], stmt.x_pad[1], stmt.y_pad[1]]
    places = item.elements(stmt.sram, stmt.index)
    return [places.tolist(), *(item.values(value).tolist() for value in values)]


@pytest.mark.parametrize("config", ["tiny", "tiny-extended", "batch2"])
@pytest.mark.parametrize(
    "knobs",
    [
        Tiling(outputs=1, rows=2, columns=5, inputs=1, kernel_rows=3, ahead=True),
        Tiling(outputs=2, rows=4, columns=2, inputs=2, kernel_rows=3, weights_outside=True),
        # An odd number of turns, after which two copies continue to rotate.
        Tiling(outputs=1, rows=2, columns=5, inputs=2, kernel_rows=1, ahead=True),
        Tiling(outputs=1, rows=2, columns=2, inputs=2, kernel_rows=3, in_turn=True),
    ],
)
def test_arrays_hold_what_the_host_code_issues(config: str, knobs: Tiling) -> None:
    workload = Conv2d(1, 2, 3, 6, 5, (3, 3), SHIFT, pads=(1, 1, 1, 1))
    nest = conv2d(workload, Environment(PRESETS[config]), knobs).lowered.nest
    calls = Calls()
    code = HostCode(nest, marks=True)
    code.compile(calls.kernel)(calls, *nest.args)
    found: list[tuple[int, ...]] = [()] * len(calls.calls)
    for number, item in enumerate(issued_by(nest)):
        assert item.statement is code.statements[number][0]
        for place, *values in zip(item.numbers.tolist(), *operands(item), strict=True):
            assert not found[place]
            found[place] = (number, *values)
    assert found == calls.calls
    assert len(found) > 40
