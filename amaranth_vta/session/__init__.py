"""Networks on devices: `Session`."""

from __future__ import annotations

from .batches import InputError, TensorInfo
from .comparison import CheckReport
from .layers import LaunchReport, LayerReport
from .session import Session

__all__ = ["CheckReport", "InputError", "LaunchReport", "LayerReport", "Session", "TensorInfo"]
