"""The inputs of a decoder in a generation of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from .model_error import ModelError
from .tensor_type import TensorType
from .tile_layout import Array

_IDS, _MASK, _PLACES = "input_ids", "mask", "position"


class TokenInputs:
    """The inputs of a decoder, given their types by name: tokens, their positions, and a mask of
    the ``context``. Raises `ModelError` for a network with other inputs.
    """

    def __init__(self, inputs: Mapping[str, TensorType]) -> None:
        found: dict[str, tuple[str, TensorType]] = {}
        for name, info in inputs.items():
            role = next((role for role in (_MASK, _PLACES, _IDS) if role in name), None)
            if role is None or role in found or info.dtype.kind != "i" or not info.shape:
                raise ModelError(
                    f"generate does not know the input {name}, {info}; it provides only "
                    "input_ids, attention_mask and position_ids"
                )
            found[role] = name, info
        for role, name in ((_IDS, "input_ids"), (_MASK, "attention_mask")):
            if role not in found:
                raise ModelError(f"generate needs a decoder with an input {name}")
        self._inputs = found
        (_, ids), (_, mask) = found[_IDS], found[_MASK]
        self.context = (mask.shape or (0,))[-1]
        self.per_run = (ids.shape or (0,))[-1]

    def feeds(self, tokens: Sequence[int], place: int, length: int) -> dict[str, Array]:
        """Inputs of ``length`` that end with ``tokens`` after ``place`` others, whose keys and
        values end the caches. Masked positions come first.
        """
        name, info = self._inputs[_IDS]
        ids = _ending(info, length, np.array(tokens))
        return {name: ids} | self.positions(place, place + len(tokens), length)

    def positions(self, place: int, end: int, length: int) -> dict[str, Array]:
        """The part of `feeds` that does not depend on the values of tokens, for those from
        ``place`` to ``end``, exclusive."""
        fed = {}
        if _PLACES in self._inputs:
            name, info = self._inputs[_PLACES]
            fed[name] = _ending(info, length, np.arange(place, end))
        name, info = self._inputs[_MASK]
        fed[name] = _ending(info, self.context, np.ones(end))
        return fed

    def generations(self) -> Iterator[tuple[int, Iterator[dict[str, Array]]]]:
        """Each generation: the number of masked positions in its first run, and the `positions` of
        successive runs until the context is full. Later runs have no masked positions."""
        length = self.per_run
        for first in range(1, min(length, self.context) + 1):
            ends = range(first, self.context + 1, length)
            runs = (self.positions(max(end - length, 0), end, length) for end in ends)
            yield length - first, runs


def padding_of(tokens: int, per_run: int) -> int:
    """Number of masked positions that begin the first run of a prompt of ``tokens``, of which runs
    take one or ``per_run``."""
    first = tokens % per_run or per_run
    return 0 if first == 1 else per_run - first


def _ending(info: TensorType, length: int, last: Array) -> Array:
    """An array of ``info``, with ``length`` elements in its last dimension: zeros, and ``last``."""
    values = np.zeros((*(info.shape or ())[:-1], length), info.dtype)
    values[..., length - last.size :] = last
    return values
