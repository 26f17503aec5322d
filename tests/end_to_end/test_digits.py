"""The digits network on the functional model and on the RTL, with all of DRAM compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.session import Session

DIGITS = Path(__file__).parents[2] / "examples/digits"


@pytest.fixture(scope="module")
def images() -> npt.NDArray[np.float32]:
    with np.load(DIGITS / "images.npz") as file:
        return file["image"]


@pytest.mark.parametrize(("config", "dram"), [("tiny", "random:3"), ("pynq-extended", "ddr")])
def test_rtl_and_functional_model_agree_in_every_byte(
    config: str, dram: str, images: npt.NDArray[np.float32]
) -> None:
    memories = []
    for device in ("functional", "rtl"):
        with Session(DIGITS / "digits.onnx", config, device, dram) as session:
            assert session.check({"image": images[:3]}).ok
            memories.append(session.device.read(0, session.device.memory_bytes))
            if device == "rtl":
                cycles = session.report()["cycles"]
                assert cycles == sum(layer.cycles or 0 for layer in session.layers)
                assert cycles >= session.report()["bound_cycles"]
    assert memories[0].any()
    np.testing.assert_array_equal(memories[0], memories[1])


def test_the_whole_test_split_is_classified_as_onnx_runtime_does(
    images: npt.NDArray[np.float32],
) -> None:
    with np.load(DIGITS / "labels.npz") as file:
        labels = file["label"]
    with Session(DIGITS / "digits.onnx") as session:
        report = session.check({"image": images})
        placed = [layer.name for layer in session.layers if layer.placed_on == "machine"]
    assert report.ok
    assert report.differs_from_default == 0
    assert (report.outputs["logits"].argmax(axis=1) == labels).mean() >= 0.97
    assert placed == ["conv1", "conv2", "conv3", "dense"]


def test_the_model_is_small_enough_for_a_repository() -> None:
    assert (DIGITS / "digits.onnx").stat().st_size < 200_000
