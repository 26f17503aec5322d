"""Accuracy against labels and a float model."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.session.accuracy import LabelAccuracy, label_accuracy
from amaranth_vta.session.batches import InputError

# The ranks of labels 0, 1, 2, 3 are 0, 1, 5, 6.
SCORES = np.array(
    [
        [9, 1, 2, 3, 4, 5, 6],
        [0, 8, 9, 3, 4, 5, 6],
        [6, 5, 1, 4, 3, 2, 0],
        [6, 5, 4, -1, 3, 2, 0],
    ],
    np.float32,
)
LABELS = np.arange(4)


def test_the_top_one_and_the_top_five_are_counted() -> None:
    found = label_accuracy({"y": SCORES}, LABELS)
    assert found == LabelAccuracy("y", 4, 0.25, 0.5, None, None, None)
    assert str(found) == "Accuracy of y on 4 images: top-1 25.00%, top-5 50.00%"


@pytest.mark.parametrize("shape", [(4, 7, 1, 1), (4, 7)])
def test_scores_are_the_first_output_with_a_row_per_image(shape: tuple[int, ...]) -> None:
    outputs = {
        "number": np.zeros((4, 1), np.float32),
        "map": np.zeros((4, 7, 2), np.float32),
        "y": SCORES.reshape(shape),
        "other": -SCORES,
    }
    assert label_accuracy(outputs, LABELS[:, None]).top1 == 0.25
    with pytest.raises(InputError, match="no output of the network has one row of scores"):
        label_accuracy({"map": outputs["map"]}, LABELS)


def test_of_equal_scores_the_first_counts_as_the_highest() -> None:
    """Like argmax: a network with equal scores for all classes is right as often as class 0 is."""
    same = np.zeros((7, 7), np.int8)
    found = label_accuracy({"y": same}, np.arange(7))
    assert (found.top1, found.top5) == (1 / 7, 5 / 7)
    wanted = np.mean(same.argmax(axis=1) == np.arange(7))
    assert found.top1 == wanted


def test_five_classes_have_no_top_five() -> None:
    found = label_accuracy({"y": SCORES[:, :5]}, LABELS)
    assert found.top5 is None
    assert "top-5" not in str(found)


def test_the_float_model_is_judged_as_well() -> None:
    better = SCORES.copy()
    better[1, 1] = 10
    found = label_accuracy({"y": SCORES}, LABELS, {"y": better})
    assert (found.top1, found.float_top1, found.float_top5) == (0.25, 0.5, 0.5)
    assert found.agreement == 0.75
    alone = label_accuracy({"y": SCORES}, None, {"y": better})
    assert alone == LabelAccuracy("y", 4, None, None, None, None, 0.75)
    with pytest.raises(InputError, match="the float model has no output y"):
        label_accuracy({"y": SCORES}, None, {"z": better})
    with pytest.raises(InputError, match=r"shape \[4, 7\], and in the float model \[4, 6\]"):
        label_accuracy({"y": SCORES}, None, {"y": better[:, :6]})


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.arange(3), r"labels are int64 of shape \[3\]; an integer for each of 4 images"),
        (np.arange(4.0), "labels are float64"),
        (np.array([0, 1, 7, 2]), "label 7 of image 2 is not a class of output y, which has 0 to 6"),
        (np.array([-1, 1, 7, 2]), "label -1 of image 0"),
    ],
)
def test_labels_that_do_not_fit_are_named(labels: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        label_accuracy({"y": SCORES}, labels)
