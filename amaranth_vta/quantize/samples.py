"""Calibration samples: from files, or random."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from amaranth_vta.sw.compiler.graph.load.input_shapes import fix_shapes, inputs_of, is_open
from amaranth_vta.sw.runtime.array_file import (
    ArrayFile,
    DamagedFile,
    FileLimitError,
    is_single_array,
    read_single_array,
)
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.tile_layout import Array

# For each input the shape of one sample, with 0 for an open size, and the dtype.
_Inputs = Mapping[str, tuple[tuple[int, ...], np.dtype]]
# Number of random samples, and maximum number of samples from files.
_FEW, _MOST = 16, 500


def samples_from(path: str | None, model: onnx.ModelProto) -> list[dict[str, Array]]:
    """Samples for the inputs of ``model``: from an .npz with an array of several samples per input,
    from a folder of .npz or .npy files with one or more samples each, or a few random samples if
    ``path`` is None.

    Sizes that the model leaves open, besides the number of samples, are taken from the first
    sample. Raises `ModelError` if arrays do not fit the inputs, or random samples would need sizes.
    """
    if path is None:
        return _random(model)
    shapes = _inputs(model)
    files = sorted(Path(path).iterdir()) if Path(path).is_dir() else [Path(path)]
    samples: list[dict[str, Array]] = []
    for file in files:
        if file.suffix in (".npz", ".npy"):
            samples += _of(file, shapes)
            if samples:
                shapes = {name: (item.shape, item.dtype) for name, item in samples[0].items()}
    if not samples:
        raise ModelError(f"{path} has no .npz or .npy to calibrate with")
    return samples[:_MOST]


def _inputs(model: onnx.ModelProto) -> _Inputs:
    found = {}
    for item in inputs_of(model):
        tensor = item.type.tensor_type
        sizes = [0 if is_open(dim) else dim.dim_value for dim in tensor.shape.dim]
        # One sample if their number is open.
        shape = (sizes[0] or 1, *sizes[1:]) if sizes else ()
        found[item.name] = shape, np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return found


def _random(model: onnx.ModelProto) -> list[dict[str, Array]]:
    single = onnx.ModelProto()
    single.CopyFrom(model)
    fix_shapes(single, batch=1)
    shapes, random = _inputs(single), np.random.default_rng(0)
    return [
        {
            name: random.random(shape, np.float32).astype(dtype)
            for name, (shape, dtype) in shapes.items()
        }
        for _ in range(_FEW)
    ]


def _of(file: Path, shapes: _Inputs) -> list[dict[str, Array]]:
    try:
        with file.open("rb") as opened:
            if is_single_array(opened):
                arrays = {next(iter(shapes)): read_single_array(opened)}
            else:
                arrays = ArrayFile(opened).read_all()
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}") from None
    except FileLimitError as error:
        raise FileLimitError(f"{file}: {error}") from None
    except DamagedFile as error:
        raise ModelError(f"{file} is damaged, or not an .npz or .npy file: {error}") from None
    if missing := [name for name in shapes if name not in arrays]:
        raise ModelError(f"{file} has no array for the input {missing[0]}")
    parts = {name: _cut(file, name, arrays[name], *shapes[name]) for name in shapes}
    # An array of rank 0, for an input of rank 0, applies to all samples.
    shared = {name for name in shapes if arrays[name].ndim == 0}
    count = min((len(part) for name, part in parts.items() if name not in shared), default=1)
    return [
        {name: part[0 if name in shared else index] for name, part in parts.items()}
        for index in range(count)
    ]


def _cut(
    file: Path, name: str, array: Array, shape: tuple[int, ...], dtype: np.dtype
) -> list[Array]:
    """Splits an array of many samples into samples of ``shape``."""
    if not shape:
        # Keeps arrays of rank 0: ONNX Runtime rejects NumPy scalars.
        return [element.reshape(()) for element in array.astype(dtype).reshape(-1, 1)]
    if array.ndim == len(shape) - 1:
        array = array[None]
    fits = array.ndim == len(shape) and len(array) >= shape[0]
    if not fits or any(
        size != wanted for size, wanted in zip(array.shape[1:], shape[1:], strict=True) if wanted
    ):
        wanted_shape = str([size or "any" for size in shape]).replace("'", "")
        raise ModelError(f"{file}: {name} has shape {list(array.shape)}, not {wanted_shape}")
    whole = len(array) // shape[0] * shape[0]
    return [array[i : i + shape[0]].astype(dtype) for i in range(0, whole, shape[0])]
