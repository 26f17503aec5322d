"""Decoders in the forms in which people export them, and their tokens by ONNX Runtime."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from amaranth_vta.networks import NETWORKS, generate
from amaranth_vta.networks.decoders import llama_tiny
from amaranth_vta.networks.float_network import FloatNetwork
from amaranth_vta.quantize.quantizer import Options, quantize
from amaranth_vta.session.compilation import compile
from amaranth_vta.sw.compiler.graph.load.input_shapes import with_dimensions
from amaranth_vta.sw.runtime.network.network_file import write_network

SIZE = 64  # tokens
LONG = 208


@cache
def growing(size: int = SIZE) -> onnx.ModelProto:
    """A decoder whose caches have an open length: ``present`` is longer than ``past`` by the new
    tokens, whose number is open too."""
    return generate("llama-tiny", size).model


@cache
def of_integers(size: int = SIZE) -> onnx.ModelProto:
    """`growing` as ``vta quantize --integer-only`` writes it: the machine computes all between the
    first and the last operators."""
    net = FloatNetwork("llama-tiny", 0, NETWORKS["llama-tiny"].opset, 1.0)
    model = net.model(*llama_tiny(net, size))
    random, sample = np.random.default_rng(size), {}
    for item in model.graph.input:
        tensor = item.type.tensor_type
        shape = [dim.dim_value or net.dimensions[dim.dim_param] for dim in tensor.shape.dim]
        if tensor.elem_type == onnx.TensorProto.FLOAT:
            sample[item.name] = random.normal(0, 1, shape).astype(np.float32)
        else:
            sample[item.name] = np.ones(shape, np.int64)
    options = Options(symmetric_activations=True, integer_only=True)
    return quantize(model, [sample], options).model


@cache
def sliding(size: int = SIZE) -> onnx.ModelProto:
    """A decoder of one token per run with caches of a fixed size, which drops the oldest token
    itself."""
    sizes = {"total_sequence_length": size, "past_sequence_length": size - 1}
    model = with_dimensions(growing(size), {"sequence_length": 1, **sizes})
    for name, value in (("first", 1), ("end", size), ("axis", 2)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    present = {item.name for item in model.graph.output if item.name != "logits"}
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"whole_{name}" if name in present else name for name in names]
    for item in model.graph.output:
        if item.name in present:
            given = [f"whole_{item.name}", "first", "end", "axis"]
            model.graph.node.append(helper.make_node("Slice", given, [item.name]))
            item.type.tensor_type.shape.dim[2].dim_value -= 1
    return onnx.shape_inference.infer_shapes(model)


def decoder_file(config: str) -> bytes:
    """A small decoder, compiled for single tokens and for blocks of 4."""
    file = io.BytesIO()
    write_network(compile(growing(16), config, context=16, prefill=4).program, file)
    return file.getvalue()


def reference_tokens(model: onnx.ModelProto, prompt: Sequence[int], count: int) -> list[int]:
    """The ``count`` tokens that ONNX Runtime, without optimizations, finds most likely after the
    prompt. Caches that may grow begin with no token; others have masked places.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    inputs = {item.name: item.shape for item in session.get_inputs()}
    names = [item.name for item in session.get_outputs()]
    grows = isinstance(inputs["attention_mask"][1], str)
    caches = {
        name: np.zeros([0 if isinstance(size, str) else size for size in shape], np.float32)
        for name, shape in inputs.items()
        if "past" in name
    }
    tokens = [*prompt]
    for place in range(len(prompt) + count - 1):
        mask = np.ones((1, place + 1 if grows else inputs["attention_mask"][1]), np.int64)
        mask[:, : -place - 1] = 0
        feeds = {
            "input_ids": np.array([[tokens[place]]]),
            "attention_mask": mask,
            "position_ids": np.array([[place]]),
        }
        logits, *present = session.run(names, feeds | caches)
        caches = dict(zip(caches, present, strict=True))
        if place + 1 == len(tokens):
            tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]
