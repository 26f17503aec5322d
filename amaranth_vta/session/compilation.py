"""Compiles a model for a machine, and caches the result: `compile`.

An entry of the cache is a file as `Session.save` writes it. Its name is a hash of the model, the
configuration, the options of `compile`, this package's files, and the versions of the packages that
it depends on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sim.cache import ToolchainError, hash_of, kept, package_version
from amaranth_vta.sw.compiler.graph.canonical.canonical_form import canonical
from amaranth_vta.sw.compiler.graph.load.input_shapes import (
    inputs_of,
    is_open,
    open_batch,
    with_dimensions,
)
from amaranth_vta.sw.compiler.graph.load.onnx_model import Source, read_model
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network as load_model
from amaranth_vta.sw.compiler.graph.load.states import decoder, with_states
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.plan.compiled_network import CompiledNetwork, compile_network
from amaranth_vta.sw.compiler.graph.plan.placement import Placement, has_own_operators, place
from amaranth_vta.sw.compiler.passes.pipeline import PlacedPass
from amaranth_vta.sw.compiler.tuner.records import Records, knobs_from
from amaranth_vta.sw.runtime.archive import ProgramError
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.network_file import load_network, save_network
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram


def compile(
    model: Source,
    config: Config | str = DEFAULT,
    images: int | None = None,
    passes: Sequence[PlacedPass] = (),
    tuned: Records | str | Path | None = None,
    allow_rounding: bool = False,
    dimensions: Mapping[str, int] | None = None,
    context: int | None = None,
    states: Mapping[str, str] | None = None,
    machines: int = 1,
    prefill: int = 1,
    memory_bus: int = 0,
) -> CompiledNetwork:
    """Compiles ``model`` for the machine of ``config``, both as in `Session`.

    ``passes`` are additional passes over the loop nest of each layer, each with its position as in
    `vta.build`. ``tuned`` are records of better schedules, or a file of them that ``vta tune``
    wrote. With ``allow_rounding`` the machine requantizes products even where rounding their biases
    to the scale of the sums can shift results by more than half a step. ``dimensions`` has sizes of
    open dimensions, by name.

    With ``context``, the model is a decoder: runs take one token unless ``dimensions`` has another
    number of tokens, its caches have room for ``context`` tokens in total, and they are variables.
    ``states`` are variables, zeros at first: the names of outputs with their next values, by input;
    by default the caches of a decoder, found by their names. With ``prefill``, it is compiled for
    blocks of that many tokens of a prompt too: ``block``, with the same caches.

    If several ``machines`` share each image, the program divides a layer between them, or between
    some of them, if the parts are estimated to take fewer cycles on a bus of ``memory_bus`` bits,
    by default as wide as in `SystemConfig`. The program runs on a bus of any width.

    A model that was compiled before is loaded from the cache folder,
    unless passes or operators have been added. Raises `ModelError`, `ConfigError`, `RecordsError`,
    and `LoweringError` for an unknown position.
    """
    require_context(prefill, context)
    config = Config.load(config) if isinstance(config, str) else config
    system = SystemConfig(config, machines, memory_bus)
    records = tuned if isinstance(tuned, Records) else Records.load(tuned) if tuned else Records()
    runs = (1,) if prefill == 1 else (1, prefill)
    # A block that is refused is refused before the first compilation.
    models = [prepared(model, config, dimensions, context, states, tokens) for tokens in runs]
    single, *blocks = (
        replace(_compiled(read, system, images, passes, records, allow_rounding), model=read)
        for read in models
    )
    if not blocks:
        return single
    (block,) = blocks
    return replace(single, program=single.program.with_block(block.program), block=block)


def _compiled(
    model: onnx.ModelProto,
    system: SystemConfig,
    images: int | None,
    passes: Sequence[PlacedPass],
    records: Records,
    allow_rounding: bool,
) -> CompiledNetwork:
    """Compiles a `prepared` model for the machines of ``system``; the other arguments are as in
    `compile`.
    """
    if images is not None and not open_batch(model):
        raise ModelError(
            f"the model fixes the number of images per run{_first_shape(model)}: leave "
            "images out, or export the model with an open first dimension"
        )
    if images is not None and images < 1:
        raise ValueError(f"{images} images cannot be run at a time: give 1 or more")
    config, number = system.config, images or system.config.batch
    machines, bus_bits = system.machines, system.bus_bits

    def find_network() -> Network:
        return canonical(load_model(model, number), allow_rounding)

    def compile_it() -> CompiledNetwork:
        with knobs_from(records.knobs):
            return compile_network(
                find_network(), config, open_batch(model), passes, machines, bus_bits
            )

    if passes or has_own_operators():
        # The cache key does not cover the code of passes and operators.
        return compile_it()
    options = str(number), records.digest, str(allow_rounding), str(machines), str(bus_bits)
    found = _cached_program(model, config, options, compile_it)
    if isinstance(found, CompiledNetwork):
        return found

    def find_placement(network: Network) -> Placement:
        with knobs_from(records.knobs):
            return place(network, config)

    return CompiledNetwork(found, find_network, find_placement)


def require_context(prefill: int, context: int | None) -> None:
    """Raises `ValueError` unless ``prefill`` is a number of tokens, for a decoder with a
    ``context``.
    """
    if prefill < 1 or (prefill > 1 and context is None):
        raise ValueError(
            f"prefill is {prefill}: give a number of tokens, and the decoder's context"
        )


def prepared(
    model: Source,
    config: Config,
    dimensions: Mapping[str, int] | None = None,
    context: int | None = None,
    states: Mapping[str, str] | None = None,
    block: int = 1,
) -> onnx.ModelProto:
    """The ``model`` with sizes of open dimensions and variables, as in `compile`; with a
    ``context``, for runs of a ``block`` of tokens.
    """
    read = with_dimensions(read_model(model), dimensions or {})
    if context is not None:
        return decoder(read, context, max(config.block_in, config.block_out), states, block)
    return with_states(read, states) if states else read


def open_network(model: Source, images: int, allow_rounding: bool = False) -> tuple[Network, bool]:
    """Loads ``model`` in canonical form, for runs of ``images`` if its batch size is open, and
    returns whether it is open. ``allow_rounding`` is as in `compile`. Raises `ModelError`.
    """
    read = read_model(model)
    return canonical(load_model(read, images), allow_rounding), open_batch(read)


def _cached_program(
    model: onnx.ModelProto,
    config: Config,
    options: Sequence[str],
    compile_it: Callable[[], CompiledNetwork],
) -> CompiledNetwork | NetworkProgram:
    """Returns a cached program, or compiles the network with ``compile_it`` and caches its program.

    If the cache folder is not writable or belongs to another user, the network is compiled each
    time. Raises what ``compile_it`` raises.
    """
    compiled: CompiledNetwork | None = None

    def make(path: Path) -> None:
        nonlocal compiled
        compiled = compile_it()
        save_network(compiled.program, path)

    try:
        path = kept("networks", f"{_cache_key(model, config, options)}.vta", make)
        return compiled or load_network(path, config)
    except (ToolchainError, ProgramError):
        return compiled or compile_it()


def _cache_key(model: onnx.ModelProto, config: Config, options: Sequence[str]) -> str:
    # The model includes weights stored in external files.
    contents = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
    return hash_of(contents, config.to_json(), *options, *package_version())


def _first_shape(model: onnx.ModelProto) -> str:
    """The name and shape of the model's first input, in parentheses; empty without inputs."""
    for item in inputs_of(model):
        dims = item.type.tensor_type.shape.dim
        sizes = ", ".join("?" if is_open(dim) else str(dim.dim_value) for dim in dims)
        return f" (input {item.name} has shape [{sizes}])"
    return ""
