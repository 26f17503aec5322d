"""A tensor accelerator in Amaranth, with its compiler, runtime and simulators."""

from __future__ import annotations
