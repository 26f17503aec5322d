"""Caches compiled networks in the cache folder, so that an unchanged model is compiled once.

An entry is a file as `Session.save` writes it. Its name is a hash of the model, the configuration,
the options of `compile`, this package's files, and the versions of the packages it depends on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import onnx

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.cache import ToolchainError, hash_of, kept, package_version
from amaranth_vta.sw.compiler.graph.plan.compiled_network import CompiledNetwork
from amaranth_vta.sw.compiler.tuner.records import Records
from amaranth_vta.sw.runtime.archive import ProgramError
from amaranth_vta.sw.runtime.network.network_file import load_network, save_network
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram


def kept_program(
    model: onnx.ModelProto,
    config: Config,
    images: int,
    records: Records,
    allow_rounding: bool,
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
        path = kept("networks", f"{_key(model, config, images, records, allow_rounding)}.vta", make)
        return compiled or load_network(path, config)
    except (ToolchainError, ProgramError):
        return compiled or compile_it()


def _key(
    model: onnx.ModelProto, config: Config, images: int, records: Records, allow_rounding: bool
) -> str:
    # The model includes weights stored in external files.
    contents = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
    options = str(images), records.digest, str(allow_rounding)
    return hash_of(contents, config.to_json(), *options, *package_version())
