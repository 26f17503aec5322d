"""Networks on devices: `Session`."""

from __future__ import annotations

from amaranth_vta.report.layer_report import LaunchReport, LayerReport

from .batches import InputError, TensorInfo
from .comparison import CheckReport
from .session import Session, random_inputs

__all__ = [
    "CheckReport",
    "InputError",
    "LaunchReport",
    "LayerReport",
    "Session",
    "TensorInfo",
    "random_inputs",
]
