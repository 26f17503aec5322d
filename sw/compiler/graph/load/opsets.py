"""Check ONNX operator set versions, and convert models to supported ones."""

from __future__ import annotations

import onnx
from onnx import version_converter

from amaranth_vta.sw.runtime.network.model_error import ModelError

# The oldest opset that ONNX converts and ONNX Runtime runs.
OLDEST_OPSET = 7
# QuantizeLinear has an axis since 13; the pinned ONNX Runtime supports opsets up to 26.
_FIRST_KNOWN, LAST_KNOWN = 13, 26
# Metadata key for the original opset of a converted model.
CONVERTED_FROM = "amaranth_vta.converted_from_opset"


def opset_of(what: str, model: onnx.ModelProto) -> int:
    """The version of the ONNX opset that ``model`` uses.

    Raises `ModelError`, in which ``what`` names the model, if the version is missing or not
    supported.
    """
    versions = {item.domain: item.version for item in model.opset_import}
    version = versions.get("", versions.get("ai.onnx"))
    if version is None:
        raise ModelError(f"{what} is damaged: it does not say which opset of ONNX it uses")
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= version <= newest:
        raise ModelError(
            f"{what} uses opset {version} of ONNX; {OLDEST_OPSET} to {newest} are supported"
        )
    return version


def with_known_opset(
    what: str, model: onnx.ModelProto, version: int, needed: int
) -> onnx.ModelProto:
    """Return ``model``, or a conversion if the compiler does not know its opset ``version`` or if
    some operators need the newer opset ``needed``. Raises `ModelError` if conversion fails."""
    target = min(max(needed, _FIRST_KNOWN), LAST_KNOWN)
    if target == version:
        return model
    try:
        converted = version_converter.convert_version(model, target)
    except Exception as error:  # exceptions of the converter have no other common base
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"{what} uses opset {version} of ONNX and cannot be converted to {target}: {reason[0]}"
        ) from None
    kept = {item.domain for item in converted.opset_import}
    converted.opset_import.extend(
        item for item in model.opset_import if item.domain not in {*kept, "", "ai.onnx"}
    )
    converted.metadata_props.add(key=CONVERTED_FROM, value=str(version))
    return converted


def conversion(model: onnx.ModelProto) -> str:
    """Message that a model was converted; empty if it was not."""
    found = {item.key: item.value for item in model.metadata_props}.get(CONVERTED_FROM)
    if found is None:
        return ""
    (version,) = (item.version for item in model.opset_import if item.domain == "")
    return f"The model was converted from opset {found} of ONNX to {version}."
