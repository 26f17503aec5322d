from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, PYNQ, Config, ConfigError

# The published vta_config.json of a simulated machine, as it stands.
PUBLISHED = {
    "TARGET": "sim",
    "HW_VER": "0.0.2",
    "LOG_INP_WIDTH": 3,
    "LOG_WGT_WIDTH": 3,
    "LOG_ACC_WIDTH": 5,
    "LOG_BATCH": 0,
    "LOG_BLOCK": 4,
    "LOG_UOP_BUFF_SIZE": 15,
    "LOG_INP_BUFF_SIZE": 15,
    "LOG_WGT_BUFF_SIZE": 18,
    "LOG_ACC_BUFF_SIZE": 17,
}


def test_the_default_is_the_published_machine() -> None:
    assert Config.from_dict(PUBLISHED) == Config() == PYNQ == PRESETS["pynq"]


def test_the_default_has_the_depths_of_the_isa_page() -> None:
    depths = {name: getattr(PYNQ, name).depth for name in ("uop", "inp", "wgt", "acc", "out")}
    assert depths == {"uop": 8192, "inp": 2048, "wgt": 1024, "acc": 2048, "out": 2048}


def test_elements_have_the_shapes_of_the_isa_page() -> None:
    config = Config(log_batch=1, log_block_in=3, log_block_out=4, log_uop_buff_size=14)
    assert (config.inp.rows, config.inp.columns, config.inp.element_bytes) == (2, 8, 16)
    assert (config.wgt.rows, config.wgt.columns, config.wgt.element_bytes) == (16, 8, 128)
    assert (config.acc.rows, config.acc.columns, config.acc.element_bytes) == (2, 16, 128)
    assert (config.out.rows, config.out.columns, config.out.element_bytes) == (2, 16, 32)
    assert config.uop.element_bytes == 4
    assert config.macs_per_cycle == 2 * 8 * 16


def test_four_bit_scalars_are_packed_two_per_byte() -> None:
    config = PRESETS["int4"]
    assert (config.inp_width, config.wgt_width, config.out_width) == (4, 4, 4)
    assert (config.inp.element_bytes, config.wgt.element_bytes) == (8, 128)


def test_stored_scalars_are_as_wide_as_inputs_unless_said() -> None:
    assert replace(PRESETS["tiny"], log_inp_width=2, log_out_width=-1).out_width == 4
    assert replace(PRESETS["tiny"], log_inp_width=2, log_out_width=4).out_width == 16


@pytest.mark.parametrize(
    ("memory", "name"),
    [
        (isa.Memory.UOP, "UOP"),
        (isa.Memory.WGT, "WGT"),
        (isa.Memory.INP, "INP"),
        (isa.Memory.ACC, "ACC"),
        (isa.Memory.OUT, "OUT"),
        (isa.Memory.ACC_8BIT, "OUT"),
    ],
)
def test_each_memory_id_has_its_geometry_in_dram(memory: isa.Memory, name: str) -> None:
    assert PYNQ.memory(memory).name == name


@pytest.mark.parametrize("name", PRESETS)
def test_a_printed_preset_reads_back_equal(name: str, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text(PRESETS[name].to_json())
    assert Config.load(str(path)) == PRESETS[name] == Config.load(name)


def test_the_printed_form_has_every_key_and_no_other() -> None:
    assert set(json.loads(PYNQ.to_json())) == (
        set(PUBLISHED) - {"TARGET", "HW_VER", "LOG_BLOCK"}
    ) | {
        "LOG_OUT_WIDTH",
        "LOG_BLOCK_IN",
        "LOG_BLOCK_OUT",
        "LOG_BUS_WIDTH",
        "OVERWRITE",
        "OVERLAP",
        "REQUANTIZE",
        "PAD_VALUE",
        "LOOKUP",
        "COUNTERS",
        "LOG_DRAM_SIZE",
    }


def test_log_block_sets_both_blocks() -> None:
    config = Config.from_dict({"LOG_BLOCK": 3, "LOG_WGT_BUFF_SIZE": 15, "LOG_ACC_BUFF_SIZE": 15})
    assert (config.block_in, config.block_out) == (8, 8)


@pytest.mark.parametrize("order", [1, -1], ids=["LOG_BLOCK first", "LOG_BLOCK last"])
def test_log_block_must_not_contradict_a_block(order: int) -> None:
    items = [("LOG_BLOCK", 3), ("LOG_BLOCK_OUT", 4)][::order]
    with pytest.raises(ConfigError, match="LOG_BLOCK = 3 contradicts LOG_BLOCK_OUT = 4"):
        Config.from_dict(dict(items))


def test_a_misspelt_key_is_named_with_the_keys_that_there_are() -> None:
    with pytest.raises(ConfigError, match="'LOG_BLOK' is not a configuration key.*LOG_BLOCK_IN"):
        Config.from_dict({"LOG_BLOK": 4})


@pytest.mark.parametrize("item", fields(Config), ids=lambda item: item.name)
@pytest.mark.parametrize("side", ["low", "high"])
def test_a_value_out_of_range_is_refused_with_its_range(item: Any, side: str) -> None:
    low, high = item.metadata["low"], item.metadata["high"]
    value = low - 2 if side == "low" else high + 1
    with pytest.raises(ConfigError) as error:
        replace(PYNQ, **{item.name: value})
    assert f"{item.name.upper()} = {value} is not a whole number from {low} to {high}" in str(
        error.value
    )


@pytest.mark.parametrize("value", [True, 4.0, "4", None, [4]], ids=repr)
def test_a_value_that_is_not_a_whole_number_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="LOG_BATCH = .* is not a whole number"):
        Config.from_dict({"LOG_BATCH": value})


def test_stored_scalars_cannot_be_wider_than_accumulators() -> None:
    with pytest.raises(ConfigError, match="LOG_OUT_WIDTH = 5 is wider than LOG_ACC_WIDTH = 4"):
        Config(log_acc_width=4, log_out_width=5)


# In the default configuration, micro-ops and word 1 of GEMM and ALU use every bit.
@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("log_uop_buff_size", 16, "GEMM would need 142 bits of 128 (wgt_factor_in is the"),
        ("log_acc_buff_size", 18, "a micro-op would need 34 bits (dst 12 + src 12 + wgt 10) of 32"),
        ("log_wgt_buff_size", 19, "a micro-op would need 33 bits (dst 11 + src 11 + wgt 11) of 32"),
        ("log_inp_buff_size", 16, "a micro-op would need 33 bits (dst 11 + src 12 + wgt 10) of 32"),
    ],
)
def test_a_buffer_too_large_for_the_encoding_is_named_with_the_largest_that_fits(
    key: str, value: int, problem: str
) -> None:
    with pytest.raises(ConfigError) as error:
        replace(PYNQ, **{key: value})
    assert problem in str(error.value)
    assert f"{key.upper()} = {value} (at most {value - 1} fits)" in str(error.value)
    assert replace(PYNQ, **{key: value - 1}) == PYNQ  # the values suggested by the message fit


@pytest.mark.parametrize(
    ("base", "changes", "sizes"),
    [
        # Depths stay: a smaller block makes smaller elements.
        ("pynq", {"LOG_BLOCK": 3}, (15, 14, 16, 16)),
        ("pynq-extended", {"LOG_BLOCK": 3}, (15, 14, 16, 16)),
        ("pynq", {"LOG_BLOCK": 5}, (15, 15, 18, 17)),  # the bytes fit as they are
        ("tiny", {"LOG_BLOCK": 5}, (10, 9, 11, 11)),  # two elements at least
        ("pynq", {"LOG_WGT_BUFF_SIZE": 20}, (15, 14, 20, 16)),
    ],
)
def test_changed_machines_have_scratchpads_that_fit(
    base: str, changes: dict[str, int], sizes: tuple[int, ...]
) -> None:
    values = PRESETS[base].changed(changes).to_dict()
    assert tuple(values[f"LOG_{name}_BUFF_SIZE"] for name in ("UOP", "INP", "WGT", "ACC")) == sizes
    assert values.items() >= {key: value for key, value in changes.items() if key in values}.items()


@pytest.mark.parametrize("name", PRESETS)
def test_every_block_and_batch_has_scratchpads_that_fit(name: str) -> None:
    square = PRESETS[name].log_block_in == PRESETS[name].log_block_out
    for block in range(2, 6):
        for batch in range(5):
            changed = PRESETS[name].changed({"LOG_BLOCK": block, "LOG_BATCH": batch})
            assert (changed.block_in, changed.batch) == (1 << block, 1 << batch)
            if square and (1 << block, 1 << batch) == (PRESETS[name].block_in, PRESETS[name].batch):
                assert changed == PRESETS[name]


def test_every_single_reduction_that_an_error_offers_does_fit() -> None:
    changes = {"log_inp_buff_size": 16}
    with pytest.raises(ConfigError) as error:
        replace(PYNQ, **changes)
    ways = re.findall(r"(LOG_\w+) = \d+ \(at most (\d+) fits\)", str(error.value))
    assert [key for key, _ in ways] == [
        "LOG_ACC_BUFF_SIZE",
        "LOG_INP_BUFF_SIZE",
        "LOG_WGT_BUFF_SIZE",
    ]
    for key, most in ways:
        assert replace(PYNQ, **{**changes, key.lower(): int(most)})
        with pytest.raises(ConfigError):
            replace(PYNQ, **{**changes, key.lower(): int(most) + 1})


def test_buffers_too_large_together_are_all_named() -> None:
    with pytest.raises(ConfigError) as error:
        replace(PYNQ, log_inp_buff_size=20, log_wgt_buff_size=24, log_acc_buff_size=22)
    assert "are too large together; reducing one is not enough" in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("log_inp_buff_size", 4, "LOG_INP_BUFF_SIZE = 4 .* 16 bytes it can be 5 to 20"),
        ("log_acc_buff_size", 23, "LOG_ACC_BUFF_SIZE = 23 .* 64 bytes it can be 7 to 22"),
        ("log_wgt_buff_size", 8, "LOG_WGT_BUFF_SIZE = 8 .* 256 bytes it can be 9 to 24"),
    ],
)
def test_a_buffer_has_two_elements_and_no_more_than_an_index_reaches(
    key: str, value: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(PYNQ, **{key: value})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("LOG_BATCH: 0", "the configuration is not JSON"),
        ("[" * 100_000, "the configuration is not JSON"),
        ("[3, 3]", "not a JSON object"),
        ('{"LOG_BATCH": NaN}', "LOG_BATCH = nan is not a whole number"),
    ],
    ids=["no JSON", "deep", "a list", "not a number"],
)
def test_a_text_that_is_not_a_configuration_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_json(text)


def test_errors_of_a_file_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    with pytest.raises(ConfigError, match=r"machine\.json is neither a preset \(tiny, .*No such f"):
        Config.load(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"machine\.json is not a text file"):
        Config.load(str(path))
    path.write_text('{"LOG_BATCH": 9}')
    with pytest.raises(ConfigError, match=r"machine\.json: LOG_BATCH = 9"):
        Config.load(str(path))
    with pytest.raises(ConfigError, match="Is a directory"):
        Config.load(str(tmp_path))


def test_extensions_are_off_unless_asked_for() -> None:
    assert PYNQ.extensions == frozenset()
    assert Config.from_dict({"OVERLAP": 1}).extensions == {"overlap"}
    everything = {
        "overwrite",
        "overlap",
        "requantize",
        "pad_value",
        "lookup",
        "depthwise",
        "forward",
        "multiply_add",
        "round_twice",
        "wgt_4bit",
    }
    assert PRESETS["pynq-extended"].extensions == everything
    assert PRESETS["tiny-extended"].extensions == everything


def test_an_extension_is_on_or_off() -> None:
    with pytest.raises(ConfigError, match="OVERLAP = 2 is not a whole number from 0 to 1"):
        Config(overlap=2)


def test_a_later_extension_leaves_the_text_of_machines_without_it_as_it_was() -> None:
    assert list(PYNQ.to_dict())[-1] == "LOG_DRAM_SIZE"
    extended = PRESETS["pynq-extended"]
    assert extended.to_dict()["DEPTHWISE"] == 1
    assert Config.from_json(extended.to_json()) == extended
    assert Config.from_json(PYNQ.to_json()) == PYNQ


def test_columns_share_lanes_with_requantize_alone() -> None:
    extended = PRESETS["tiny-extended"]
    shared = replace(extended, log_lane_columns=2)
    assert (extended.lane_columns, extended.alu_lanes) == (1, 4)
    assert (shared.lane_columns, shared.alu_lanes) == (4, 1)
    assert "LOG_LANE_COLUMNS" not in extended.to_dict()
    assert Config.from_json(shared.to_json()) == shared
    with pytest.raises(ConfigError, match="LOG_LANE_COLUMNS = 3 is not a whole number from 0 to 2"):
        replace(extended, log_lane_columns=3)
    with pytest.raises(ConfigError, match="shares lanes with REQUANTIZE, which must be 1"):
        replace(PRESETS["tiny"], log_lane_columns=1)


def test_depthwise_products_take_as_many_taps_as_there_are_lanes_for() -> None:
    tiny = PRESETS["tiny"]
    assert [replace(tiny, depthwise=on).taps for on in (0, 1)] == [1, 2]
    assert replace(PYNQ, depthwise=1).taps == 3
    with pytest.raises(ConfigError, match="reads 3 inputs at once, .* = 5 holds 2"):
        replace(PYNQ, depthwise=1, log_inp_buff_size=5)


def test_results_become_inputs_only_if_their_elements_are_as_wide() -> None:
    assert replace(PYNQ, forward=1).to_dict()["FORWARD"] == 1
    assert "FORWARD" not in PYNQ.to_dict()
    with pytest.raises(ConfigError, match="FORWARD makes inputs of 128 bits of results of 256"):
        replace(PYNQ, log_out_width=4, forward=1)


def test_a_table_fits_the_accumulators() -> None:
    sizes = {"log_block_in": 2, "log_block_out": 2, "log_inp_buff_size": 9, "log_uop_buff_size": 9}
    with pytest.raises(ConfigError, match="LOOKUP reads tables of 16 acc.* = 7 holds 8"):
        Config(**sizes, log_acc_buff_size=7, lookup=1)
    assert Config(**sizes, log_acc_buff_size=8, lookup=1).table_elements == 16


def test_requantization_needs_wide_accumulators() -> None:
    with pytest.raises(ConfigError, match="REQUANTIZE makes 8-bit results of 32-bit accumulators"):
        Config(requantize=1, log_acc_width=4, log_inp_width=2, log_out_width=2)


def test_two_roundings_are_a_flag_of_requantize() -> None:
    with pytest.raises(ConfigError, match="ROUND_TWICE is a flag of REQUANTIZE, which must be 1"):
        replace(PYNQ, round_twice=1)
    assert replace(PYNQ, round_twice=1, requantize=1).to_dict()["ROUND_TWICE"] == 1
    assert "ROUND_TWICE" not in replace(PYNQ, requantize=1).to_dict()


def test_multiply_add_needs_the_multipliers_of_requantize() -> None:
    message = "MULTIPLY_ADD needs the multipliers of REQUANTIZE, which must be 1"
    with pytest.raises(ConfigError, match=message):
        replace(PYNQ, multiply_add=1)
    assert replace(PYNQ, multiply_add=1, requantize=1).to_dict()["MULTIPLY_ADD"] == 1
    assert "MULTIPLY_ADD" not in PYNQ.to_dict()
