"""What follows from what the machine counts in a run."""

from __future__ import annotations

from collections.abc import Mapping

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

# Whose elements are counted, by the name that its counter begins with.
_MEMORIES = {memory.name.lower(): memory for memory in isa.Memory}


def completed(config: Config, counted: Mapping[str, int]) -> dict[str, int]:
    """``counted``, values of `registers.COUNTERS` by name, and of them:

    ``macs``, the multiplications of GEMM; for each memory ``…_bytes``, what its elements take in
    DRAM; ``bytes_loaded`` and ``bytes_stored``, the sums of these, instructions not included.
    """
    result = dict(counted)
    result["macs"] = counted["gemm_uops"] * config.macs_per_cycle
    for name, memory in _MEMORIES.items():
        size = config.memory(memory).element_bytes
        result[f"{name}_bytes"] = counted[f"{name}_elements"] * size
    result["bytes_stored"] = result["out_bytes"]
    result["bytes_loaded"] = sum(
        result[f"{name}_bytes"]
        for name, memory in _MEMORIES.items()
        if memory is not isa.Memory.OUT
    )
    return result
