"""What reports say about several machines."""

from __future__ import annotations

from typing import Any

from amaranth_vta.hw.system.parameters import SystemConfig

from .text_table import counted


def system_report(system: SystemConfig, split: bool) -> dict[str, Any]:
    """The keys of a JSON report that only several machines have; ``split`` is whether they share
    each image.
    """
    if system.is_single:
        return {}
    return {"machines": system.machines, "memory_bus": system.bus_bits, "split": split}


def system_use(system: SystemConfig, split: bool) -> str:
    """What several machines do, as the beginning of a sentence."""
    use = "share the layers of each image" if split else "run images at once"
    return f"{system.machines} machines on a bus of {system.bus_bits} bits {use}"


def system_note(
    system: SystemConfig, split: bool, images: int, macs: int, cycles: int | None
) -> str:
    """A sentence on the meaning of numbers of several machines, which ran ``images``; empty for a
    single machine. ``cycles`` is None on a device without a clock.
    """
    if system.is_single:
        return ""
    text = (
        f"{system_use(system, split)}: MACs, cycles and bounds are of {counted(images, 'image')}, "
        "the bounds of all machines together."
    )
    if not cycles:
        return text
    peak = system.macs_per_cycle
    return (
        f"{text} {cycles / images:,.0f} cycles per image, {macs / cycles / peak:.1%} of the peak "
        f"of {peak:,} MACs per cycle."
    )
