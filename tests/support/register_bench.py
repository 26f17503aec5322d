"""The machine driven by individual register accesses, with a memory of any timing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.registers import REGISTERS
from amaranth_vta.sim.machine.dram import MemoryTiming
from amaranth_vta.sim.machine.host import SimulatedDevice
from amaranth_vta.sim.machine.rtl.build import machine_library
from amaranth_vta.sim.machine.rtl.engine import CompiledMachine
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.runtime.device import Fault


class RegisterBench(SimulatedDevice):
    """The RTL of ``config``, with ``size`` bytes of memory from address ``origin`` on; ``library``
    is another build of it.
    """

    name = "bench"
    machine: CompiledMachine

    def __init__(
        self,
        config: Config,
        size: int,
        timing: MemoryTiming,
        origin: int = 0,
        library: Path | None = None,
    ) -> None:
        super().__init__(config, size, origin=origin)
        library = library or machine_library(config)
        self.attach(CompiledMachine(library, self.memory, timing, origin=self.origin))

    def put(self, address: int, instructions: Sequence[isa.Instruction]) -> None:
        """Write a program to ``address``, and its location to the registers."""
        encode = isa.instruction_set(self.config).encode
        self.write(address, b"".join(encode(item).to_bytes(16, "little") for item in instructions))
        self.poke("INSN_ADDR", address)
        self.poke("INSN_COUNT", len(instructions))

    def put_image(self, image: ProgramImage) -> None:
        self.write(image.origin, image.dram)
        self.poke("INSN_ADDR", image.insn_addr)
        self.poke("INSN_COUNT", image.insn_count)

    def launch(self, insn_addr: int, insn_count: int) -> None:
        """Start a run as a driver does, with the limits set before."""
        self._launch(insn_addr, insn_count)

    def poke(self, name: str, value: int) -> None:
        self._write(name, value)

    def peek(self, name: str) -> int:
        return self._read(name)

    def command(self, *parts: str) -> None:
        control = REGISTERS["CONTROL"]
        self.poke("CONTROL", sum(1 << control.part(part).offset for part in parts))

    @property
    def status(self) -> set[str]:
        value = self.peek("STATUS")
        return {part.name for part in REGISTERS["STATUS"].bits if value >> part.offset & 1}

    @property
    def fault(self) -> Fault | None:
        return self._fault()

    @property
    def place(self) -> tuple[str, int]:
        """The module and the instruction of the report."""
        module = REGISTERS["FAULT"].part("module").offset
        return isa.Module(self.peek("FAULT") >> module & 3).name.lower(), self.peek("FAULT_INSN")

    def settle(self, cycles: int = 20_000) -> None:
        self.machine.advance(cycles)

    def reset_line(self) -> None:
        """Hold the reset line for a few cycles, as at power-up; accesses in flight are lost."""
        self._reset()
