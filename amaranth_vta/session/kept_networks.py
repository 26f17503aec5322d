"""Compiled networks in the cache folder: a model that has not changed is compiled once.

An entry is the file that `Session.save` writes, named by a hash of the model, the configuration,
the options of `compile`, this package's files and the versions of the packages that it computes
with.
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
    """The network that ``compile_it`` compiles and that is then kept; its program alone if it was
    kept before.

    If nothing can be kept, because the cache folder cannot be written or is another user's, the
    network is compiled each time. Raises what ``compile_it`` raises.
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
    # The model includes weights that its file keeps in other files.
    contents = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
    options = str(images), records.digest, str(allow_rounding)
    return hash_of(contents, config.to_json(), *options, *package_version())
