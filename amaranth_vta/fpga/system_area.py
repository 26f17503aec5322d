"""Estimates the FPGA resources of several machines with their arbiter: `system_area`."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from amaranth_vta.hw.system.parameters import SystemConfig

from .area import FITTED, UNLIMITED, Area, MappedMemory, block_rams_of, estimate_area

ARBITER_MODEL = Path(__file__).with_name("arbiter_model.json")


def system_area(system: SystemConfig, family: str, most: int = UNLIMITED) -> Area:
    """The area of the machines of ``system`` on a ``family`` of `FAMILIES`: each by
    `estimate_area`, with an equal part of ``most`` multipliers, and their `arbiter_area`. A single
    machine has no arbiter.
    """
    machine = estimate_area(system.config, family, most // system.machines)
    if system.is_single:
        return machine
    shared = arbiter_area(system, family)
    return Area(
        **{
            name: system.machines * count + getattr(shared, name)
            for name, count in asdict(machine).items()
        }
    )


def arbiter_area(system: SystemConfig, family: str) -> Area:
    """The area of everything but the machines in a ``system`` of several: arbitration, register
    decoder and buffers. Block RAMs are exact; LUTs and flip-flops come from a linear model that
    ``benchmarks/arbiter_area.py`` fits to synthesis results.
    """
    found = arbiter_features(system)
    model = fitted_arbiter()[family]
    fitted = {
        column: round(sum(model[column]["weights"][name] * found[name] for name in found))
        for column in FITTED
    }
    return Area(**fitted, dsp=0, bram36=block_rams_of(_buffers(system), family))


@cache
def fitted_arbiter() -> dict[str, Any]:
    """By family and column: the weights of the features, and the errors of the fit."""
    model: dict[str, Any] = json.loads(ARBITER_MODEL.read_text(encoding="utf-8"))
    return model


def arbiter_features(system: SystemConfig) -> dict[str, float]:
    """The features of the linear model for LUTs and flip-flops; the first is the constant 1."""
    machines = float(system.machines)
    return {
        "arbiter": 1.0,
        "machines": machines,
        "bus": float(system.bus_bits),
        "machines, bus": machines * system.bus_bits,
        "machines, own bus": machines * 8 * system.config.bus_bytes,
    }


def _buffers(system: SystemConfig) -> list[MappedMemory]:
    """The read buffers, whose words have an error flag, and the write buffers, whose words have
    strobes and a flag of the last one.
    """
    rows, bits, count = system.buffer_words, system.bus_bits, system.machines
    return [
        MappedMemory(rows, bits + 1, 1, count),
        MappedMemory(rows, bits + bits // 8 + 1, 1, count),
    ]
