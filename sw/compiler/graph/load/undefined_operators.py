"""Handle operators that ONNX does not define in a model's opset: reject them, find a newer opset
that defines them, or leave them to ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import onnx
from onnx import defs

from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT, subgraphs
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import UnknownOperatorError, exact_session

from .opsets import LAST_KNOWN

_STANDARD = ("", "ai.onnx")
# Temporary domain that hides operators from ONNX.
_HIDDEN = "amaranth_vta.hidden"


def with_microsoft_domain(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model``, or a copy that imports com.microsoft if it uses that domain without
    importing it. ONNX Runtime accepts both."""
    imported = {item.domain for item in model.opset_import}
    used = {node.domain for node in nodes_of(model.graph.node)}
    if MICROSOFT in imported or MICROSOFT not in used:
        return model
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    copied.opset_import.add(domain=MICROSOFT, version=1)
    return copied


def hide_undefined(what: str, model: onnx.ModelProto, version: int) -> tuple[onnx.ModelProto, int]:
    """Hide operators from ONNX that it does not define in opset ``version``. Returns the model, and
    the first opset that defines all operators except ONNX Runtime's own.

    ONNX Runtime runs some operators, such as LayerNormalization, in older opsets than ONNX, and
    defines others, such as SimplifiedLayerNormalization, in ONNX's domain. In a copy of ``model``,
    these are in a private domain until `show_undefined`. Raises `ModelError`, in which ``what``
    names the model, for an operator that ONNX Runtime does not run.
    """
    newer = [node for node in nodes_of(model.graph.node) if _is_newer(node, version)]
    foreign = [node for node in nodes_of(model.graph.node) if is_foreign(node.domain, node.op_type)]
    if not newer and not foreign:
        return model, version
    opsets = [_first_opset(what, node, version) for node in newer]
    try:
        if version <= LAST_KNOWN:  # ONNX Runtime runs newer opsets only after conversion
            exact_session(model.SerializeToString())
    except UnknownOperatorError as error:
        unknown = [node for node in foreign if node.op_type == error.operator]
        if unknown:
            raise ModelError(
                f"{what} has an operator that ONNX does not define: {_named(unknown[0])}"
            ) from None
        raise _too_old(what, version, newer, opsets, error) from None
    except ModelError as error:
        raise _too_old(what, version, newer, opsets, error) from None
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    _hide(copied, version)
    return copied, max([version, *opsets])


def _too_old(
    what: str, version: int, newer: list[onnx.NodeProto], opsets: list[int], error: ModelError
) -> ModelError:
    """The error for a model that ONNX Runtime does not run."""
    if not newer:
        return ModelError(f"{what}: {error}")
    return ModelError(
        f"{what} uses opset {version} of ONNX, and {_named(newer[0])} came to ONNX with opset "
        f"{opsets[0]}"
    )


def is_foreign(domain: str, operator: str) -> bool:
    """Whether an operator is in ONNX's domain, but in no opset of ONNX."""
    return domain in _STANDARD and operator not in _defined()


def inferred(model: onnx.ModelProto, strict: bool = False) -> onnx.ModelProto:
    """Infer types and shapes by ONNX, even if ``model`` has undefined operators.

    Raises the exceptions of `onnx.shape_inference.infer_shapes`.
    """
    if not any(is_foreign(node.domain, node.op_type) for node in nodes_of(model.graph.node)):
        return onnx.shape_inference.infer_shapes(model, strict_mode=strict, data_prop=True)
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    _hide(copied, None)
    result = onnx.shape_inference.infer_shapes(copied, strict_mode=strict, data_prop=True)
    show_undefined(result)
    return result


@cache
def _defined() -> frozenset[str]:
    """Names of all operators in ONNX's domain, in all opsets."""
    schemas = defs.get_all_schemas_with_history()
    return frozenset(schema.name for schema in schemas if schema.domain in _STANDARD)


def _hide(model: onnx.ModelProto, version: int | None) -> None:
    """Move operators to the private domain if no opset defines them, or if only opsets after
    ``version`` do."""
    for node in nodes_of(model.graph.node):
        if is_foreign(node.domain, node.op_type) or (
            version is not None and _is_newer(node, version)
        ):
            node.domain = _HIDDEN
    model.opset_import.add(domain=_HIDDEN, version=1)


def show_undefined(model: onnx.ModelProto) -> None:
    """Move hidden operators back to ONNX's domain, after ``model`` has been converted to an opset
    that defines them."""
    for node in nodes_of(model.graph.node):
        if node.domain == _HIDDEN:
            node.domain = ""
    kept = [item for item in model.opset_import if item.domain != _HIDDEN]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def nodes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield ``nodes`` and the nodes of all subgraphs in their attributes."""
    for node in nodes:
        yield node
        for inner in subgraphs(node):
            yield from nodes_of(inner.node)


def _is_newer(node: onnx.NodeProto, version: int) -> bool:
    """Whether ONNX defines the operator of ``node``, but not in opset ``version``."""
    if node.domain not in _STANDARD or is_foreign(node.domain, node.op_type):
        return False
    try:
        return bool(defs.get_schema(node.op_type, version, "").deprecated)
    except defs.SchemaError:
        return True


def _first_opset(what: str, node: onnx.NodeProto, version: int) -> int:
    """The first opset after ``version`` that defines the operator of ``node``."""
    history = [
        schema
        for schema in defs.get_all_schemas_with_history()
        if schema.name == node.op_type and schema.domain in _STANDARD
    ]
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
