"""ONNX Runtime as used here: as the reference, and for the host's part of a network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import onnxruntime

from .model_error import ModelError
from .tile_layout import Array

if TYPE_CHECKING:
    import onnx

# Errors are raised as exceptions; the log would repeat them on the terminal.
_SILENT = 4
onnxruntime.set_default_logger_severity(_SILENT)


class UnknownOperatorError(ModelError):
    """ONNX Runtime does not implement an ``operator``."""

    def __init__(self, operator: str, text: str) -> None:
        super().__init__(text)
        self.operator = operator


def exact_session(model: bytes) -> onnxruntime.InferenceSession:
    """A session that runs ``model``, the bytes of an ONNX file, operator by operator, without graph
    optimizations.

    Raises `ModelError` if ONNX Runtime cannot run it.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _session(model, options)


def default_session(model: bytes) -> onnxruntime.InferenceSession:
    """A session with ONNX Runtime's defaults: all optimizations."""
    return _session(model, onnxruntime.SessionOptions())


def run_session(
    session: onnxruntime.InferenceSession, outputs: Iterable[str], inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """The ``outputs``, by name, for ``inputs``; raises `ModelError` if an operator fails."""
    names = list(outputs)
    try:
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))
    except Exception as error:  # as below
        raise ModelError(f"ONNX Runtime failed: {_sentence(error)}") from None


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> bytes:
    """The serialized ``model``, with the inner tensors ``names`` as additional outputs."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    present = {item.name for item in copy.graph.output}
    copy.graph.output.extend(
        onnx.helper.make_empty_tensor_value_info(name) for name in names if name not in present
    )
    return copy.SerializeToString()


def _session(model: bytes, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    _require_no_other_files(model)
    # Networks are small and images many, so threads cost more than they gain.
    options.intra_op_num_threads = 1
    options.log_severity_level = _SILENT
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no narrower common base
        _require_known_operators(model, str(error))
        raise ModelError(f"ONNX Runtime cannot run the model: {_sentence(error)}") from None


def _sentence(error: Exception) -> str:
    """ONNX Runtime's error message without error codes, source locations and failed checks."""
    text = " ".join(str(error).split())
    for pattern in (
        r"^\[ONNXRuntimeError\] : \d+ : \w+ : ",
        r"^Load model from .* failed:",
        r"This is an invalid model\. ",
        r"Exception during initialization: ",
        r"Exception caught: ",
        r"\S*/onnxruntime_src/\S+ .*? was false\. ?",
        r"\S*/onnxruntime_src/\S+ ",
    ):
        text = re.sub(pattern, "", text)
    return text.strip() or type(error).__name__


def _require_known_operators(model: bytes, error: str) -> None:
    """Raise `UnknownOperatorError` if ``error`` reports an unknown operator."""
    found = re.search(r"(\S+):(\w+)\(-?\d+\) is not a registered function/op", error)
    if found is not None:
        domain, operator = found.groups()
    else:
        found = re.search(r"No Op registered for (\w+) with domain_version", error)
        if found is None:
            return
        domain, operator = "ai.onnx", found[1]
    import onnx

    known = ("", "ai.onnx") if domain == "ai.onnx" else (domain,)
    nodes = onnx.load_model_from_string(model).graph.node
    named = [node.name for node in nodes if node.op_type == operator and node.domain in known]
    where = f" (node {named[0]})" if named else ""
    raise UnknownOperatorError(
        operator,
        f"neither the machine nor ONNX Runtime has the operator {operator} of domain {domain}"
        f"{where}, so that nothing can run it",
    )


def _require_no_other_files(model: bytes) -> None:
    """Raises `ModelError` if tensors are in external files, which ONNX Runtime would read from the
    current folder. Models made by the compiler contain all their tensors.
    """
    # An external tensor has its file name under this key; without the key, parsing is unnecessary.
    if b"location" not in model:
        return
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import external_data_helper

    try:
        tensors = external_data_helper._get_all_tensors(onnx.load_model_from_string(model))
        named = [tensor.name for tensor in tensors if tensor.external_data or tensor.data_location]
    except DecodeError as error:
        raise ModelError(f"the host's part of the network is not an ONNX model: {error}") from None
    if named:
        raise ModelError(f"the host's part of the network keeps tensor {named[0]} in another file")
