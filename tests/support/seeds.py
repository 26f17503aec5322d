"""Tests over numbered seeds: one test loops over them and reports the seed that fails."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def each_seed(seeds: Iterable[int]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call the test for each of ``seeds`` with the argument ``seed``; a failure is annotated with
    it.
    """
    chosen = list(seeds)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            for seed in chosen:
                try:
                    test(*args, seed=seed, **kwargs)
                except Exception as error:
                    error.add_note(f"seed {seed}")
                    raise

        signature = inspect.signature(test)
        others = [item for name, item in signature.parameters.items() if name != "seed"]
        # pytest takes fixtures and parameters from the signature.
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate
