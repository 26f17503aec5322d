from __future__ import annotations

import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, PYNQ, Config
from amaranth_vta.hw.isa import Opcode, instruction_set

# First bit and width of every field in the default configuration, counted by hand on the page of
# the instruction set.
HEAD = {
    "opcode": (0, 3),
    "pop_prev": (3, 1),
    "pop_next": (4, 1),
    "push_prev": (5, 1),
    "push_next": (6, 1),
}
MEMORY = {
    **HEAD,
    "memory": (7, 3),
    "sram_base": (10, 16),
    "dram_base": (26, 32),
    "reserved": (58, 6),
    "y_size": (64, 16),
    "x_size": (80, 16),
    "x_stride": (96, 16),
    "y_pad_0": (112, 4),
    "y_pad_1": (116, 4),
    "x_pad_0": (120, 4),
    "x_pad_1": (124, 4),
}
LOOPS = {
    **HEAD,
    "reset": (7, 1),
    "uop_begin": (8, 13),
    "uop_end": (21, 14),
    "iter_out": (35, 14),
    "iter_in": (49, 14),
    "dst_factor_out": (64, 11),  # bit 63 is left empty
    "dst_factor_in": (75, 11),
    "src_factor_out": (86, 11),
    "src_factor_in": (97, 11),
}
DEFAULT = {
    Opcode.LOAD: MEMORY,
    Opcode.STORE: MEMORY,
    Opcode.GEMM: {**LOOPS, "wgt_factor_out": (108, 10), "wgt_factor_in": (118, 10)},
    Opcode.FINISH: HEAD,
    Opcode.ALU: {
        **LOOPS,
        "alu_opcode": (108, 3),
        "use_immediate": (111, 1),
        "immediate": (112, 16),
    },
}
UOP = {"dst": (0, 11), "src": (11, 11), "wgt": (22, 10)}

EXTENDED = PRESETS["pynq-extended"]
configs = pytest.mark.parametrize("config", PRESETS.values(), ids=PRESETS)


def places(layout: isa.Layout) -> dict[str, tuple[int, int]]:
    return {name: (item.offset, item.width) for name, item in layout.items()}


def test_default_fields_lie_where_the_isa_page_has_them() -> None:
    instructions = instruction_set(PYNQ)
    assert {op: places(layout) for op, layout in instructions.layouts.items()} == DEFAULT
    assert places(instructions.uop_layout) == UOP


def test_first_factors_move_into_word_0_where_they_fit() -> None:
    # 53 bits before them, and 4-bit factors: two fit.
    config = Config(
        log_block_in=2, log_block_out=2, log_uop_buff_size=10, log_inp_buff_size=9,
        log_wgt_buff_size=10, log_acc_buff_size=8,
    )  # fmt: skip
    for opcode in (Opcode.GEMM, Opcode.ALU):
        layout = places(instruction_set(config).layouts[opcode])
        assert layout["dst_factor_out"] == (53, 4)
        assert layout["dst_factor_in"] == (57, 4)
        assert layout["src_factor_out"][0] == 64  # the 3 bits that are left hold no factor


@configs
def test_fields_neither_overlap_nor_straddle_a_word(config: Config) -> None:
    instructions = instruction_set(config)
    for layout in instructions.layouts.values():
        end = 0
        for item in sorted(layout.values(), key=lambda item: item.offset):
            assert item.offset >= end
            end = item.offset + item.width
            assert item.offset // 64 == (end - 1) // 64
        assert end <= isa.INSTRUCTION_WIDTH


def test_an_extension_takes_the_highest_unused_bit() -> None:
    # The default encoding leaves only bit 63 unused, the tiny one the upper bits of word 1.
    for opcode in (Opcode.GEMM, Opcode.ALU, Opcode.MULTIPLY, Opcode.DEPTHWISE):
        assert instruction_set(EXTENDED).layouts[opcode]["independent"].offset == 63
        tiny = instruction_set(PRESETS["tiny-extended"]).layouts[opcode]
        assert tiny["independent"].offset == 127


def test_depthwise_overwrites_where_gemm_resets() -> None:
    layouts = instruction_set(EXTENDED).layouts
    assert layouts[Opcode.DEPTHWISE]["overwrite"].offset == layouts[Opcode.GEMM]["reset"].offset
    products = [isa.Gemm(uop_end=1), isa.Multiply(uop_end=1)]
    products += [isa.Depthwise(uop_end=1, overwrite=overwrite) for overwrite in range(2)]
    assert [product.overwrites for product in products] == [False, True, False, True]
