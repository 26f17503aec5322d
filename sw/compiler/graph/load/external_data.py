"""Load tensors that a model keeps in other files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import external_data_helper

from amaranth_vta.sw.runtime.array_file import require_within_limit
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .foreign_files import kind_of

# Path suffixes of stores that working folders link to: the Hugging Face cache, DVC and git-annex.
_STORES = (("blobs",), (".dvc", "cache"), ("files", "md5"), (".git", "annex", "objects"))


def external_tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """The tensors of ``model`` whose data is in other files."""
    tensors = external_data_helper._get_all_tensors(model)
    return [item for item in tensors if external_data_helper.uses_external_data(item)]


def load_external_data(model: onnx.ModelProto, path: Path) -> None:
    """Read external data into ``model``, which was read from ``path``.

    A tensor names a file in the model's folder or below. That file may be a link, within the folder
    or into a tool's store (see docs/security.md); other links are rejected. Raises `ModelError`,
    which names the file, `FileLimitError`, and `ValueError` for an offset or length that is not a
    number.
    """
    found = []
    total = 0
    for tensor in external_tensors(model):
        place = external_data_helper.ExternalDataInfo(tensor)
        about = f"{path} keeps tensor {tensor.name} in {place.location}"
        file = _file(path, place.location, about)
        offset, size = place.offset or 0, file.stat().st_size
        length = size - offset if place.length is None else place.length
        if offset < 0 or length < 0 or offset + length > size:
            kind = kind_of(file)
            reason = f"is {kind}" if kind else f"ends at byte {size:,}, before the tensor does"
            raise ModelError(f"{about}, and {file} {reason}")
        total += length
        found.append((tensor, file, offset, length, about))
    require_within_limit("what it has in other files", total)
    for tensor, file, offset, length, about in found:
        try:
            with file.open("rb") as opened:
                opened.seek(offset)
                tensor.raw_data = opened.read(length)
        except OSError as error:
            raise ModelError(f"{about}, and {file} cannot be read: {error.strerror}") from None
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _file(model: Path, location: str, about: str) -> Path:
    """The regular file that ``location`` refers to, for the model at ``model``."""
    if not location or os.path.isabs(location) or ".." in Path(location).parts:
        raise ModelError(f"{about}, which is not a file in the model's folder or below it")
    # The model may be a link to a file whose data lies beside it.
    folders = dict.fromkeys((model.parent, model.resolve().parent))
    file = next(
        (folder / location for folder in folders if os.path.lexists(folder / location)),
        model.parent / location,
    )
    try:
        target = file.resolve(strict=True)
        mode = target.stat().st_mode
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "its links go in a circle"
        raise ModelError(f"{about}, and {file} cannot be read: {reason}") from None
    if not stat.S_ISREG(mode):
        raise ModelError(f"{about}, and {file} is not a regular file")
    allowed = [*(folder.resolve() for folder in folders), *_stores(model)]
    if not any(target.is_relative_to(folder) for folder in allowed):
        raise ModelError(f"{about}, and {file} is a link to {target}, outside the model's folder")
    return target


def _stores(model: Path) -> Iterator[Path]:
    """Yield the stores of the working folder of ``model``: those in its parent folders, and the one
    that contains the model if it is a link."""
    # Parent folders, unresolved and with links resolved.
    named, real = Path(os.path.abspath(model)).parents, (model.parent.resolve() / "x").parents
    for folder in dict.fromkeys((*named, *real)):
        for parts in _STORES:
            # Only snapshots of the Hugging Face cache have their contents in "blobs".
            beside = folder.parent if folder.name == "snapshots" else folder
            if (parts != ("blobs",) or folder.name == "snapshots") and (
                store := beside.joinpath(*parts)
            ).is_dir():
                yield store.resolve()
    for folder in model.resolve().parents:
        if any(folder.parts[-len(parts) :] == parts for parts in _STORES):
            yield folder
