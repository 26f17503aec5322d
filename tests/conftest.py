"""Fixtures of all tests."""

from __future__ import annotations

import gc

import pytest
from hypothesis import HealthCheck, settings

import amaranth_vta  # noqa: F401 - before a test imports onnxruntime, whose telemetry it turns off
from tests.support.golden import Golden

# Designs and schedules are many small objects that live long: collecting garbage as often as Python
# does by default takes a sixth of the tests' time.
gc.set_threshold(200_000, 20, 20)

# The time of an example depends on the computer and the garbage collector.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")


def pytest_sessionfinish() -> None:
    # pytest collects garbage five times more, so that destructors can warn: once is enough for what
    # the tests have left.
    gc.collect()
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
