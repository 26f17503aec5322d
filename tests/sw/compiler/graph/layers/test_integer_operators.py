"""Tables of one and two operands run on the machine, with the results of LiteRT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amaranth_vta.networks.tflite_file import TfliteTensor
from amaranth_vta.networks.tflite_network import reference
from amaranth_vta.session import Session
from tests.support.tflite_files import DrawnNetwork

CONFIG = "tiny-extended"
Step = Callable[[DrawnNetwork, TfliteTensor], TfliteTensor]


def two(operator: str, activation: str = "NONE") -> Step:
    """An operator of the image and of a convolution of it."""
    return lambda net, x: net.apply(
        operator, x, net.conv(x, x.shape[3], act="NONE"), fused_activation_function=activation
    )


def by_channel(operator: str) -> Step:
    """An operator of the image and of a constant that differs by channel."""

    def apply(net: DrawnNetwork, x: TfliteTensor) -> TfliteTensor:
        constant = net.factors(np.asarray(net.rng.normal(0, 1, (1, 1, x.shape[3])), np.float32))
        settings = {} if operator == "PRELU" else {"fused_activation_function": "NONE"}
        return net.apply(operator, x, constant, **settings)

    return apply


def one(operator: str, **options: Any) -> Step:
    return lambda net, x: net.apply(operator, x, **options)


STEPS: dict[str, Step] = {
    "add": two("ADD"),
    "add relu": two("ADD", "RELU"),
    "sub": two("SUB"),
    "mul": two("MUL"),
    "mul relu6": two("MUL", "RELU6"),
    "add by channel": by_channel("ADD"),
    "mul by channel": by_channel("MUL"),
    "prelu by channel": by_channel("PRELU"),
    "logistic": one("LOGISTIC"),
    "tanh": one("TANH"),
    "hard_swish": one("HARD_SWISH"),
    "leaky_relu": one("LEAKY_RELU", alpha=0.1),
}


def steps(names: tuple[str, ...]) -> DrawnNetwork:
    """Each step between convolutions, so that none reads an input of the network."""
    net = DrawnNetwork(8)
    x = net.conv(net.given(1, 4, 4, 3), 4)
    for name in names:
        x = net.conv(STEPS[name](net, x), 4)
    net.output(x)
    return net


def on_host(session: Session) -> set[str]:
    """The operators of the file that the host runs."""
    return {
        layer.name.rstrip("0123456789")
        for layer in session.layers
        if layer.placed_on == "host" and "/" not in layer.name
    }


def assert_exact(names: tuple[str, ...]) -> set[str]:
    net = steps(names)
    data = net.bytes()
    with Session(data, CONFIG) as session:
        for uniform in (True, False):
            run = net.random_inputs(uniform)
            found = session.run(dict(zip(session.inputs, run, strict=True)))
            (wanted,) = reference(data, *run)
            np.testing.assert_array_equal(found[next(iter(session.outputs))], wanted)
        return on_host(session)


@pytest.mark.parametrize("name", ["sub", "mul relu6"])
def test_two_tensors_are_added_or_multiplied_on_the_machine(name: str) -> None:
    assert_exact((name,))


def test_all_tables_are_the_machines_and_exact() -> None:
    host = assert_exact(tuple(STEPS))
    assert {name for name in host if not name.startswith("conv")} == set()


def test_a_table_along_an_axis_that_is_no_channel_is_the_hosts() -> None:
    net = DrawnNetwork(9)
    x = net.conv(net.given(1, 4, 4, 3), 4)
    flat = net.apply("RESHAPE", x, net.values([1, 8, 8]))
    constant = net.factors(np.asarray(net.rng.normal(0, 1, (1, 1, 8)), np.float32))
    net.output(net.apply("MUL", flat, constant, fused_activation_function="NONE"))
    data, run = net.bytes(), net.random_inputs(uniform=True)
    with Session(data, CONFIG) as session:
        found = session.run(dict(zip(session.inputs, run, strict=True)))
        np.testing.assert_array_equal(found[next(iter(session.outputs))], reference(data, *run)[0])
