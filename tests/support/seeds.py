"""Tests over numbered seeds: one test loops over them and reports the seed that fails."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each_seed(
    seeds: Iterable[int], daily: int | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call the test for each of ``seeds`` with the argument ``seed``; a failure is annotated with
    it.

    With ``daily``, `make test` runs only as many of the seeds, and the rest runs nightly.
    """
    chosen = list(seeds)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, seeds: list[int] = chosen, **kwargs: Any) -> None:
            for seed in seeds:
                try:
                    test(*args, seed=seed, **kwargs)
                except Exception as error:
                    error.add_note(f"seed {seed}")
                    raise

        signature = inspect.signature(test)
        others = [item for name, item in signature.parameters.items() if name != "seed"]
        if daily is None:
            # pytest takes fixtures and parameters from the signature.
            run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
            return run
        parts = inspect.Parameter("seeds", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = signature.replace(parameters=[*others, parts])  # type: ignore[attr-defined]
        rest = pytest.param(chosen[daily:], id="nightly", marks=pytest.mark.nightly)
        halves = [pytest.param(chosen[:daily], id="daily"), rest]
        parametrized: Callable[..., None] = pytest.mark.parametrize("seeds", halves)(run)
        return parametrized

    return decorate
