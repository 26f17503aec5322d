"""A compiled network on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from amaranth_vta.extras import explain_missing_extras
from amaranth_vta.sim.devices import RunOptions, close_device
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram
from amaranth_vta.sw.runtime.network.tile_layout import Array
from amaranth_vta.sw.runtime.runtime import Runtime

from .batches import Batches
from .padding import InputPadding

if TYPE_CHECKING:
    import onnx

    from amaranth_vta.sw.compiler.graph.plan.compiled_network import CompiledNetwork
    from amaranth_vta.sw.runtime.network.runner import Runner


@dataclass(frozen=True)
class PlacedNetwork:
    """A network in the memory of a device; ``compiled`` is None if it was loaded compiled.
    ``padding`` is that of the latest inputs.

    Has the interface of `ShapedNetworks` (`current`, `require_current`, `select`, `close`), for a
    single shape.
    """

    program: NetworkProgram
    runtime: Runtime
    batches: Batches
    runner: Runner
    compiled: CompiledNetwork | None = None
    padding: InputPadding = field(default_factory=InputPadding)

    @classmethod
    def open(
        cls,
        program: NetworkProgram,
        options: RunOptions,
        launch: str,
        compiled: CompiledNetwork | None = None,
        runtime: Runtime | None = None,
        beside: Runner | None = None,
    ) -> PlacedNetwork:
        """Places ``program`` in the memory of ``runtime``, or of a device that ``options`` open,
        ``beside`` a network with the same variables.
        """
        with explain_missing_extras():
            from amaranth_vta.sw.runtime.network.runner import Runner
        machines = options.machines
        if runtime is None:
            placements = machines // program.machines
            size = program.program.placed_bytes(program.launched(launch), placements)
            runtime = Runtime(options.open(program.config, size))
        # Not a method of the session: a reference cycle would keep the device alive until the next
        # garbage collection.
        begins = (lambda _: None) if options.timeline is None else options.timeline.begin
        runner = Runner(program, runtime, begins, launch, machines, beside)
        return cls(program, runtime, Batches(program), runner, compiled)

    @property
    def model(self) -> onnx.ModelProto | None:
        """The model that was compiled; None if the network was loaded compiled."""
        return None if self.compiled is None else self.compiled.model

    @property
    def current(self) -> Self:
        return self

    def require_current(self) -> Self:
        return self

    def select(self, inputs: Mapping[str, Array]) -> Self:
        """This network: inputs of other shapes are refused when they run."""
        return self

    def close(self) -> None:
        """Closes the device; may be called again."""
        close_device(self.runtime.device)
