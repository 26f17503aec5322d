"""Kernels of MULTIPLY_ADD: one factor per instruction, for all of its micro-ops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import AluOp
from amaranth_vta.sw.runtime.kernels import CommandError
from amaranth_vta.sw.runtime.runtime import Runtime
from tests.support.runtimes import MakeDevice, array_buffer, load, one_uop, runtime_of, stored


def test_a_multiply_add_takes_its_factor_from_wgt(fake_device: MakeDevice) -> None:
    device = fake_device(PRESETS["tiny-extended"])
    runtime = Runtime(device)
    multiply_add = AluOp.MULTIPLY_ADD

    def body() -> None:
        runtime.uop_loop_begin(3, 4, 5, 0)
        dst, src = np.array([1, 2]), np.array([3, 9])
        runtime.uop_push(1, 0, dst, src, 127, multiply_add, independent=1)
        runtime.uop_loop_end()

    runtime.push_alu(body)
    runtime.synchronize()
    loaded, alu, _ = device.runs[0]
    steps = {"iter_in": 3, "dst_factor_in": 4, "src_factor_in": 5}
    assert alu == isa.Alu(alu_opcode=multiply_add, immediate=127, uop_end=2, independent=1, **steps)
    # These micro-ops have no weight index.
    decode = isa.instruction_set(runtime.config).decode_uop
    words = device.read(4 * loaded.dram_base, 8).view(np.uint32)
    assert [decode(int(bits)) for bits in words] == [isa.Uop(1, 3), isa.Uop(2, 9)]


def test_a_multiply_add_without_one_factor_is_refused(fake_device: MakeDevice) -> None:
    runtime = Runtime(fake_device(PRESETS["tiny-extended"]))
    multiply_add = AluOp.MULTIPLY_ADD

    def looped(step: int) -> Callable[[], None]:
        def body() -> None:
            runtime.uop_loop_begin(2, 1, 1, step)
            runtime.uop_push(1, 0, 0, 1, 9, multiply_add)
            runtime.uop_loop_end()

        return body

    for body, message in (
        (one_uop(runtime, 1, 0, 0, 1, np.array([9, 8]), multiply_add), "the same factor, wgt"),
        (looped(1), "the same factor, wgt"),
        (one_uop(runtime, 1, 0, 0, 1, 128, multiply_add), "by ACC 128; the scratchpad has 0 to 12"),
        (one_uop(runtime, 1, 0, 0, 1, -1, multiply_add), "by ACC -1; the scratchpad has 0 to 127"),
        (one_uop(runtime, 1, 0, 0, 128, 9, multiply_add), "reaches ACC 128 to 128"),
        (one_uop(runtime, 1, 0, 0, 1, 9, multiply_add, 1, 5), "MULTIPLY_ADD has no immediate"),
    ):
        with pytest.raises(CommandError, match=message):
            runtime.push_alu(body)
    runtime.push_alu(looped(0))
    base = Runtime(fake_device())
    with pytest.raises(CommandError, match="is not an ALU opcode"):
        base.push_alu(one_uop(base, 1, 0, 0, 1, 9, multiply_add))


def test_kernels_with_other_factors_share_their_micro_ops() -> None:
    runtime = runtime_of(PRESETS["tiny-extended"])
    values = np.arange(32, dtype=np.int32).reshape(8, 4) % 7 - 3
    load(runtime, array_buffer(runtime, values), 8)
    for factor in (6, 7):
        runtime.push_alu(one_uop(runtime, 1, 0, np.arange(3), 5, factor, AluOp.MULTIPLY_ADD))
    loads = runtime.dump().count("LOAD UOP")
    expected = values.copy()
    for factor in (6, 7):
        expected[:3] = expected[:3] * values[factor] + values[5]
    assert (stored(runtime, 0, 8) == expected).all()
    assert loads == 1
