"""Accuracy of a classifier against labels and against its float model: `label_accuracy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.runtime.network.tile_layout import Array

from .batches import InputError

_FEW = 5


@dataclass(frozen=True)
class LabelAccuracy:
    """Top-1 and top-5 accuracy of ``output`` on ``images``, for the network and for the float
    model, and ``agreement``, the share of images for which both have the same top-1 class. Ties go
    to the lowest class. A share is None without labels or float model; top-5 also with at most five
    classes.
    """

    output: str
    images: int
    top1: float | None
    top5: float | None
    float_top1: float | None
    float_top5: float | None
    agreement: float | None

    def __str__(self) -> str:
        said = [
            _shares("top-1", self.top1, self.float_top1),
            _shares("top-5", self.top5, self.float_top5),
            ""
            if self.agreement is None
            else f"the same top-1 as the float model {_p(self.agreement)}",
        ]
        return (
            f"Accuracy of {self.output} on {self.images:,} images: {', '.join(filter(None, said))}"
        )


def label_accuracy(
    outputs: Mapping[str, Array],
    labels: Array | None,
    float_outputs: Mapping[str, Array] | None = None,
) -> LabelAccuracy:
    """The accuracy of ``outputs``, by name, of the network, and of its float model.

    The scores are the first output with at least two numbers per image. ``labels`` are integers,
    one per image. Raises `InputError` if labels or float outputs do not match the scores.
    """
    output, scores = _scores(outputs)
    known = None if labels is None else _checked(labels, output, scores)
    top = _top(scores, known)
    float_top: tuple[float | None, float | None] = (None, None)
    agreement = None
    if float_outputs is not None:
        if output not in float_outputs:
            raise InputError(f"the float model has no output {output}")
        wanted = _rows(float_outputs[output])
        if wanted is None or wanted.shape != scores.shape:
            raise InputError(
                f"output {output} has shape {list(scores.shape)}, and in the float model "
                f"{list(float_outputs[output].shape)}"
            )
        agreement = float(np.mean(scores.argmax(axis=1) == wanted.argmax(axis=1)))
        float_top = _top(wanted, known)
    return LabelAccuracy(output, len(scores), *top, *float_top, agreement)


def _scores(outputs: Mapping[str, Array]) -> tuple[str, Array]:
    for name, array in outputs.items():
        rows = _rows(array)
        if rows is not None:
            return name, rows
    raise InputError("no output of the network has one row of scores per image")


def _rows(array: Array) -> Array | None:
    """``array`` as (images, classes), without trailing dimensions of 1; None if it has another
    shape or is not numeric.
    """
    fits = array.ndim >= 2 and array.shape[1] > 1 and array.size == array.shape[0] * array.shape[1]
    return array.reshape(array.shape[:2]) if fits and array.dtype.kind in "iuf" else None


def _checked(labels: Array, output: str, scores: Array) -> npt.NDArray[np.int64]:
    images, classes = scores.shape
    if labels.dtype.kind not in "iu" or labels.size != images or labels.shape[:1] != (images,):
        raise InputError(
            f"labels are {labels.dtype} of shape {list(labels.shape)}; an integer for each of "
            f"{images} images is needed"
        )
    flat = labels.reshape(-1).astype(np.int64)
    outside = np.flatnonzero((flat < 0) | (flat >= classes))
    if outside.size:
        raise InputError(
            f"label {flat[outside[0]]} of image {outside[0]} is not a class of output {output}, "
            f"which "
            f"has 0 to {classes - 1}"
        )
    return flat


def _top(scores: Array, labels: npt.NDArray[np.int64] | None) -> tuple[float | None, float | None]:
    """The shares of images whose label has the highest score, and one of the five highest."""
    if labels is None:
        return None, None
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    before = np.arange(scores.shape[1]) < labels[:, None]
    rank = ((scores > own) | (scores == own) & before).sum(axis=1)
    return float(np.mean(rank < 1)), float(np.mean(rank < _FEW)) if scores.shape[1] > _FEW else None


def _shares(what: str, found: float | None, wanted: float | None) -> str:
    if found is None:
        return ""
    return f"{what} {_p(found)}" + ("" if wanted is None else f" (float model {_p(wanted)})")


def _p(share: float) -> str:
    return f"{share:.2%}"
