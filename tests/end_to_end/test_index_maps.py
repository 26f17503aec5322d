"""Operators that only move elements, between convolutions: on the machine, and exact."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from amaranth_vta.session import Session, random_inputs
from tests.support.index_map_forms import MAPS, SEQUENCE, SEQUENCES
from tests.support.quantized_forms import floats, matrix, qdq, static

USUAL = {"QuantizeLinear", "DequantizeLinear", "Reshape", "layout"}
OPTIONS: dict[str, dict[str, Any]] = {
    "uint8": {},
    "int8": {"activation_type": "QInt8", "weight_type": "QInt8"},
}
# TOO_LARGE: the weights for GEMM do not fit tiny-extended. WITHIN_TILES: moving channels within
# tiles takes GEMM, which on batch2 reads tiles of another size.
TOO_LARGE = {"pixel shuffle behind MaxPool"}
WITHIN_TILES = {
    *("channels reversed", "every second channel of every second column"),
    *("channels within a tile, and a crop", "SpaceToDepth of three channels", "pixel unshuffle"),
    *("DepthToSpace behind an addition", "pixel shuffle behind MaxPool"),
    *("a focus of three channels", "Pad of channels"),
    "Pad of channels, rows and columns of every second pixel",
}
WITH_VALUE = {"Pad with a value that is quantized"}
IN_FLOAT = {"two tensors side by side"}  # unless the quantizer quantizes between them
ON_RTL = (
    *("every second row and column", "columns reversed", "SpaceToDepth of three channels"),
    *("pixel unshuffle", "DepthToSpace of whole tiles", "Pad, negative", "Pad, reflect"),
    *("circular along both", "two tensors side by side", "a focus of columns first"),
)


def on_host(session: Session) -> dict[str, str]:
    """Operators on the host with their reasons, except conversions and views."""
    host = {layer.operator: layer.reason for layer in session.layers if layer.placed_on == "host"}
    return {operator: reason for operator, reason in host.items() if operator not in USUAL}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("name", MAPS)
def test_what_moves_is_on_the_machine(name: str, kind: str) -> None:
    with Session(MAPS[name].model(**OPTIONS[kind]), "pynq-extended") as session:
        assert session.check(random_inputs(session)).mismatches == 0
        assert on_host(session) == {}


@pytest.mark.parametrize(
    "config", ["tiny-extended", pytest.param("pynq", marks=pytest.mark.nightly), "batch2"]
)
@pytest.mark.parametrize("name", sorted(MAPS.keys() - IN_FLOAT))
def test_what_moves_is_exact_on_every_machine(name: str, config: str) -> None:
    model = MAPS[name].in_steps_of_powers_of_two(after=0.25 if config == "pynq" else 0.125)
    with Session(model, config) as session:
        assert session.check(random_inputs(session)).mismatches == 0
        host = on_host(session)
    if config == "batch2" and name in WITHIN_TILES:
        (reason,) = host.values()
        assert reason == "it moves channels within tiles of 4 int8, and GEMM reads tiles of 8 int8"
    elif config != "tiny-extended" and name in WITH_VALUE:
        assert host == {"Pad": "it pads with the value 4, and the machine with zeros"}
    elif config == "tiny-extended" and name in TOO_LARGE:
        (reason,) = host.values()
        assert "whose weights do not fit the machine" in reason
    else:
        assert host == {}


@pytest.mark.parametrize("name", SEQUENCES)
def test_elements_of_sequences_move_on_the_machine(name: str) -> None:
    first, last = "a = Conv(x, w(8,8,1), v(8))", "y = Conv(z, w(5,8,1), v(5))"
    make = partial(static, first + SEQUENCES[name] + last, SEQUENCE)
    with Session(make(), "tiny-extended") as session:
        assert session.check(random_inputs(session)).mismatches == 0
        assert on_host(session) == {}


@pytest.mark.parametrize("name", ON_RTL)
def test_what_moves_is_exact_on_rtl(name: str) -> None:
    with Session(MAPS[name].model(), "tiny-extended", "rtl") as session:
        assert session.check(random_inputs(session)).ok
        assert on_host(session) == {}


@pytest.mark.parametrize("quantized", ["before", "behind"])
@pytest.mark.parametrize("zero", [128, 90])
@pytest.mark.parametrize("attributes", ["pads=[1,1,1,1]", "strides=[2,2]", "pads=[0,2,1,0]"])
def test_blocks_of_the_first_image_go_into_the_kernel(
    quantized: str, zero: int, attributes: str
) -> None:
    """The Focus of YOLOv5 costs nothing: the host packs the image anyway."""
    starts = ["0,0", "1,0", "0,1", "1,1"]
    source = "q" if quantized == "before" else "x"
    parts = [
        f"r{at} = Slice({source}, i({start[0]}), i(99), i(2), i(2))"
        f"p{at} = Slice(r{at}, i({start[2]}), i(99), i(3), i(2))"
        for at, start in enumerate(starts)
    ]
    text = (
        (qdq("q", "x", 0.03, zero) if source == "q" else "")
        + "".join(parts)
        + "c = Concat<axis=1>(p0, p1, p2, p3)"
        + qdq("z", "c", 0.03, zero)
        + matrix("w", "k(16,12,3,3)")
        + f"d = Conv<{attributes}>(z, w, v(16))"
        + qdq("y", "d", 0.1)
    )
    with Session(floats(text, (1, 3, 16, 20)), "tiny-extended") as session:
        assert session.check(random_inputs(session)).mismatches == 0
        layers = [layer.operator for layer in session.layers if layer.placed_on == "machine"]
        assert on_host(session) == {}
    assert layers == ["QLinearConv"]


@pytest.mark.parametrize("name", ["pixel shuffle behind MaxPool", "a flip added to itself"])
def test_cycles_are_in_proportion_to_the_bytes_that_move(name: str) -> None:
    """At most four times the cycles in which memory transfers the sources and the result."""
    with Session(
        MAPS[name].model(), "pynq-extended", "estimate", dram="ddr", launch="layer"
    ) as session:
        session.run(random_inputs(session))
        for layer in session.layers:
            if layer.operator in ("DepthToSpace", "Slice"):
                assert layer.cycles is not None
                assert layer.bound_cycles is not None
                assert layer.cycles < 4 * layer.bound_cycles
