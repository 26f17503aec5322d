"""The functions of a network's layers, built once it is known which layers there are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import wraps
from typing import Any, ParamSpec

from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.tuner.records import recorded_knobs
from amaranth_vta.sw.compiler.tuner.workload import NoScheduleFits, schedule_of

from .layer import Layer

# Builds an operator, given a workload, the environment and the function's name.
MakeFunction = Callable[..., Function]

_P = ParamSpec("_P")


def where_it_fits(fused: Callable[_P, Layer | None]) -> Callable[_P, Layer | None]:
    """``fused``, which makes one layer of several, and where the function of that layer is known to
    fit no schedule, although estimates said that it would, None: the layers stay apart."""

    @wraps(fused)
    def fitting(*args: _P.args, **kwargs: _P.kwargs) -> Layer | None:
        try:
            return fused(*args, **kwargs)
        except NoScheduleFits:
            return None

    return fitting


class LayerFunctions:
    """Functions by builder and workload, built lazily.

    Building a function is most of a layer's cost, and many layers are fused with a later one, so
    functions are promised first and built last. A failed promise is not repeated.
    """

    def __init__(self, env: Environment) -> None:
        self._refused: dict[Hashable, NoScheduleFits] = {}
        self.env = env
        self._built: dict[Hashable, Function] = {}

    def promised(self, make: MakeFunction, workload: Hashable, name: str) -> Callable[[], Function]:
        """Return a callable that builds the function ``name`` with ``make`` for ``workload``.

        Workloads that differ only in argument values are built once. Raises `NoScheduleFits` if
        building the function has raised it before.
        """
        # The tuner's records are of workloads with their actual constants.
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
        """Builds the functions of ``layers``, and says whether all of them could be built. Raises
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
