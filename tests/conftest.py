"""Fixtures of all tests."""

from __future__ import annotations

import gc

import pytest

from tests.support.golden import Golden

# Designs and schedules are many small objects that live long: collecting garbage as often as Python
# does by default takes a sixth of the tests' time.
gc.set_threshold(50_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden",
        action="store_true",
        help="write golden files anew instead of comparing with them; read the difference",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(rewrites=request.config.getoption("--rewrite-golden"))
