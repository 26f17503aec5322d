"""`vta classify`, with a board that only counts; the simulated one is in tests/end_to_end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amaranth_vta.cli import invoke
from amaranth_vta.firmware import connection
from amaranth_vta.firmware.client import Classification

MODEL = Path(__file__).parents[3] / "examples" / "digits" / "digits.onnx"
BATCH = 3


class CountingClassifier:
    """Answers with the sum of the first image."""

    def run(self, inputs: Mapping[str, Any]) -> Classification:
        assert inputs["image"].shape == (BATCH, 1, 8, 8)
        scores = inputs["image"].reshape(BATCH, -1)[:, :10]
        return Classification(int(scores[0].sum()), {"logits": scores}, 900, 100)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = str(tmp_path_factory.mktemp("digits") / "digits.vta")
    options = ["--config", "tiny-extended", "--images", str(BATCH), "-o", file]
    assert invoke(["compile", str(MODEL), *options]) == 0
    return file


@pytest.fixture(autouse=True)
def board(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def opened(*_: object) -> Iterator[CountingClassifier]:
        yield CountingClassifier()

    monkeypatch.setattr(connection, "open_classifier", opened)


def saved(folder: Path, **arrays: Any) -> str:
    file = str(folder / "images.npz")
    np.savez(file, **arrays)
    return file


@pytest.mark.parametrize(("images", "runs"), [(None, 3), (1, 1), (3, 1), (4, 2), (100, 3)])
def test_images_are_counted_in_whole_batches(
    images: int | None,
    runs: int,
    network: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = np.zeros((11, 1, 8, 8), np.float32)
    values[:, 0, 0, 0] = range(11)
    limit = [] if images is None else ["--images", str(images)]
    assert invoke(["classify", network, "--inputs", saved(tmp_path, image=values), *limit]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{BATCH * run}: label {BATCH * run}, 900 cycles, 100 of them on the machine"
        for run in range(runs)
    ]


def test_outputs_of_all_runs_are_saved(network: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((2 * BATCH, 1, 8, 8)).astype(np.float32)
    target = tmp_path / "new" / "scores.npz"
    inputs = saved(tmp_path, image=values)
    assert invoke(["classify", network, "--inputs", inputs, "--outputs", str(target)]) == 0
    found = np.load(target)
    np.testing.assert_array_equal(found["logits"], values.reshape(2 * BATCH, -1)[:, :10])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"picture": np.zeros((3, 1, 8, 8))}, "has no array image"),
        ({"image": np.float32(1)}, "image is a number, not images"),
        ({"image": np.zeros((2, 1, 8, 8))}, "image has 2 images, and a run takes 3"),
    ],
)
def test_other_arrays_are_refused(
    arrays: Mapping[str, Any],
    message: str,
    network: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert invoke(["classify", network, "--inputs", saved(tmp_path, **arrays)]) != 0
    assert message in capsys.readouterr().err
