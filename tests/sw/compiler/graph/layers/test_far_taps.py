"""Convolutions of sequences whose taps are too far apart for a tile of one row."""

from __future__ import annotations

import pytest

from amaranth_vta.session import Session, random_inputs
from tests.support.quantized_forms import static

BEFORE = "a = Conv(x, w(8,8,1), v(8))"


def run(text: str, length: int, config: str = "tiny-extended", device: str = "functional") -> str:
    """Check the network of ``text`` on sequences of ``length``; return the machine's operators."""
    with Session(static(text, (1, 8, length)), config, device) as session:
        assert session.check(random_inputs(session)).ok
        layers = session.layers
    host = {layer.operator for layer in layers if layer.placed_on == "host"}
    assert host <= {"QuantizeLinear", "DequantizeLinear", "Reshape", "layout"}
    return " ".join(layer.operator for layer in layers if layer.placed_on == "machine")


@pytest.mark.parametrize(
    ("length", "attributes"),
    [
        (4000, "dilations=[1024], pads=[1024,1024]"),  # in rows of 32
        (4096, "dilations=[1024], pads=[2048,0]"),  # in rows of 1,024
        (3001, "dilations=[1024], pads=[1024,0]"),  # in rows of one
        (2600, "dilations=[1024]"),
        (4100, "dilations=[2000], strides=[2], pads=[10,1990]"),
        (3072, "dilations=[1024], strides=[2], pads=[1024,1024]"),
        (3073, "dilations=[1023], strides=[3], pads=[7,2000]"),
        (3000, "dilations=[500], strides=[3], pads=[250,740]"),
    ],
)
@pytest.mark.parametrize(("group", "inputs"), [(1, 8), (8, 1), (2, 4)])
def test_taps_far_apart_are_exact_on_the_machine(
    length: int, attributes: str, group: int, inputs: int
) -> None:
    conv = f"Conv<{attributes}, group={group}>(a, w(16,{inputs},3), v(16))"
    assert run(f"{BEFORE} y = {conv}", length) == "QLinearConv QLinearConv"


def test_the_host_may_make_the_sequence() -> None:
    run("y = Conv<dilations=[1024], pads=[1024,1024]>(x, w(8,8,3))", 4000, "pynq-extended")


def test_what_follows_finds_a_sequence() -> None:
    """A pooling moves along the sequence, not over its rows."""
    conv = "b = Conv<dilations=[64], pads=[64,64]>(a, w(8,8,3)) c = Relu(b)"
    pooling = "d = MaxPool<kernel_shape=[2], strides=[2]>(c) y = Conv(d, w(8,8,2))"
    run(f"{BEFORE} {conv} {pooling}", 512)


def test_taps_far_apart_are_exact_on_rtl() -> None:
    run(f"{BEFORE} y = Conv<dilations=[100], pads=[100,100]>(a, w(8,8,3))", 300, device="rtl")


def test_more_padding_than_an_instruction_forwards_keeps_an_expansion_apart() -> None:
    conv = "y = Conv<dilations=[64], pads=[128,18], group=8>(a, w(16,1,3), v(16))"
    assert run(f"{BEFORE} {conv}", 192, "pynq-extended") == "QLinearConv QLinearConv"
