"""The race check of whole networks passes correct streams and detects missing tokens."""

from __future__ import annotations

import runpy
from dataclasses import replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amaranth_vta.networks import generate
from amaranth_vta.session.compilation import compile
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram
from amaranth_vta.sw.runtime.stream import POP, PUSH

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TOKENS = np.uint64(reduce(or_, [*PUSH.values(), *POP.values()]))


@pytest.fixture(scope="module")
def races() -> dict[str, Any]:
    return runpy.run_path(str(BENCHMARKS / "races.py"))


def digits() -> NetworkProgram:
    return compile(generate("digits").model, "tiny-extended").program


def test_a_network_has_no_races(races: dict[str, Any]) -> None:
    ((text, wrong),) = races["found"](digits())
    assert text.startswith("4 layers, ")
    assert wrong == []


def test_a_network_without_tokens_has_races(races: dict[str, Any]) -> None:
    network = digits()
    streams = [
        replace(stream, words=stream.words & ~np.array([TOKENS, 0], np.uint64))
        for stream in network.program.streams
    ]
    without = replace(network, program=replace(network.program, streams=tuple(streams)))
    ((_, wrong),) = races["found"](without)
    assert any(item.startswith("no token orders instructions") for item in wrong)
