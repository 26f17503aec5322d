"""A tensor accelerator in Amaranth, with its compiler, runtime and simulators.

    import amaranth_vta as vta
    from amaranth_vta import te

The public names below are imported lazily, on first use, since some of them import large packages.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# ONNX Runtime reads this when it is imported; without it, it writes a device identifier and a
# database of events to the user's cache folder. Child processes inherit the environment.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from amaranth_vta.default_device import build
    from amaranth_vta.errors import VtaError
    from amaranth_vta.example_files import example_path
    from amaranth_vta.hw.config import PRESETS, Config
    from amaranth_vta.session import Session
    from amaranth_vta.session.compilation import compile
    from amaranth_vta.sim.devices import RunOptions, open_device
    from amaranth_vta.sw.compiler import te
    from amaranth_vta.sw.compiler.environment import Environment, get_env
    from amaranth_vta.sw.compiler.graph.plan.placement import register_operator
    from amaranth_vta.sw.compiler.lower import lower
    from amaranth_vta.sw.compiler.tuner.workload import explain

__version__: str  # of the installed package, read on first use

__all__ = [
    "PRESETS",
    "Config",
    "Environment",
    "RunOptions",
    "Session",
    "VtaError",
    "build",
    "compile",
    "example_path",
    "explain",
    "get_env",
    "lower",
    "open_device",
    "register_operator",
    "te",
]

_HOMES = {
    "Config": "hw.config",
    "PRESETS": "hw.config",
    "RunOptions": "sim.devices",
    "Environment": "sw.compiler.environment",
    "Session": "session",
    "VtaError": "errors",
    "build": "default_device",
    "compile": "session.compilation",
    "example_path": "example_files",
    "explain": "sw.compiler.tuner.workload",
    "get_env": "sw.compiler.environment",
    "lower": "sw.compiler.lower",
    "open_device": "sim.devices",
    "register_operator": "sw.compiler.graph.plan.placement",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = import_module("importlib.metadata").version("amaranth-vta")
    elif name == "te":
        value = import_module("amaranth_vta.sw.compiler.te")
    elif name in _HOMES:
        from amaranth_vta.extras import explain_missing_extras

        with explain_missing_extras():
            value = getattr(import_module(f"amaranth_vta.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
