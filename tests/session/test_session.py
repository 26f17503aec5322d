"""Sessions: arrays in, arrays and numbers out, and one sentence for a wrong input."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import amaranth_vta as vta
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.session import InputError, Session
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.compiler.nest.ir import LoopNest, LoweringError
from amaranth_vta.sw.runtime.device import Fault, RunResult
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.runtime import RuntimeFault

DIGITS = Path(__file__).parents[2] / "examples/digits"


@pytest.fixture(scope="module")
def images() -> npt.NDArray[np.float32]:
    with np.load(DIGITS / "images.npz") as file:
        return file["image"]


@pytest.mark.parametrize("config", ["tiny", "batch2", "pynq"])
def test_any_number_of_images_is_cut_into_batches(
    config: str, images: npt.NDArray[np.float32]
) -> None:
    with Session(DIGITS / "digits.onnx", config) as session:
        all_at_once = session.run({"image": images[:3]})["logits"]
        one_by_one = [session.run({"image": images[i : i + 1]})["logits"] for i in range(3)]
    assert all_at_once.shape == (3, 10)
    np.testing.assert_array_equal(all_at_once, np.concatenate(one_by_one))


def test_a_session_goes_with_its_device_and_memory(images: npt.NDArray[np.float32]) -> None:
    """Reference counting suffices; the garbage collector runs late for a few objects with much
    memory.
    """
    session = Session(DIGITS / "digits.onnx", "tiny")
    session.run({"image": images[:1]})
    references: list[weakref.ref[Any]] = [weakref.ref(session), weakref.ref(session.device)]
    gc.disable()
    try:
        del session
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


def test_inputs_and_outputs_say_what_they_take() -> None:
    with Session(DIGITS / "digits.onnx", "batch2") as session:
        assert session.inputs["image"].shape == (None, 1, 8, 8)
        assert session.outputs["logits"].shape == (None, 10)
        assert session.inputs["image"].dtype == np.float32


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input image is missing; the network's inputs are image"),
        ({"image": "good", "mask": "good"}, "mask is no input; the network's inputs are image"),
        ({"image": np.zeros((1, 1, 8, 8))}, "input image is float64; the network takes float32"),
        (
            {"image": np.zeros((1, 8, 8), np.float32)},
            r"shape \[1, 8, 8\]; the network takes \[any number, 1, 8, 8\]",
        ),
        ({"image": np.zeros((0, 1, 8, 8), np.float32)}, r"shape \[0, 1, 8, 8\]"),
    ],
)
def test_what_is_wrong_with_an_input_is_said(
    inputs: dict[str, Any], message: str, images: npt.NDArray[np.float32]
) -> None:
    inputs = {name: images[:1] if isinstance(v, str) else v for name, v in inputs.items()}
    with Session(DIGITS / "digits.onnx") as session:
        with pytest.raises(InputError, match=message):
            session.run(inputs)


def fixed_batch_model(batch: int) -> onnx.ModelProto:
    """A model of one int8 pooling, without host operators."""
    shapes = ([batch, 3, 4, 4], [batch, 3, 2, 2])
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.INT8, shape)
        for name, shape in zip("xy", shapes, strict=True)
    )
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    graph = helper.make_graph([node], "pool", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_many_images_in_a_run_load_weights_once(images: npt.NDArray[np.float32]) -> None:
    with (
        Session(DIGITS / "digits.onnx", "tiny", launch="layer") as one,
        Session(DIGITS / "digits.onnx", "tiny", images=3, launch="layer") as three,
    ):
        expected = one.run({"image": images[:5]})["logits"]
        np.testing.assert_array_equal(three.run({"image": images[:5]})["logits"], expected)
        assert three.inputs["image"].shape[0] is None
        runs = {session: session.layers[-2].runs for session in (one, three)}
        loaded = {s: s.layers[-2].counters["wgt_bytes"] / s.layers[-2].runs for s in (one, three)}
    assert runs == {one: 5, three: 2}
    assert loaded[three] == loaded[one]


def test_an_additional_pass_sees_each_layer(images: npt.NDArray[np.float32]) -> None:
    seen = []

    def note(function: LoopNest, _: Config) -> LoopNest:
        seen.append(function.name)
        return function

    passes = [("after insert_tokens", note)]
    with Session(DIGITS / "digits.onnx", "tiny", passes=passes) as session:
        assert set(seen) == {"conv1", "conv2", "conv3", "dense"}
        with Session(DIGITS / "digits.onnx", "tiny") as plain:
            expected = plain.run({"image": images[:1]})["logits"]
        np.testing.assert_array_equal(session.run({"image": images[:1]})["logits"], expected)
    with pytest.raises(LoweringError, match="'after lunch' is not a position for a pass"):
        vta.compile(DIGITS / "digits.onnx", "tiny", passes=[("after lunch", note)])


def test_a_model_of_a_fixed_number_of_images_takes_no_other() -> None:
    fixed = onnx.load(DIGITS / "digits.onnx")
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(ModelError, match=r"image has shape \[1, 1, 8, 8\]\): leave images out"):
        Session(fixed, "tiny", images=2)


def test_a_fixed_number_of_images_is_repeated_but_not_split() -> None:
    x = np.random.default_rng(0).integers(-128, 128, (6, 3, 4, 4)).astype(np.int8)
    with Session(fixed_batch_model(2), "tiny") as session:
        assert session.inputs["x"].shape == (2, 3, 4, 4)
        got = session.run({"x": x})["y"]
        np.testing.assert_array_equal(got, x.reshape(6, 3, 2, 2, 2, 2).max(axis=(3, 5)))
        with pytest.raises(InputError, match=r"shape \[3, 3, 4, 4\]; the network takes \[2, 3"):
            session.run({"x": x[:3]})


def test_the_report_adds_up(images: npt.NDArray[np.float32]) -> None:
    with Session(DIGITS / "digits.onnx", "tiny") as session:
        assert session.report()["macs"] == 0
        session.run({"image": images[:2]})
        report = session.report()
    macs = 64 * 9 * 16 + 64 * 144 * 32 + 16 * 288 * 32 + 512 * 10
    assert report["macs"] == 2 * macs
    assert report["cycles"] is None
    assert report["utilization"] is None
    assert report["fault"] is None
    assert report["peak_macs_per_cycle"] == 16
    assert report["bound_cycles"] >= 2 * macs / 16
    assert report["wall_seconds"] > 0
    layers = {layer["name"]: layer for layer in json.loads(json.dumps(report))["layers"]}
    assert layers["conv2"]["macs"] == 2 * 64 * 144 * 32
    assert layers["conv2"]["placed_on"] == "machine"
    assert layers["conv2"]["operator"] == "QLinearConv+MaxPool"
    assert layers["conv2"]["bytes_stored"] == 2 * 16 * 32
    assert layers["logits"]["placed_on"] == "host"
    assert layers["logits"]["reason"]


def test_conversions_between_tiles_that_differ_are_listed() -> None:
    with Session(DIGITS / "digits.onnx", "batch2") as session:
        layouts = [layer for layer in session.layers if layer.operator == "layout"]
    assert [layer.name for layer in layouts] == [
        "image_quantized",
        "relu1_quantized",
        "pool_integer",
        "relu3_quantized",
    ]
    assert all(layer.placed_on == "host" and layer.reason for layer in layouts)


def test_a_difference_from_onnx_runtime_is_counted_in_steps(
    images: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(DIGITS / "digits.onnx") as session:
        good = session.run({"image": images[:2]})["logits"]
        step = 0.25
        wrong = good.copy()
        wrong[1, 3] += step
        monkeypatch.setattr(session, "run", lambda _: {"logits": wrong})
        report = session.check({"image": images[:2]})
    assert not report.ok
    assert report.elements == 20
    assert report.mismatches == report.differs_from_default == 1
    (difference,) = report.histogram
    assert difference == round(difference) >= 1


class FaultyDevice(FunctionalDevice):
    """Reports a fault in its third run."""

    runs = 0

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        self.runs += 1
        if self.runs == 3:
            return RunResult(None, Fault("load", 1, "bus_error"))
        return super().run(insn_addr, insn_count, time_limit, watched)


def test_a_fault_of_the_machine_is_raised_and_reported(images: npt.NDArray[np.float32]) -> None:
    device = FaultyDevice(PRESETS["pynq"], 1 << 20)
    session = Session(DIGITS / "digits.onnx", "pynq", device, launch="layer")
    with pytest.raises(RuntimeFault, match="conv3: .*bus_error"):
        session.run({"image": images[:1]})
    assert session.report()["fault"] == {
        "module": "load",
        "instruction": 1,
        "cause": "bus_error",
    }


def test_an_output_that_is_a_constant_or_an_input_is_passed_on() -> None:
    x, y, z = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 2]), ("y", [1, 2]), ("z", [2]))
    )
    value = numpy_helper.from_array(np.array([1, 2], np.float32), "z")
    node = helper.make_node("Neg", ["x"], ["y"])
    graph = helper.make_graph([node], "pass", [x], [y, z], [value])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with Session(model) as session:
        outputs = session.run({"x": np.array([[3, 4]], np.float32)})
    assert outputs["y"].tolist() == [[-3, -4]]
    assert outputs["z"].tolist() == [1, 2]


def test_an_input_of_rank_0_is_for_all_images_of_a_run() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4, 2, 2] x, float rate) => (float[n, 4, 2, 2] y)
        <float[4, 4, 1, 1] w = {1, 2, 3, 4, 4, 3, 2, 1, -1, 2, -3, 4, 1, -2, 3, -4},
         float s = {0.25}, int8 z = {0}> {
            quantized = QuantizeLinear(w, s, z)
            weights = DequantizeLinear(quantized, s, z)
            a = Mul(x, rate)
            b = QuantizeLinear(a, s, z)
            c = DequantizeLinear(b, s, z)
            d = Conv(c, weights)
            e = QuantizeLinear(d, s, z)
            y = DequantizeLinear(e, s, z)
        }
    """)
    x = np.random.default_rng(4).normal(0, 1, (4, 4, 2, 2)).astype(np.float32)
    rates = np.array([1, 1, 3, 3], np.float32)
    with Session(model, "tiny-extended", images=2) as session:
        assert session.images_per_run == 2
        one = session.check({"x": x, "rate": rates[0].reshape(())})
        each = session.check({"x": x, "rate": rates})
        assert one.ok
        assert each.ok
        assert one.outputs["y"].shape == (4, 4, 2, 2)
        np.testing.assert_array_equal(one.outputs["y"][:2], each.outputs["y"][:2])
        assert (one.outputs["y"][2:] != each.outputs["y"][2:]).any()
        with pytest.raises(InputError, match="rate has one value per run of 2 images, but"):
            session.run({"x": x, "rate": rates[[0, 2, 0, 0]]})
        with pytest.raises(InputError, match="different numbers of images: x 4, rate 3"):
            session.run({"x": x, "rate": rates[:3]})
