"""Operators that ONNX does not have in the opset of a model: refused, or brought by a newer one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
from onnx import defs

from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session

_CONTRIBUTED = "com.microsoft"
_STANDARD = ("", "ai.onnx")
# Where operators wait whose opset is newer than the model's, until the model is converted to it.
_NEWER = "amaranth_vta.newer"


def with_contributed_domain(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model``, or if it has operators of com.microsoft and names no version of that domain, a
    copy that does: ONNX Runtime does not mind either."""
    imported = {item.domain for item in model.opset_import}
    used = {node.domain for node in nodes_of(model.graph.node)}
    if _CONTRIBUTED in imported or _CONTRIBUTED not in used:
        return model
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    copied.opset_import.add(domain=_CONTRIBUTED, version=1)
    return copied


def hide_newer(what: str, model: onnx.ModelProto, version: int) -> tuple[onnx.ModelProto, int]:
    """``model``, whose opset is ``version``, and the opset that has all of its operators.

    ONNX Runtime runs some operators, such as LayerNormalization, in older opsets than ONNX. In that
    case the model is a copy in which these are of a domain of their own, for `show_newer`. Raises
    `ModelError`, in which ``what`` names the model, for an operator that ONNX does not have.
    """
    newer = [node for node in nodes_of(model.graph.node) if _is_newer(node, version)]
    if not newer:
        return model, version
    opsets = [_first_opset(what, node, version) for node in newer]
    try:
        exact_session(model.SerializeToString())
    except ModelError:
        raise ModelError(
            f"{what} uses opset {version} of ONNX, and {_named(newer[0])} came to ONNX with opset "
            f"{opsets[0]}"
        ) from None
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    for node in nodes_of(copied.graph.node):
        if _is_newer(node, version):
            node.domain = _NEWER
    copied.opset_import.add(domain=_NEWER, version=1)
    return copied, max(opsets)


def show_newer(model: onnx.ModelProto) -> None:
    """Puts the operators of `hide_newer` back, in a ``model`` converted to the opset they need."""
    for node in nodes_of(model.graph.node):
        if node.domain == _NEWER:
            node.domain = ""
    kept = [item for item in model.opset_import if item.domain != _NEWER]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def nodes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """``nodes`` and those of the graphs in their attributes."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from nodes_of(inner.node)


def _is_newer(node: onnx.NodeProto, version: int) -> bool:
    """Whether ONNX does not have the operator of ``node`` in opset ``version``."""
    if node.domain not in _STANDARD:
        return False
    try:
        return bool(defs.get_schema(node.op_type, version, "").deprecated)
    except defs.SchemaError:
        return True


def _first_opset(what: str, node: onnx.NodeProto, version: int) -> int:
    """The first opset after ``version`` that has the operator of ``node``."""
    history = [
        schema
        for schema in defs.get_all_schemas_with_history()
        if schema.name == node.op_type and schema.domain in _STANDARD
    ]
    if not history:
        raise ModelError(f"{what} has an operator that ONNX does not define: {_named(node)}")
    newer = [schema.since_version for schema in history if schema.since_version > version]
    if not newer:
        ended = max(schema.since_version for schema in history)
        raise ModelError(
            f"{what} uses opset {version} of ONNX, which does not have {_named(node)} any more: it "
            f"ended with opset {ended}"
        )
    return min(newer)


def _named(node: onnx.NodeProto) -> str:
    where = node.name or (node.output[0] if node.output else "")
    return f"{node.op_type} (node {where})"
