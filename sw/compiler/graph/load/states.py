"""Variables of ONNX models, such as the caches of decoders: pairs of an input and an output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from amaranth_vta.sw.compiler.graph.network import declare_state, tensor_type
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .foreign_types import with_foreign_types
from .input_shapes import inputs_of, is_open

# Parts of the names of caches before and after a run, as exporters write them.
_RENAMED = (
    ("past_key_values", "present"),
    ("past_key_values", "present_key_values"),
    ("past", "present"),
)
_IDS = "input_ids"
_WHOLE = (1 << 63) - 1


def caches_of(model: onnx.ModelProto) -> dict[str, str]:
    """The caches of a decoder: inputs, and for each the output with its next value, matched by
    name: ``past_key_values.0.key`` and ``present.0.key``, ``past_0`` and ``present_0``."""
    outputs = {item.name for item in model.graph.output}
    found = {}
    for item in inputs_of(model):
        names = (item.name.replace(old, new) for old, new in _RENAMED if old in item.name)
        if (name := next((name for name in names if name in outputs), None)) is not None:
            found[item.name] = name
    return found


def decoder(
    model: onnx.ModelProto,
    context: int,
    multiple: int,
    states: Mapping[str, str] | None = None,
    block: int = 1,
) -> onnx.ModelProto:
    """``model``, a decoder, with at most ``context`` tokens in total, which are rounded up to a
    ``multiple``; its caches become variables. Runs take ``block`` tokens if their number is open.

    ``states`` are the outputs with the next values of caches, by input; those with usual names by
    default. Raises `ModelError`.
    """
    caches = dict(states or caches_of(model))
    if not caches:
        raise ModelError(
            "the model has no inputs and outputs with the names of caches, such as "
            "past_key_values.0.key and present.0.key; give their pairs"
        )
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    inputs = {item.name: item.type.tensor_type.shape.dim for item in inputs_of(copied)}
    masks = [name for name in inputs if _is_mask(name)]
    if len(masks) != 1 or not inputs[masks[0]]:
        raise ModelError(
            "the model has no attention_mask, so empty places of its caches would count"
        )
    (mask,) = masks
    size = -(-context // multiple) * multiple
    if not is_open(inputs[mask][-1]):
        size = inputs[mask][-1].dim_value
    if context > size:
        raise ModelError(f"the model holds {size:,} tokens; a context of {context:,} is more")
    new = _tokens_per_run(copied, inputs, block)
    if new > size:
        raise ModelError(f"runs of {new:,} tokens exceed the context of {size:,}")
    for name, dims in inputs.items():
        for position, dim in enumerate(dims):
            if is_open(dim):
                if name == mask and position == len(dims) - 1:
                    dim.dim_value = size
                elif position == 0 or name == mask:
                    dim.dim_value = 1
                else:
                    dim.dim_value = size - new if name in caches else new
    del copied.graph.value_info[:]
    for item in copied.graph.output:
        item.type.tensor_type.ClearField("shape")
    return with_states(copied, caches)


def _tokens_per_run(
    model: onnx.ModelProto,
    inputs: Mapping[str, Sequence[onnx.TensorShapeProto.Dimension]],
    block: int,
) -> int:
    """``block`` if the length of ``input_ids`` is open, else that length. Raises `ModelError` if
    runs cannot take a ``block`` of tokens, or if results would differ from runs of single tokens.
    """
    fixed = 0
    for name, dims in inputs.items():
        if _IDS in name and dims and not is_open(dims[-1]):
            fixed = dims[-1].dim_value
    if block > 1 and fixed:
        raise ModelError(
            f"blocks of {block:,} tokens need an open length of {_IDS}; it is fixed at {fixed:,}"
        )
    if block > 1 and any(node.op_type == "DynamicQuantizeLinear" for node in model.graph.node):
        raise ModelError(
            f"blocks of {block:,} tokens: the model is quantized dynamically, so all tokens of a "
            "block have the same scale, and results are others than for single tokens"
        )
    return fixed or block


def _is_mask(name: str) -> bool:
    """Whether an input is an attention mask, judged by its name."""
    return "mask" in name


def with_states(model: onnx.ModelProto, states: Mapping[str, str]) -> onnx.ModelProto:
    """A copy of ``model`` with variables: ``states`` are the outputs with their next values, by
    input. If an output is longer than its input in one dimension, its last elements are kept.
    Variables are zeros at first. Raises `ModelError`."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    inferred = with_foreign_types(onnx.shape_inference.infer_shapes(copied, data_prop=True))
    outputs = {item.name: item for item in inferred.graph.output}
    inputs = {item.name: item for item in inputs_of(model)}
    if twice := [name for name, count in Counter(states.values()).items() if count > 1]:
        raise ModelError(f"{twice[0]} is the next value of two inputs")
    for source, result in states.items():
        for name, known in ((source, inputs), (result, outputs)):
            if name not in known:
                what = "input" if known is inputs else "output"
                raise ModelError(f"{name} is no {what}; the model has {', '.join(known)}")
        old, new = tensor_type(inputs[source]), tensor_type(outputs[result])
        if old.dtype != new.dtype or old.shape is None or new.shape is None:
            raise ModelError(
                f"{result} is {new}, so it cannot be the next value of {source}, {old}"
            )
        kept = next(item for item in copied.graph.output if item.name == result)
        copied.graph.output.remove(kept)
        final = f"{source}/next"
        _keep_last(copied.graph, result, final, old.shape, new.shape)
        copied.graph.output.append(
            helper.make_tensor_value_info(
                final, helper.np_dtype_to_tensor_dtype(old.dtype), old.shape
            )
        )
        declare_state(copied, source, final)
    return copied


def _keep_last(
    graph: onnx.GraphProto, result: str, final: str, old: Sequence[int], new: Sequence[int]
) -> None:
    """Append the node that makes ``final`` of shape ``old`` from ``result`` of shape ``new``."""
    axes = [axis for axis, (a, b) in enumerate(zip(old, new, strict=False)) if a != b]
    if len(old) != len(new) or len(axes) > 1 or any(new[axis] < old[axis] for axis in axes):
        raise ModelError(f"{result} has the shape {[*new]}, which does not fit {[*old]} before it")
    if not axes:
        graph.node.append(helper.make_node("Identity", [result], [final], name=final))
        return
    (axis,) = axes
    names = []
    for what, value in (("start", new[axis] - old[axis]), ("end", _WHOLE), ("axis", axis)):
        names.append(f"{final}/{what}")
        graph.initializer.append(numpy_helper.from_array(np.array([value]), names[-1]))
    graph.node.append(helper.make_node("Slice", [result, *names], [final], name=final))
