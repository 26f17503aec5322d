"""Build the functions of a network's layers lazily, once fusion has settled the layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import wraps
from typing import Any, ParamSpec

from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.tuner.records import recorded_knobs
from amaranth_vta.sw.compiler.tuner.workload import NoScheduleFits, schedule_of

from .layer import Layer

# Builds a function from a workload, the environment and the function's name.
MakeFunction = Callable[..., Function]

_P = ParamSpec("_P")


def where_it_fits(fused: Callable[_P, Layer | None]) -> Callable[_P, Layer | None]:
    """Decorate a fusion so that it returns None, and the layers stay separate, if the fused
    function is known to fit no schedule although the estimates said that one fits."""

    @wraps(fused)
    def fitting(*args: _P.args, **kwargs: _P.kwargs) -> Layer | None:
        try:
            return fused(*args, **kwargs)
        except NoScheduleFits:
            return None

    return fitting


class LayerFunctions:
    """Functions by builder and workload, built lazily.

    Building a function is most of a layer's cost, and many layers are later fused into others, so
    functions are promised first and built last. A failed promise is not retried.
    """

    def __init__(self, env: Environment) -> None:
        self._refused: dict[Hashable, NoScheduleFits] = {}
        self.env = env
        self._built: dict[Hashable, Function] = {}

    def promised(self, make: MakeFunction, workload: Hashable, name: str) -> Callable[[], Function]:
        """Return a callable that builds the function ``name`` with ``make`` for ``workload``.

        Workloads that differ only in argument values share one function. Raises `NoScheduleFits` if
        building the function has raised it before.
        """
        # The tuner records workloads with their actual constants.
        recorded = recorded_knobs(workload, self.env.config) is not None
        key = make, workload if recorded else schedule_of(workload)
        self._require(key)

        def built() -> Function:
            self._require(key)
            if key not in self._built:
                try:
                    self._built[key] = make(workload, self.env, name=name)
                except NoScheduleFits as reason:
                    self._refused[key] = reason
                    raise
            return self._built[key].named(name)

        return built

    def _require(self, key: Hashable) -> None:
        if key in self._refused:
            raise self._refused[key]

    def build(self, layers: Iterable[Layer]) -> bool:
        """Build the functions of ``layers``. Returns whether all could be built. Raises
        `NoScheduleFits` from a function that is not promised here."""
        complete = True
        for layer in layers:
            try:
                _: Any = layer.function
            except NoScheduleFits as reason:
                if reason not in self._refused.values():
                    raise
                complete = False
        return complete
