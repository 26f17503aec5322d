"""The ALU reads both operands of an element of rows in one cycle."""

from __future__ import annotations

import pytest

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.nest.ir import Kernel, walk
from amaranth_vta.sw.compiler.operators.normalization import Normalization, normalization
from amaranth_vta.sw.compiler.operators.softmax import Softmax, softmax
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile

ENV = Environment(Config.load("pynq-extended"))
VECTORS = 4
FUNCTIONS = {
    "softmax": softmax(Softmax(1, 64, 6, VECTORS), ENV, OutputTile((1, 8, 6))),
    "masked softmax": softmax(Softmax(1, 64, 6, VECTORS, True), ENV, OutputTile((1, 8, 6))),
    "normalization": normalization(
        Normalization(64, VECTORS, 1 << 4, True), ENV, OutputTile((16,))
    ),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_operands_of_elements_are_in_different_banks_or_have_a_copy(function: Function) -> None:
    depth, read = ENV.config.acc.depth, 0
    for part in walk(function.lowered.nest.body):
        if not isinstance(part, Kernel) or part.uop.alu is None or part.uop.src is None:
            continue
        to, source = part.uop.dst.buffer, part.uop.src.buffer
        if to is source or to.shape[-3] != VECTORS:
            continue
        assert to.base is not None
        assert source.base is not None
        read += 1
        # The last quarter of the accumulators has a copy.
        differ = (to.base < depth // 2) != (source.base < depth // 2)
        assert differ or source.base >= depth * 3 // 4, f"{to.name} and {source.name}"
    assert read > 4
