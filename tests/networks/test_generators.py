"""All networks of the generators, scaled down: every element equals ONNX Runtime's, and the
machine runs at least the share of MACs, and takes the cycles, of tests/golden/networks.json.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from amaranth_vta.networks import NETWORKS, generate
from amaranth_vta.networks.generated_network import GeneratedNetwork
from amaranth_vta.networks.generators import Form
from amaranth_vta.report.host_summary import summary
from amaranth_vta.session import Session, random_inputs
from tests.support.golden import Golden

# Input size and width factor.
SMALL = {
    "resnet18": (32, 0.25),
    "resnet50": (32, 0.125),
    "mobilenetv2": (32, 0.25),
    "efficientnet-lite": (32, 0.125),
    "shufflenet": (32, 0.25),
    "squeezenet": (32, 0.125),
    "inception": (32, 0.125),
    "unet": (16, 0.25),
    "ocr": (16, 0.125),
    "yolo": (32, 0.25),
    "bert-tiny": (16, 0.25),
    "vit-tiny": (32, 0.25),
    "keywords": (20, 0.25),
    "llama-tiny": (16, 1.0),
    "llama-15m": (16, 0.17),
    "llama-15m-int4": (16, 0.17),
    "mlp": (16, 0.25),
    "digits": (8, 1.0),
}
ON_RTL = ("mlp", "digits", "keywords", "bert-tiny")
# The vocabulary of 32,000 words takes most of their time; `llama-tiny` has the same layers.
NIGHTLY = ("llama-15m", "llama-15m-int4")


def checked(network: GeneratedNetwork, config: str, device: str) -> Session:
    with Session(network.model, config, device) as session:
        report = session.check(network.inputs)
    assert report.elements
    assert report.mismatches == 0
    assert max(np.unique(output).size for output in report.outputs.values()) > 1
    return session


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly) if name in NIGHTLY else name
        for name in NETWORKS
    ],
)
def test_a_network_is_exact_and_as_much_on_the_machine_as_it_was(name: str, golden: Golden) -> None:
    network = generate(name, *SMALL[name])
    found = summary(checked(network, "pynq-extended", "functional").layers)
    total, cycles = found["macs_on_machine"] + found["macs_on_host"], cycles_of(network)
    made = {"macs": total, "share": found["share_on_machine"], "cycles": cycles}
    known = golden.known("networks.json", name, made)
    assert total == known["macs"]
    assert found["share_on_machine"] >= known["share"]
    assert cycles == known["cycles"]


def cycles_of(network: GeneratedNetwork) -> int | None:
    """The cycles of an image on ``pynq-extended`` with memory ``ddr``, by the estimate."""
    with Session(network.model, "pynq-extended", "estimate", "ddr") as session:
        session.run(network.inputs)
    return session.cycles


def test_resnet18_takes_the_cycles_it_took(golden: Golden) -> None:
    """A row of docs/networks.md; the others take longer to compile."""
    cycles = cycles_of(generate("resnet18"))
    assert golden.known("networks.json", "resnet18, whole", {"cycles": cycles})["cycles"] == cycles


@pytest.mark.parametrize("name", ON_RTL)
def test_a_network_is_exact_on_rtl(name: str) -> None:
    session = checked(generate(name, *SMALL[name]), "tiny-extended", "rtl")
    assert session.cycles


def test_networks_with_scales_that_are_powers_of_two_run_on_the_base_instruction_set() -> None:
    session = checked(generate("mlp", *SMALL["mlp"]), "tiny", "functional")
    assert summary(session.layers)["share_on_machine"] == 1


@pytest.mark.parametrize("name", ["resnet18", "keywords", "squeezenet", "digits"])
def test_a_network_has_the_form_that_the_table_says(name: str) -> None:
    model = generate(name, *SMALL[name]).model
    form, constants = NETWORKS[name].form, initializers(model)
    kinds = Counter(node.op_type for node in model.graph.node)
    assert (kinds["DequantizeLinear"] > kinds["Conv"] > 0) is not form.operators
    weights = [constants[item] for item in constants if item.endswith("weight_quantized")]
    zeros = [constants[item] for item in constants if item.endswith("weight_zero_point")]
    assert {str(item.dtype) for item in weights} == {form.weights}
    assert any(item.any() for item in zeros) is not form.symmetric
    assert any(item.size > 1 for item in zeros) is form.per_channel


def initializers(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}


def test_some_channels_are_nearly_dead() -> None:
    model = generate("resnet18", *SMALL["resnet18"]).model
    scales = [
        value
        for name, value in initializers(model).items()
        if name.endswith("weight_scale") and value.ndim == 1
    ]
    nearly_dead = [(scale < 1e-4 * np.median(scale)).sum() for scale in scales]
    assert sum(nearly_dead) > 3


def test_the_pixels_of_an_image_differ() -> None:
    """Sums over all eight columns would be equal."""
    (image,) = generate("digits", *SMALL["digits"]).inputs.values()
    assert image.shape[-2:] == (8, 8)
    assert np.unique(image).size > 32
    assert np.abs(image).max() < 10


def test_a_network_with_indices_runs_on_random_inputs() -> None:
    with Session(generate("bert-tiny", *SMALL["bert-tiny"]).model, "pynq-extended") as session:
        inputs = random_inputs(session)
        assert {name: set(np.unique(value)) for name, value in inputs.items()} == {
            "input_ids": {0, 1},
            "token_type_ids": {0, 1},
        }
        assert session.check(inputs).ok


def test_a_network_is_always_the_same() -> None:
    first = generate("mlp", *SMALL["mlp"]).model.SerializeToString()
    generate.cache_clear()
    assert generate("mlp", *SMALL["mlp"]).model.SerializeToString() == first


def test_forms_are_said_in_words() -> None:
    form = Form("uint8", "uint8", operators=True, per_channel=False, symmetric=False)
    assert str(form) == "QOperator, uint8 × uint8, per tensor, weights with zero points"
