"""Arrays of two networks in one file, which holds the bytes that they have in common once.

An array of bytes of the second network is a list of pieces, ranges of arrays in the file. Constants
of the machine that both networks have are one piece. A model of the host has large tensors, such as
the rows of embeddings, as pieces, and between them parts that differ with the shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.runtime.archive import require
from amaranth_vta.sw.runtime.array_file import Arrays, require_within_limit

# An array of the file, by name, and the first and last byte, exclusive.
Piece = tuple[str, int, int]
# Names of arrays of the second network begin with this.
_SECOND = "block_"
# Bytes of the smallest tensor that is a piece.
_LEAST = 1024


def share(
    first: Arrays, second: Arrays, is_model: Callable[[str], bool]
) -> tuple[dict[str, list[Piece]], dict[str, npt.NDArray[Any]]]:
    """The pieces of arrays of the ``second`` network, by name, and the arrays that the file needs
    in addition to the arrays of the ``first``. ``is_model`` tells the names of ONNX models.
    """

    def ranges(name: str, data: bytes) -> Iterator[tuple[int, bytes]]:
        return _tensors(data) if is_model(name) else iter([(0, data)])

    known: dict[bytes, tuple[str, int]] = {}
    for name, array in first.items():
        if _has_bytes(array):
            for start, part in ranges(name, array.tobytes()):
                known[part] = name, start
    pieces: dict[str, list[Piece]] = {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, array in second.items():
        own = _SECOND + name
        if not _has_bytes(array):
            arrays[own] = array
            continue
        data, rest, place = array.tobytes(), bytearray(), 0
        found: list[Piece] = []
        for start, part in [*ranges(name, data), (len(data), b"")]:
            if part and part not in known:
                continue
            if place < start:
                found.append((own, len(rest), len(rest) + start - place))
                rest += data[place:start]
            if part:
                source, begin = known[part]
                found.append((source, begin, begin + len(part)))
            place = start + len(part)
        pieces[name] = found
        if rest:
            arrays[own] = np.frombuffer(bytes(rest), np.uint8)
    return pieces, arrays


def second_arrays(pieces: Mapping[str, Sequence[Any]], arrays: Arrays) -> dict[str, Any]:
    """The arrays of the second network, of the ``arrays`` of a file; raises `ValueError` for pieces
    that the file does not have, and `FileLimitError`.
    """
    found = {
        name.removeprefix(_SECOND): array
        for name, array in arrays.items()
        if name.startswith(_SECOND)
    }
    size = 0
    for name, parts in pieces.items():
        for source, start, stop in parts:
            array = arrays[source]
            inside = _has_bytes(array) and type(start) is type(stop) is int
            inside = inside and 0 <= start <= stop <= array.size
            require(inside, f"{source} has no bytes {start!r} to {stop!r} for {name}")
            size += stop - start
            require_within_limit("what its blocks of tokens hold", size)
        found[name] = np.concatenate(
            [np.empty(0, np.uint8), *(arrays[source][start:stop] for source, start, stop in parts)]
        )
    return found


def _has_bytes(array: npt.NDArray[Any]) -> bool:
    return array.dtype == np.uint8 and array.ndim == 1


def _tensors(model: bytes) -> Iterator[tuple[int, bytes]]:
    """The larger tensors in an ONNX ``model``: the position of the first byte, and all bytes."""
    import onnx

    place = 0
    for tensor in onnx.load_model_from_string(model).graph.initializer:
        if len(tensor.raw_data) >= _LEAST:
            place = model.index(tensor.raw_data, place)
            yield place, tensor.raw_data
            place += len(tensor.raw_data)
