"""Exposes inner tensors of a model as outputs: `showing`."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import helper


def showing(model: onnx.ModelProto, names: Iterable[str]) -> bytes:
    """The serialized ``model``, with the tensors ``names`` as additional outputs."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    there = {item.name for item in shown.graph.output}
    shown.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for name in names if name not in there
    )
    return shown.SerializeToString()
