"""Softmax and normalizations of rows in integers: machine and ONNX Runtime agree in every element,
and with the float operator in all but a few.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from amaranth_vta.hw.config import Config
from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.operators import normalization, softmax
from amaranth_vta.sw.runtime.network.network_program import RunHost, RunLayer
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from tests.support.integer_rows import integer_rows, qdq_rows, random_rows

CONFIG = "pynq-extended"
SHARES = {np.int8: (2**-8, -128), np.uint8: (2**-8, 0)}
FUNCTIONS = ("Softmax", "LayerNormalization", "rms")


def case(
    function: str, shape: tuple[int, ...], dtype: type[np.integer] = np.int8, seed: int = 0
) -> tuple[Any, ...]:
    """The arguments of `qdq_rows`."""
    if function == "Softmax":
        scale, zero = SHARES[dtype]
        return function, shape, (0.05, scale), dtype, (3, zero)
    return function, shape, (0.05, 0.04), dtype, (7 + 128 * (dtype == np.uint8), 11), seed


def compared(
    model: onnx.ModelProto,
    device: str = "functional",
    config: str | Config = CONFIG,
    seed: int = 0,
) -> tuple[int, bool]:
    """The number of elements that differ from ONNX Runtime, and whether the machine ran all."""
    with Session(model, config, device=device) as session:
        inputs = {
            name: random_rows(info.shape or (), info.dtype.type, seed)
            for name, info in session.program.inputs.items()
        }
        if "mask" in inputs:
            inputs["mask"] = np.where(inputs["mask"] > 0, 1, 0).astype(np.int8)
        report = session.check(inputs)
        steps = session.program.steps
        on_machine = any(isinstance(step, RunLayer) for step in steps)
        return report.mismatches, on_machine and not any(isinstance(s, RunHost) for s in steps)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        ("Softmax", (3, 10, 48)),
        ("Softmax", (1, 2, 5, 100)),
        ("Softmax", (3, 1024)),
        ("Softmax", (7, 2)),
        ("LayerNormalization", (2, 9, 64)),
        ("LayerNormalization", (5, 16)),
        ("LayerNormalization", (2, 1024)),
        ("rms", (1, 288)),
        ("rms", (9, 7, 32)),
    ],
)
def test_machine_and_onnx_runtime_agree(
    function: str, shape: tuple[int, ...], dtype: type[np.integer]
) -> None:
    assert compared(integer_rows(*case(function, shape, dtype))) == (0, True)


@pytest.mark.parametrize("function", FUNCTIONS[1:])
def test_factors_may_be_negative(function: str) -> None:
    assert compared(integer_rows(*case(function, (6, 64), seed=1))) == (0, True)


def test_the_elements_of_a_softmax_may_be_negative() -> None:
    """Then the largest one is less than the zeros that fill its tiles."""
    with Session(integer_rows(*case("Softmax", (9, 7))), CONFIG) as session:
        (name,) = session.inputs
        negative = np.random.default_rng(3).integers(-128, 0, (9, 7)).astype(np.int8)
        assert session.check({name: negative}).mismatches == 0


def test_rows_of_a_tile_that_they_do_not_fill_have_all_their_elements() -> None:
    config = replace(Config.load(CONFIG), log_batch=1)
    assert compared(integer_rows(*case("Softmax", (4, 20))), config=config) == (0, True)


def test_a_softmax_may_be_symmetric() -> None:
    model = integer_rows("Softmax", (9, 70), (0.05, 2**-7))
    assert compared(model) == (0, True)


# All rows have one mask, each row of a group one, all heads of a position one, both, and each row.
@pytest.mark.parametrize("mask", [(48,), (5, 48), (2, 1, 1, 48), (3, 1, 48), (2, 3, 5, 48)])
def test_masks_may_differ_from_row_to_row(mask: tuple[int, ...]) -> None:
    model = integer_rows(*case("Softmax", (2, 3, 5, 48)), mask=mask)
    assert compared(model) == (0, True)


@pytest.mark.parametrize("elements", [2, 20, 1024])
def test_masked_rows_need_not_fill_tiles(elements: int) -> None:
    model = integer_rows(*case("Softmax", (3, 7, elements)), mask=(7, elements))
    assert compared(model) == (0, True)


@pytest.mark.parametrize(
    ("mask", "config", "reason"),
    [
        ((2, 1, 5, 48), CONFIG, "rows of one position are not next to each other"),
        ((5, 1), CONFIG, "its masks have no fixed shape, or other rows than its input"),
        ((5, 48), "batch2", "tiles hold 2 rows, and its mask is for one"),
    ],
)
def test_other_masks_are_left_to_the_host(mask: tuple[int, ...], config: str, reason: str) -> None:
    model = integer_rows(*case("Softmax", (2, 3, 5, 48)), mask=mask)
    extended = replace(Config.load(CONFIG), log_batch=1) if config == "batch2" else config
    assert compared(model, config=extended) == (0, False)
    with Session(model, extended) as session:
        reasons = [layer.reason for layer in session.layers if layer.operator == "RowSoftmax"]
    assert reasons == [reason]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_design_computes_the_same(function: str) -> None:
    assert compared(integer_rows(*case(function, (3, 32))), "rtl") == (0, True)


def test_the_design_masks_each_row_of_a_group() -> None:
    model = integer_rows(*case("Softmax", (2, 3, 32)), mask=(3, 32))
    assert compared(model, "rtl") == (0, True)


def results(model: onnx.ModelProto, inputs: dict[str, Any]) -> np.ndarray:
    """y in ONNX Runtime."""
    return run_session(exact_session(model.SerializeToString()), ["y"], inputs)["y"].astype(int)


@pytest.mark.parametrize("size", [64, 768])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_few_elements_differ_from_the_float_operator(function: str, size: int) -> None:
    given = case(function, (2000, size))
    inputs = {"x": random_rows((2000, size), np.int8, 5)}
    distance = abs(results(integer_rows(*given), inputs) - results(qdq_rows(*given), inputs))
    assert distance.max() <= 1
    assert distance.mean() < 5e-4


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_host_runs_graphs_that_the_machine_cannot(function: str) -> None:
    assert compared(integer_rows(*case(function, (4, 32))), config="pynq") == (0, False)


def test_rows_that_do_not_fill_tiles_are_normalized_on_the_host() -> None:
    assert compared(integer_rows(*case("rms", (4, 40)))) == (0, False)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_graph_with_another_constant_is_the_hosts(function: str) -> None:
    model = integer_rows(*case(function, (4, 32)))
    for item in model.graph.initializer:
        value = numpy_helper.to_array(item)
        if value.dtype == np.int32 and value.size == 1 and value.item() == 1 << 17:
            item.CopyFrom(numpy_helper.from_array(value - 5, item.name))
    assert compared(model) == (0, False)


@pytest.mark.parametrize(
    ("function", "module", "constant"),
    [
        ("Softmax", softmax, "RECIPROCALS"),
        ("Softmax", softmax, "_LEFT"),
        ("LayerNormalization", normalization, "RECIPROCAL_ROOTS"),
        ("rms", normalization, "_LEFT"),
    ],
)
def test_an_error_in_a_table_of_the_machine_is_seen(
    function: str, module: Any, constant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = integer_rows(*case(function, (8, 64)))
    wrong = getattr(module, constant).copy()
    wrong //= 2
    monkeypatch.setattr(module, constant, wrong)
    assert compared(model)[0] > 0


def test_presets_without_the_extensions_say_what_is_missing() -> None:
    model = integer_rows(*case("Softmax", (4, 32)))
    with Session(model, Config.load("pynq")) as session:
        reasons = [layer.reason for layer in session.layers if layer.operator == "RowSoftmax"]
    assert reasons == ["it needs a machine with FORWARD"]
