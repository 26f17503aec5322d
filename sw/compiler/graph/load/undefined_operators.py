"""Operators that ONNX does not have in the opset of a model: refused, brought by a newer one, or
for ONNX Runtime alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import onnx
from onnx import defs

from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import UnknownOperatorError, exact_session

from .opsets import LAST_KNOWN

_CONTRIBUTED = "com.microsoft"
_STANDARD = ("", "ai.onnx")
# The domain of operators while ONNX, which does not have them in the model's opset, looks at it.
_HIDDEN = "amaranth_vta.hidden"


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


def hide_undefined(what: str, model: onnx.ModelProto, version: int) -> tuple[onnx.ModelProto, int]:
    """Hide operators from ONNX that it does not define in opset ``version``. Return the model, and
    the opset that defines all operators but ONNX Runtime's.

    ONNX Runtime runs some operators, such as LayerNormalization, in older opsets than ONNX, and
    defines others, such as SimplifiedLayerNormalization, in ONNX's domain. They move to a private
    domain in a copy of ``model`` until `show_undefined`. Raises `ModelError`, in which ``what``
    names the model, for an operator that ONNX Runtime does not run.
    """
    newer = [node for node in nodes_of(model.graph.node) if _is_newer(node, version)]
    foreign = [node for node in nodes_of(model.graph.node) if is_foreign(node.domain, node.op_type)]
    if not newer and not foreign:
        return model, version
    opsets = [_first_opset(what, node, version) for node in newer]
    try:
        if version <= LAST_KNOWN:  # else ONNX Runtime runs it only when it is converted
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
    """What to say of a model that ONNX Runtime does not run."""
    if not newer:
        return ModelError(f"{what}: {error}")
    return ModelError(
        f"{what} uses opset {version} of ONNX, and {_named(newer[0])} came to ONNX with opset "
        f"{opsets[0]}"
    )


def is_foreign(domain: str, operator: str) -> bool:
    """Whether no opset of ONNX has an operator, although it is of ONNX's own domain."""
    return domain in _STANDARD and operator not in _defined()


def inferred(model: onnx.ModelProto, strict: bool = False) -> onnx.ModelProto:
    """``model`` with the types and shapes that ONNX infers, also with undefined operators.

    Raises what `onnx.shape_inference.infer_shapes` does.
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
    """All operators of ONNX's domain, of all opsets."""
    schemas = defs.get_all_schemas_with_history()
    return frozenset(schema.name for schema in schemas if schema.domain in _STANDARD)


def _hide(model: onnx.ModelProto, version: int | None) -> None:
    """Move operators into a private domain if no opset defines them, or only opsets after
    ``version``."""
    for node in nodes_of(model.graph.node):
        if is_foreign(node.domain, node.op_type) or (
            version is not None and _is_newer(node, version)
        ):
            node.domain = _HIDDEN
    model.opset_import.add(domain=_HIDDEN, version=1)


def show_undefined(model: onnx.ModelProto) -> None:
    """Puts hidden operators back into ONNX's domain, in a ``model`` converted to the opset that
    they need."""
    for node in nodes_of(model.graph.node):
        if node.domain == _HIDDEN:
            node.domain = ""
    kept = [item for item in model.opset_import if item.domain != _HIDDEN]
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
    """Whether ONNX has the operator of ``node``, but not in opset ``version``."""
    if node.domain not in _STANDARD or is_foreign(node.domain, node.op_type):
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
