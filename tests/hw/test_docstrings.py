"""Every hardware component documents the latency from inputs to outputs."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest
from amaranth.lib import wiring

import amaranth_vta

PACKAGE = Path(amaranth_vta.__file__).parent
SOURCES = sorted((PACKAGE / "hw").rglob("*.py"))


def components() -> list[type[wiring.Component]]:
    found = []
    for path in SOURCES:
        module = importlib.import_module(
            ".".join(["amaranth_vta", *path.relative_to(PACKAGE).with_suffix("").parts])
        )
        for _, item in inspect.getmembers(module, inspect.isclass):
            if issubclass(item, wiring.Component) and item.__module__ == module.__name__:
                found.append(item)
    return found


@pytest.mark.parametrize("component", components(), ids=lambda item: item.__name__)
def test_a_component_documents_its_timing(component: type[wiring.Component]) -> None:
    assert re.search(r"^ *Timing[:,] ", component.__doc__ or "", re.MULTILINE)


def test_there_are_components() -> None:
    assert len(components()) > 20
