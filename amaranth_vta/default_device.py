"""`build` with a device: the compiler's `build` itself imports no simulator."""

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
    """Compiles ``schedule`` to a function that can be called with arrays for ``args``, its
    placeholders and outputs.

    The function runs on the device named ``device``, with the configuration of ``env``. ``passes``
    are additional passes, each with its position: ``("after fold_loops", function)``. Raises
    `amaranth_vta.sw.compiler.build.BuildError` with the reason if the machine cannot run the
    schedule.
    """

    def open_default(config: Config, memory_bytes: int) -> Device:
        return open_device(device, config, memory_bytes)

    return build_for(schedule, args, name, env, open_default, passes)
