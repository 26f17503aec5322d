"""Builds and quantizes a float network: `generated_network`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from zlib import crc32

import numpy as np
import onnx

from amaranth_vta.quantize.quantizer import Options, quantize
from amaranth_vta.sw.compiler.graph.load.input_shapes import sizes_of, with_dimensions

from .float_network import Array, FloatNetwork
from .generators import Form, Generator

# Number of calibration samples.
_SAMPLES = 2


@dataclass(frozen=True)
class GeneratedNetwork:
    """A quantized ``model``, and ``inputs`` for one run, by name."""

    model: onnx.ModelProto
    inputs: dict[str, Array]

    @property
    def sized(self) -> onnx.ModelProto:
        """The model with the sizes of ``inputs``, except for an open number of images."""
        shapes = {name: array.shape for name, array in self.inputs.items()}
        return with_dimensions(self.model, sizes_of(self.model, shapes))


def generated_network(name: str, generator: Generator, size: int, width: float) -> GeneratedNetwork:
    """Builds the float network with the function ``name`` in the module of ``generator``, and
    quantizes it.
    """
    module = import_module(f".{generator.module}", __package__)
    grow = getattr(module, name.replace("-", "_"))
    seed = crc32(name.encode())
    net = FloatNetwork(name, seed, generator.opset, width)
    model = net.model(*grow(net, size))
    rng = np.random.default_rng(seed)
    samples = [_inputs(model, net.dimensions, rng) for _ in range(_SAMPLES)]
    return GeneratedNetwork(quantize(model, samples, _options(generator.form)).model, samples[0])


def _options(form: Form) -> Options:
    return Options(
        per_channel=form.per_channel,
        power_of_two=form.power_of_two,
        operators=form.operators,
        unsigned_activations=form.activations == "uint8",
        unsigned_weights=form.weights == "uint8",
        symmetric_weights=form.symmetric,
        symmetric_activations=form.symmetric_activations,
        only=form.only,
        int4_weights=form.weights == "int4",
    )


def _inputs(
    model: onnx.ModelProto, sizes: Mapping[str, int], rng: np.random.Generator
) -> dict[str, Array]:
    made, past = {}, sizes.get("past_sequence_length", 0)
    for item in model.graph.input:
        tensor = item.type.tensor_type
        shape = tuple(dim.dim_value or sizes[dim.dim_param] for dim in tensor.shape.dim)
        if tensor.elem_type == onnx.TensorProto.INT64:
            tokens = rng.integers(0, 2, shape)
            # The caches of decoders are full.
            full = {"attention_mask": 1, "position_ids": past}.get(item.name)
            made[item.name] = tokens if not past or full is None else np.full_like(tokens, full)
        else:
            made[item.name] = _image(shape, rng)
    return made


def _image(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """A random image with standard deviation 1 and correlated neighbours, as in photographs and
    speech.
    """
    values = rng.normal(0, 1, shape)
    for axis in range(2, len(shape)):
        for step in (1, 2, 4):
            # Sums over a whole axis would be the same everywhere.
            if 2 * step < shape[axis]:
                values = (values + np.roll(values, step, axis)) / 2**0.5
    return (values / values.std()).astype(np.float32)
