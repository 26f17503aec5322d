"""One small file for each form of quantized networks: everything that can be is on the machine."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.report.host_summary import summary
from amaranth_vta.session import Session, random_inputs
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session
from tests.support.branching_forms import decided
from tests.support.constant_forms import half_scales, moved_weights, small_weights
from tests.support.few_bits import FewBits
from tests.support.quantized_forms import FORMS
from tests.support.transformer_files import FILES

# Forms that canonicalization changes before the comparison with it.
CHANGED = {**moved_weights(), **small_weights(), **half_scales(), **decided()}

# Operators that every network has, or whose cost is negligible.
USUAL = {"QuantizeLinear", "DequantizeLinear", "Reshape", "Flatten", "layout"}
ON_RTL = (
    *("weights of uint8, per channel", "a channel of scale 1e-35", "MatMul and Add", "a shuffle"),
    *("Conv1d, dilated and grouped", "Add per channel", "a gate per channel", "Gelu by Erf"),
    *("border averages", "ConvTranspose, grouped", "Transpose to channels last and back"),
    *("attention of int8", "QLinearConcat"),
)


@pytest.mark.parametrize("name", [*FORMS, *CHANGED])
def test_a_form_is_on_the_machine_and_exact(name: str) -> None:
    form = {**FORMS, **CHANGED}[name]
    with Session(form.make(), "pynq-extended") as session:
        report = session.check(random_inputs(session))
        layers = session.layers
    assert report.mismatches == 0
    assert report.ok, report.file
    assert summary(layers)["share_on_machine"] == 1
    host = {layer.operator for layer in layers if layer.placed_on == "host"}
    assert host <= USUAL | form.host


@pytest.mark.parametrize("name", CHANGED)
def test_a_form_gives_what_the_file_does(name: str) -> None:
    """Only ties, and in float16 results near them, round differently."""
    model = CHANGED[name].make()
    with Session(model, "pynq-extended") as session:
        inputs = random_inputs(session)
        outputs = session.run(inputs)
    wanted = exact_session(model.SerializeToString()).run(list(outputs), inputs)
    for got, expected in zip(outputs.values(), wanted, strict=True):
        assert got.shape == expected.shape
        assert np.unique(expected).size > 4
        assert np.mean(np.abs(got - expected) > 1e-5) < 0.05


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(("weights", "activations"), [(2, 4), (4, 4), (3, 8)])
def test_few_bits_give_the_classes_of_the_file(
    weights: int, activations: int, normalized: bool, depthwise: bool
) -> None:
    form = FewBits(weights, activations, normalized, depthwise)
    with Session(form.model(), "pynq-extended", images=8) as session:
        report = session.check({"x": form.images(200)})
        assert summary(session.layers)["share_on_machine"] == 1
    assert report.ok, report.file
    assert report.file is not None
    (output,) = report.file.outputs.values()
    assert output.samples == 200
    assert (output.same_class or 0) >= 199
    assert max(layer.bound for layer in report.file.layers.values()) < 1 / 64


@pytest.mark.parametrize("name", FILES)
def test_a_transformer_is_exact_with_its_products_on_the_machine(name: str) -> None:
    model, inputs = FILES[name].make()
    with Session(model, "pynq-extended") as session:
        report = session.check(inputs)
        share = summary(session.layers)["share_on_machine"]
    assert report.mismatches == 0
    assert report.ok, report.file
    assert report.file is not None
    assert share >= FILES[name].share
    assert max(item.of_range for item in report.file.outputs.values()) < 0.01


@pytest.mark.parametrize("name", ["com.microsoft, four bits", "QAttention"])
def test_a_transformer_is_exact_on_rtl(name: str) -> None:
    model, inputs = FILES[name].make()
    with Session(model, "tiny-extended", "rtl") as session:
        assert session.check(inputs).ok
    assert session.cycles


@pytest.mark.parametrize("name", ON_RTL)
def test_a_form_is_exact_on_rtl(name: str) -> None:
    with Session(FORMS[name].make(), "tiny-extended", "rtl") as session:
        assert session.check(random_inputs(session)).ok
    assert session.cycles
