"""Compiles a model for a machine: `compile`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.sw.compiler.graph.canonical.canonical_form import canonical
from amaranth_vta.sw.compiler.graph.load.input_shapes import inputs_of, is_open, open_batch
from amaranth_vta.sw.compiler.graph.load.onnx_model import Source, load_network, read_model
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.plan.compiled_network import CompiledNetwork, compile_network
from amaranth_vta.sw.compiler.graph.plan.placement import Placement, has_own_operators, place
from amaranth_vta.sw.compiler.passes.pipeline import PlacedPass
from amaranth_vta.sw.compiler.tuner.records import Records, knobs_from
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .kept_networks import kept_program


def compile(
    model: Source,
    config: Config | str = DEFAULT,
    images: int | None = None,
    passes: Sequence[PlacedPass] = (),
    tuned: Records | str | Path | None = None,
    allow_rounding: bool = False,
) -> CompiledNetwork:
    """Compiles ``model`` for the machine of ``config``, both as in `Session`.

    ``passes`` are additional passes over the loop nest of each layer, each with its position as in
    `vta.build`. ``tuned`` are records of better schedules, or a file of them that ``vta tune``
    wrote. With ``allow_rounding`` the machine requantizes products even where rounding their biases
    to the scale of the sums can shift results by more than half a step. A model that was compiled
    before is loaded from the cache folder, unless passes or operators have been added. Raises
    `ModelError`, `ConfigError`, `RecordsError`, and `LoweringError` for an unknown position.
    """
    model = read_model(model)
    config = Config.load(config) if isinstance(config, str) else config
    if images is not None and not open_batch(model):
        raise ModelError(
            f"the model fixes how many images one run takes{_first_shape(model)}: leave "
            "images out, or export the model with an open first dimension"
        )
    if images is not None and images < 1:
        raise ValueError(f"{images} images cannot be run at a time: give 1 or more")
    number = images or config.batch
    records = tuned if isinstance(tuned, Records) else Records.load(tuned) if tuned else Records()

    def find_network() -> Network:
        return canonical(load_network(model, number), allow_rounding)

    def compile_it() -> CompiledNetwork:
        with knobs_from(records.knobs):
            return compile_network(find_network(), config, open_batch(model), passes)

    if passes or has_own_operators():
        # The cache key does not cover the code of passes and operators.
        return compile_it()
    found = kept_program(model, config, number, records, allow_rounding, compile_it)
    if isinstance(found, CompiledNetwork):
        return found

    def find_placement(network: Network) -> Placement:
        with knobs_from(records.knobs):
            return place(network, config)

    return CompiledNetwork(found, find_network, find_placement)


def _first_shape(model: onnx.ModelProto) -> str:
    """The name and shape of the model's first input, in parentheses; empty without inputs."""
    for item in inputs_of(model):
        dims = item.type.tensor_type.shape.dim
        sizes = ", ".join("?" if is_open(dim) else str(dim.dim_value) for dim in dims)
        return f" (input {item.name} has shape [{sizes}])"
    return ""


def open_network(model: Source, images: int, allow_rounding: bool = False) -> tuple[Network, bool]:
    """Loads ``model`` in canonical form, for runs of ``images`` if its batch size is open, and
    returns whether it is open. ``allow_rounding`` is as in `compile`. Raises `ModelError`.
    """
    read = read_model(model)
    return canonical(load_network(read, images), allow_rounding), open_batch(read)
