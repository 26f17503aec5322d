"""Small configurations at the corners of the design space, which exercise other paths in hardware
and software.

For tests, in addition to the presets: each is small enough for simulation in Python.
"""

from __future__ import annotations

from dataclasses import replace

from amaranth_vta.hw.config import PRESETS, Config

CORNERS: dict[str, Config] = {
    # Scratchpads of two elements, the fewest possible.
    "smallest": Config(
        log_block_in=2,
        log_block_out=2,
        log_uop_buff_size=3,
        log_inp_buff_size=3,
        log_wgt_buff_size=5,
        log_acc_buff_size=5,
    ),
    "largest tiles": Config(
        log_batch=4,
        log_block_in=5,
        log_block_out=5,
        log_out_width=5,
        log_inp_buff_size=14,
        log_wgt_buff_size=15,
        log_acc_buff_size=16,
        log_uop_buff_size=10,
    ),
    # Four-bit inputs and weights, and tiles that are not square.
    "int4 4x8": Config(
        log_inp_width=2,
        log_wgt_width=2,
        log_block_in=2,
        log_block_out=3,
        log_uop_buff_size=8,
        log_inp_buff_size=6,
        log_wgt_buff_size=8,
        log_acc_buff_size=10,
    ),
    # Narrow accumulators, stored at full width, two per bus word.
    "acc16": Config(
        log_acc_width=4,
        log_out_width=4,
        log_block_in=2,
        log_block_out=2,
        log_uop_buff_size=8,
        log_inp_buff_size=8,
        log_wgt_buff_size=8,
        log_acc_buff_size=8,
        log_bus_width=7,
    ),
    # A beat holds many elements or only part of one, with scalars of different widths.
    "bus256": Config(
        log_wgt_width=2,
        log_block_in=5,
        log_block_out=3,
        log_uop_buff_size=8,
        log_inp_buff_size=10,
        log_wgt_buff_size=12,
        log_acc_buff_size=10,
        log_bus_width=8,
    ),
    "bus512": Config(
        log_inp_width=2,
        log_wgt_width=2,
        log_out_width=3,
        log_uop_buff_size=9,
        log_inp_buff_size=9,
        log_wgt_buff_size=12,
        log_acc_buff_size=12,
        log_bus_width=9,
    ),
    # All extensions, and beats of two accumulators: the writes of one cycle may lie in both banks,
    # or partly in a table or a copy.
    "bus256-extended": replace(PRESETS["tiny-extended"], log_bus_width=8),
    # One lane of the ALU for all four columns.
    "one-lane": replace(PRESETS["tiny-extended"], log_lane_columns=2),
    "bus256-one-lane": replace(PRESETS["tiny-extended"], log_bus_width=8, log_lane_columns=2),
}
