"""`build` for functions that can be called: the compiler, which knows no simulator, with a
device."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.build import build as build_for
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.passes.pipeline import PlacedPass
from amaranth_vta.sw.compiler.te.schedule import Schedule
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.runtime.device import Device


def build(
    schedule: Schedule,
    args: Sequence[Tensor],
    name: str = "function",
    env: Environment | None = None,
    device: str = "functional",
    passes: Sequence[PlacedPass] = (),
) -> Function:
    """A function of ``args``, placeholders and outputs, which can be called with arrays.

    It runs on the device named ``device``, of the configuration of ``env``. ``passes`` are
    additional passes, each with its place: ``("after fold_loops", function)``. Raises
    `amaranth_vta.sw.compiler.build.BuildError` with the reason if the machine cannot run the
    schedule.
    """

    def open_default(config: Config, memory_bytes: int) -> Device:
        return open_device(device, config, memory_bytes)

    return build_for(schedule, args, name, env, open_default, passes)
