"""Tensors in other files: which files a model may name, and the errors for all others."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model
from amaranth_vta.sw.runtime.network.model_error import ModelError

WEIGHTS = np.arange(16, dtype=np.float32).reshape(4, 4)


def save(path: Path, location: str = "weights.bin", data: bytes | None = None) -> Path:
    """Write a model with a MatMul by `WEIGHTS`, which are stored in the file ``location``."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "external",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tensor,) = model.graph.initializer
    values = tensor.raw_data if data is None else data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "length": "64"}.items():
        tensor.external_data.add(key=key, value=value)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    if not os.path.isabs(location):
        (path.parent / location).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / location).write_bytes(values)
    return path


def loaded(path: Path) -> bool:
    """Whether the loaded weights are right; checks first that ONNX Runtime loads them."""
    (tensor,) = read_model(path).graph.initializer
    x = np.ones((1, 4), np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x @ WEIGHTS)
    return np.array_equal(numpy_helper.to_array(tensor), WEIGHTS)


def move(file: Path, target: Path) -> None:
    """Moves ``file``, and leaves a relative link in its place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    file.rename(target)
    file.symlink_to(os.path.relpath(target, file.parent))


@pytest.mark.parametrize("location", ["weights.bin", "data/weights.bin", "./weights.bin"])
def test_data_in_the_models_folder_or_below_are_read(tmp_path: Path, location: str) -> None:
    assert loaded(save(tmp_path / "model.onnx", location))


@pytest.mark.parametrize("folder", [".", "onnx"])
@pytest.mark.parametrize("linked", ["both", "data", "model"])
def test_the_hugging_face_cache_is_read(tmp_path: Path, folder: str, linked: str) -> None:
    root = tmp_path / "hub" / "models--some--network"
    snapshot = root / "snapshots" / "0123abcd" / folder
    path = save(snapshot / "model.onnx", "model.onnx_data")
    if linked != "model":
        move(snapshot / "model.onnx_data", root / "blobs" / "2222")
    if linked != "data":
        move(path, root / "blobs" / "1111")
    (tmp_path / "main").symlink_to(snapshot)
    if linked == "both":  # ONNX Runtime reads these, too
        assert loaded(path)
    assert read_model(path).graph.initializer[0].raw_data == WEIGHTS.tobytes()
    assert read_model(tmp_path / "main" / "model.onnx").graph.initializer[0].raw_data


@pytest.mark.parametrize("store", [".dvc/cache/files/md5", ".git/annex/objects"])
@pytest.mark.parametrize("model_too", [False, True])
def test_links_into_the_store_of_the_project_are_read(
    tmp_path: Path, store: str, model_too: bool
) -> None:
    path = save(tmp_path / "project" / "models" / "model.onnx")
    objects = tmp_path / "project" / store
    move(path.parent / "weights.bin", objects / "22" / "cdef")
    if model_too:
        move(path, objects / "11" / "abab")
    assert read_model(path).graph.initializer[0].raw_data == WEIGHTS.tobytes()


def test_hard_links_are_read(tmp_path: Path) -> None:
    path = save(tmp_path / "cache" / "model.onnx")
    (tmp_path / "project").mkdir()
    for name in ("model.onnx", "weights.bin"):
        os.link(path.parent / name, tmp_path / "project" / name)
    assert loaded(tmp_path / "project" / "model.onnx")


def test_a_link_to_a_model_finds_the_data_beside_the_model(tmp_path: Path) -> None:
    path = save(tmp_path / "models" / "model.onnx")
    (tmp_path / "link.onnx").symlink_to(path)
    assert read_model(tmp_path / "link.onnx").graph.initializer[0].raw_data == WEIGHTS.tobytes()


def test_links_within_the_folder_are_read(tmp_path: Path) -> None:
    path = save(tmp_path / "model.onnx")
    move(tmp_path / "weights.bin", tmp_path / "data" / "w")
    assert loaded(path)


@pytest.mark.parametrize("location", ["../secret", "a/../../secret", "/etc/hostname", ""])
def test_a_path_out_of_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(WEIGHTS.tobytes())
    (tmp_path / "models" / "a").mkdir(parents=True)
    path = save(tmp_path / "models" / "model.onnx")
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = location
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="not a file in the model's folder or below it"):
        read_model(path)


@pytest.mark.parametrize("kind", ["file", "folder", "cache", "project"])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "home" / "secret" / "w"
    secret.parent.mkdir(parents=True)
    secret.write_bytes(WEIGHTS.tobytes())
    root = tmp_path / "home" / "root"
    folder = root / ("snapshots/rev" if kind == "cache" else "models")
    path = save(folder / "model.onnx", "data/w")
    for store in ("blobs", ".dvc/cache", ".git/annex/objects"):
        (root / store).mkdir(parents=True)
    (folder / "data" / "w").unlink()
    if kind == "folder":
        (folder / "data").rmdir()
        (folder / "data").symlink_to(secret.parent)
    else:
        (folder / "data" / "w").symlink_to(secret)
    if kind == "cache":  # through a link in the store
        (root / "blobs" / "1").symlink_to(secret)
        (folder / "data" / "w").unlink()
        (folder / "data" / "w").symlink_to(root / "blobs" / "1")
    with pytest.raises(ModelError, match=f"is a link to {secret}, outside the model's folder"):
        read_model(path)


def test_a_file_that_is_not_regular_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "model.onnx")
    (tmp_path / "weights.bin").unlink()
    os.mkfifo(tmp_path / "weights.bin")
    with pytest.raises(ModelError, match="weights.bin is not a regular file"):
        read_model(path)


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "model.onnx")
    (tmp_path / "weights.bin").unlink()
    (tmp_path / "weights.bin").symlink_to("weights.bin")
    with pytest.raises(ModelError, match="weights.bin cannot be read"):
        read_model(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "weights.bin is empty"),
        (bytes(10), "weights.bin ends at byte 10, before the tensor does"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "weights.bin is a Git LFS pointer"),
    ],
)
def test_a_data_file_that_is_too_short_is_named(tmp_path: Path, data: bytes, said: str) -> None:
    path = save(tmp_path / "model.onnx", data=data)
    with pytest.raises(ModelError, match=f"keeps tensor w in weights.bin, and .*{said}"):
        read_model(path)


def test_a_model_in_bytes_has_no_folder(tmp_path: Path) -> None:
    path = save(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="keeps tensor w in another file: give the path"):
        read_model(path.read_bytes())
