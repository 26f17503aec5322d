"""Build the functions of a network's layers lazily, once fusion has settled the layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ParamSpec

from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.tuner.parts import divided
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


@dataclass(frozen=True)
class PromisedFunction:
    """The function that ``make`` builds for ``workload``; call it to build the function."""

    functions: LayerFunctions
    make: MakeFunction
    workload: Any
    name: str

    def __call__(self) -> Function:
        return self.functions.built(self)

    def divided(self, system: SystemConfig) -> list[Function]:
        """Functions that compute disjoint parts of the result, for as many machines of ``system``
        as are estimated to take the fewest cycles; only this function for one. All have the same
        arguments.
        """
        try:
            parts = divided(self.workload, system)
            return [replace(self, workload=part)() for part in parts or (self.workload,)]
        except NoScheduleFits:
            return [self()]


def divided_functions(layer: Layer, system: SystemConfig) -> list[Function]:
    """`PromisedFunction.divided` of the function of ``layer``; the layers of registered operators
    are not divided."""
    promise = layer.find_function
    return promise.divided(system) if isinstance(promise, PromisedFunction) else [layer.function]


class LayerFunctions:
    """Functions by builder and workload, built lazily.

    Building a function is most of a layer's cost, and many layers are later fused into others, so
    functions are promised first and built last. A failed promise is not retried.
    """

    def __init__(self, env: Environment) -> None:
        self._refused: dict[Hashable, NoScheduleFits] = {}
        self.env = env
        self._built: dict[Hashable, Function] = {}

    def promised(self, make: MakeFunction, workload: Hashable, name: str) -> PromisedFunction:
        """Promise the function ``name`` that ``make`` builds for ``workload``.

        Workloads that differ only in argument values share one function. Raises `NoScheduleFits` if
        building the function has raised it before.
        """
        promise = PromisedFunction(self, make, workload, name)
        self._require(self._key(promise))
        return promise

    def built(self, promise: PromisedFunction) -> Function:
        """The promised function. Raises `NoScheduleFits`."""
        key = self._key(promise)
        self._require(key)
        if key not in self._built:
            try:
                self._built[key] = promise.make(promise.workload, self.env, name=promise.name)
            except NoScheduleFits as reason:
                self._refused[key] = reason
                raise
        return self._built[key].named(promise.name)

    def _key(self, promise: PromisedFunction) -> Hashable:
        # The tuner records workloads with their actual constants.
        recorded = recorded_knobs(promise.workload, self.env.config) is not None
        return promise.make, promise.workload if recorded else schedule_of(promise.workload)

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
