"""Sessions on several machines, which run an image each or share one: results of a single one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw.config import ConfigError
from amaranth_vta.session import Session
from amaranth_vta.sim.devices import DeviceError
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.runtime import RuntimeFault

DIGITS = Path(__file__).parents[2] / "examples/digits"


@pytest.fixture(scope="module")
def images() -> npt.NDArray[np.float32]:
    with np.load(DIGITS / "images.npz") as file:
        return file["image"]


@pytest.fixture(scope="module")
def expected(images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    with Session(DIGITS / "digits.onnx", "tiny") as session:
        return session.run({"image": images[:5]})["logits"]


@pytest.mark.parametrize("launch", ["network", "layer"])
@pytest.mark.parametrize("device", ["functional", "estimate"])
@pytest.mark.parametrize("machines", [2, 3, 8])
def test_images_on_several_machines_give_the_results_of_one(
    device: str, machines: int, launch: str, images: Any, expected: Any
) -> None:
    """Also in a last group with fewer images than machines."""
    with Session(
        DIGITS / "digits.onnx", "tiny", device, "ddr", machines=machines, launch=launch
    ) as session:
        assert session.check({"image": images[:5]}).ok
        np.testing.assert_array_equal(session.run({"image": images[:5]})["logits"], expected)


def test_two_machines_compute_on_the_rtl_in_the_estimated_cycles(
    images: Any, expected: Any
) -> None:
    cycles = []
    for device in ("rtl", "estimate"):
        with Session(DIGITS / "digits.onnx", "tiny", device, "ddr", machines=2) as session:
            outputs = session.run({"image": images[:4]})
            np.testing.assert_array_equal(outputs["logits"], expected[:4])
            cycles.append(session.cycles)
    assert cycles[1] == pytest.approx(cycles[0], rel=0.02)


def test_cycles_of_a_group_count_once(images: Any) -> None:
    reports = []
    for machines in (1, 2):
        with Session(
            DIGITS / "digits.onnx", "tiny", "estimate", "ddr", machines=machines
        ) as session:
            session.run({"image": images[:4]})
            reports.append(session.report())
    one, two = reports
    assert (one["macs"], one["runs"]) == (two["macs"], two["runs"])
    assert "machines" not in one
    assert two["machines"] == 2
    assert two["peak_macs_per_cycle"] == 2 * one["peak_macs_per_cycle"]
    assert 1.8 < one["cycles"] / two["cycles"] < 2.1
    # Two machines on a bus of twice the width have half the bound of a single one.
    assert two["bound_cycles"] == pytest.approx(one["bound_cycles"] / 2, rel=0.01)
    assert two["utilization"] == pytest.approx(
        two["macs"] / two["cycles"] / two["peak_macs_per_cycle"]
    )


def test_machines_share_constants() -> None:
    """Memory grows by activations and instructions only."""
    sizes = []
    for machines in (1, 2, 3):
        with Session(DIGITS / "digits.onnx", "tiny", machines=machines) as session:
            sizes.append(session.device.memory_bytes)
            program = session.program.program
    constants = sum(item.size for item in program.buffers if item.role == "constant")
    assert sizes[1] - sizes[0] == sizes[2] - sizes[1]
    assert 0 < sizes[1] - sizes[0] <= sizes[0] - constants


def test_a_fault_names_the_layer(images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(DIGITS / "digits.onnx", "tiny", machines=2) as session:
        device: Any = session.device
        run_all = device.run_all
        monkeypatch.setattr(device, "run_all", lambda streams, _: run_all(streams, 0.0))
        with pytest.raises(RuntimeFault, match=r"conv.*: the machine stopped: timeout"):
            session.run({"image": images[:2]})


@pytest.mark.parametrize("device", ["cxxrtl", "pysim", "board", "remote"])
def test_other_devices_are_single_machines(device: str) -> None:
    with pytest.raises(DeviceError, match=f"the device {device} is a single machine"):
        Session(DIGITS / "digits.onnx", "tiny", device, machines=2)


def test_a_system_records_no_waves() -> None:
    with pytest.raises(DeviceError, match="2 machines have no waves"):
        Session(DIGITS / "digits.onnx", "tiny", "rtl", machines=2, waves="waves.vcd")


def test_a_bus_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="a memory bus of 96 bits does not fit"):
        Session(DIGITS / "digits.onnx", "tiny", machines=2, memory_bus=96)


@pytest.mark.parametrize("launch", ["network", "layer"])
@pytest.mark.parametrize("machines", [2, 3])
def test_machines_share_an_image(machines: int, launch: str, images: Any, expected: Any) -> None:
    """Each layer is a launch, since machines wait for each other after every layer."""
    with Session(
        DIGITS / "digits.onnx", "tiny", machines=machines, split=True, launch=launch
    ) as session:
        assert session.runs_at_once == 1
        np.testing.assert_array_equal(session.run({"image": images[:5]})["logits"], expected)
        shared = [launched.machines for launched in session._runner.launched]
        assert shared == [machines, machines, machines, 1]


def test_two_machines_share_an_image_on_the_rtl_in_the_estimated_cycles(
    images: Any, expected: Any
) -> None:
    cycles = []
    for device in ("rtl", "estimate"):
        with Session(
            DIGITS / "digits.onnx", "tiny", device, "ddr", machines=2, split=True
        ) as session:
            outputs = session.run({"image": images[:1]})
            np.testing.assert_array_equal(outputs["logits"], expected[:1])
            cycles.append([layer.cycles for layer in session.layers if layer.cycles])
    assert cycles[1] == pytest.approx(cycles[0], rel=0.02)
    assert len(cycles[0]) == 4


def test_a_shared_image_takes_fewer_cycles(images: Any) -> None:
    """Utilization is of the peak of all machines, and no cycles are below their bound."""
    reports = []
    for machines in (1, 2):
        with Session(
            DIGITS / "digits.onnx", "tiny", "estimate", "ddr", machines=machines, split=machines > 1
        ) as session:
            session.run({"image": images[:2]})
            reports.append(session.report())
    one, two = reports
    assert (one["macs"], one["runs"]) == (two["macs"], two["runs"])
    assert 1.7 < one["cycles"] / two["cycles"] < 2
    assert two["peak_macs_per_cycle"] == 2 * one["peak_macs_per_cycle"]
    on_machine = [layer for layer in two["layers"] if layer["placed_on"] == "machine"]
    assert sum(layer["cycles"] for layer in on_machine) == two["cycles"]
    for layer in on_machine:
        assert layer["utilization"] <= 1
        assert layer["bound_cycles"] <= layer["cycles"]


def test_a_network_for_several_machines_is_saved(
    tmp_path: Path, images: Any, expected: Any
) -> None:
    path = tmp_path / "digits.vta"
    with Session(DIGITS / "digits.onnx", "tiny", machines=2, split=True) as session:
        session.save(path)
    with Session.load(path, machines=2) as loaded:
        np.testing.assert_array_equal(loaded.run({"image": images[:5]})["logits"], expected)
    for machines in (1, 3):
        with pytest.raises(ModelError, match=f"for 2 machines, .* the device has {machines}"):
            Session.load(path, machines=machines)
