"""Fixtures of all tests."""

from __future__ import annotations

import gc
import os
import sys

import pytest
from hypothesis import HealthCheck, settings

import amaranth_vta  # noqa: F401 - before a test imports onnxruntime, whose telemetry it turns off
from amaranth_vta import collector
from tests.support.golden import Golden

# Designs and schedules consist of many small objects: garbage collection takes a sixth of the time
# of the tests at Python's default thresholds, and a tenth at 200,000. Two million take 200 MB.
# A full collection takes 12 seconds in the heap of a worker.
gc.set_threshold(2_000_000, 20, 1_000)
collector._COLLECTED_AFTER *= 10

# Containers often forbid caching bytecode: each of hundreds of processes that tests start would
# compile the sources again, which takes as long as the rest of a short command.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Optimizing the simulator of a large machine takes half a minute, and saves tests a few seconds.
os.environ.setdefault("VTA_QUICK_BUILD", "1")

# The duration of an example depends on the computer and the garbage collector.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")


def pytest_sessionfinish() -> None:
    # At exit pytest collects garbage five times, so that destructors can warn: once is enough, and
    # only among the objects of the last tests.
    gc.collect(1)
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden",
        action="store_true",
        help="write golden files anew instead of comparing with them; read the difference",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(rewrites=request.config.getoption("--rewrite-golden"))
