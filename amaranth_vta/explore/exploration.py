"""Runs an exploration: evaluates machines in batches, then simulates and implements the front."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from .evaluate import Cost, EvaluationTask, Simulated, evaluate, simulate
from .folder import Folder
from .front import front
from .implementation import Implementation, Implemented, implement
from .machines import CandidateMachine, kind_of, machine_of
from .results import FAILED, Row, Run, objectives, row_of_run
from .search import Values, search_of
from .spec import Spec, SpecError
from .workers import Workers

# Defaults of the SPEC: how many machines of the front are simulated, and the most cycles that a
# simulated run may take: about a second each, after a build of half a minute.
_SIMULATED, _SIMULATED_CYCLES = 3, 2_000_000


@dataclass
class Exploration:
    """``spec``, the bytes of its networks by label, and the results so far.

    ``rows`` are the points in order; ``best`` has the rows of each machine of the Pareto front,
    sorted by the first objective; ``notes`` are failures of simulation and implementation.
    """

    spec: Spec
    networks: Mapping[str, bytes]
    rows: list[Row] = field(default_factory=list)
    best: list[list[Row]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # Rows of each evaluated machine, in order.
    _machines: dict[Values, list[Row]] = field(default_factory=dict)

    @cached_property
    def digests(self) -> dict[str, str]:
        """The digest of each network's contents, by label."""
        return {name: hashlib.sha256(data).hexdigest()[:32] for name, data in self.networks.items()}

    def run(
        self, folder: Folder, workers: Workers, progress: Callable[[Exploration], None]
    ) -> None:
        """Fills ``folder``; ``progress`` is called after each batch of machines."""
        digests = self.digests
        workers.share({digests[name]: data for name, data in self.networks.items()})
        search, left = search_of(self.spec), self.spec.machines
        while left > 0:
            asked = search.ask(min(left, self.spec.search.batch))
            if not asked:
                break
            found = self._evaluate([machine_of(self.spec, v) for v in asked], folder, workers)
            search.tell({values: objectives(self.spec, rows) for values, rows in found.items()})
            left -= len([values for values in found if values in self._machines])
            self._find_front()
            progress(self)
        self._simulate_front(workers)
        self._implement_front(workers)
        folder.finish(self.rows)

    def _evaluate(
        self, machines: Sequence[CandidateMachine], folder: Folder, workers: Workers
    ) -> dict[Values, list[Row]]:
        """The rows of each machine, including cached rows."""
        rows: list[Row] = []
        for machine in machines:
            for network in self.networks:
                for memory in self.spec.memories:
                    point = len(self.rows) + len(rows) + 1
                    rows.append(
                        Row(point, machine, network, memory, machine.status, machine.reason)
                    )
        missing: list[int] = []
        for number, row in enumerate(rows):
            name = (row.machine.values, row.network, row.memory)
            known = folder.known.get(name)
            if known is not None:
                rows[number] = row_of_run(self.spec, row, known)
            elif not row.status:
                missing.append(number)
            elif name not in folder.known:
                folder.append(row)
        for place, outcome in workers.run(evaluate, [self._task(rows[n]) for n in missing]):
            row = rows[missing[place]]
            if outcome.result is None:
                row = replace(row, status=FAILED, reason=outcome.error)
            else:
                row = row_of_run(self.spec, row, Run.of(outcome.result))
            rows[missing[place]] = row
            folder.append(row)
        self.rows += rows
        found: dict[Values, list[Row]] = {}
        for row in rows:
            found.setdefault(row.machine.values, []).append(row)
        self._machines |= {
            values: group for values, group in found.items() if not group[0].machine.status
        }
        return found

    def _task(self, row: Row) -> tuple[EvaluationTask, str]:
        assert row.machine.system is not None
        digest = self.digests[row.network]
        system, split = row.machine.system, self.spec.split
        return EvaluationTask.of(digest, system, row.memory, split), digest

    @property
    def objectives(self) -> dict[Values, tuple[float, ...]]:
        """The objectives of each machine that runs all networks within the limits."""
        found = {values: objectives(self.spec, rows) for values, rows in self._machines.items()}
        return {values: numbers for values, numbers in found.items() if numbers is not None}

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """Points by status and kind of reason."""
        return Counter((row.status, kind_of(row.reason)) for row in self.rows)

    def _find_front(self) -> None:
        chosen = front(self.objectives)
        self.best = [self._machines[values] for values in chosen]
        members = set(chosen)
        self._update(lambda row: replace(row, front=row.machine.values in members))

    def _update(self, change: Callable[[Row], Row]) -> None:
        """Replace rows in all lists that hold them."""
        self.rows = [change(row) for row in self.rows]
        by_values: dict[Values, list[Row]] = {}
        for row in self.rows:
            by_values.setdefault(row.machine.values, []).append(row)
        self._machines = {values: by_values[values] for values in self._machines}
        self.best = [by_values[rows[0].machine.values] for rows in self.best]

    def costs_of_best(self) -> dict[str, tuple[Row, Cost]]:
        """For each network, the point of the first machine of the front, and its cost by layer."""
        found: dict[str, tuple[Row, Cost]] = {}
        for row in self.best[0] if self.best else []:
            task, _ = self._task(row)
            if row.network not in found:
                found[row.network] = row, evaluate(task, self.networks[row.network])
        return found

    def _simulate_front(self, workers: Workers) -> None:
        """Simulates some machines of the front on the RTL: both ends, and some between."""
        wanted = self._to_simulate()
        results: dict[int, Simulated] = {}
        for place, outcome in workers.run(simulate, [self._task(row) for row in wanted]):
            if outcome.result is None:
                self.notes.append(f"point {wanted[place].point} on the RTL: {outcome.error}")
            else:
                results[wanted[place].point] = outcome.result
        self._update(lambda row: replace(row, rtl=results.get(row.point)))

    def _to_simulate(self) -> list[Row]:
        number = _SIMULATED if self.spec.rtl is None else self.spec.rtl
        return [
            row
            for rows in self._of_front(number)
            for row in rows
            if self.spec.rtl is not None or (row.run and row.run.cycles <= _SIMULATED_CYCLES)
        ]

    def _of_front(self, number: int) -> list[list[Row]]:
        """The rows of at most ``number`` machines of the front, evenly spaced, with both ends."""
        number, last = min(number, len(self.best)), len(self.best) - 1
        places = {round(last * n / max(number - 1, 1)) for n in range(number)}
        return [self.best[place] for place in sorted(places)]

    def _implement_front(self, workers: Workers) -> None:
        """Synthesizes, places and routes machines of the front, as many as the SPEC asks for."""
        chip = self.spec.limits.chip.name
        routed = self._of_front(self.spec.route)
        wanted = routed + [
            rows for rows in self._of_front(self.spec.synthesis) if rows not in routed
        ]
        systems = [rows[0].machine.system for rows in wanted]
        tasks = [
            Implementation.of(system, chip, number < len(routed))
            for number, system in enumerate(systems)
            if system is not None
        ]
        made: dict[Values, Implemented] = {}
        nothing = next(iter(self.digests.values()))  # any digest: `implement` ignores its data
        for place, outcome in workers.run(implement, [(task, nothing) for task in tasks]):
            row = wanted[place][0]
            if outcome.result is None:
                self.notes.append(f"the machine of point {row.point} on {chip}: {outcome.error}")
            else:
                made[row.machine.values] = outcome.result
        self._update(lambda row: replace(row, made=made.get(row.machine.values)))


def read_networks(spec: Spec) -> dict[str, bytes]:
    """The networks of ``spec`` as serialized ONNX models, by a short label.

    Raises `SpecError` for a name that is neither a file nor a generator, and `ModelError`.
    """
    from amaranth_vta.networks import NETWORKS, generate
    from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model

    found: dict[str, bytes] = {}
    for name in spec.networks:
        model: Any
        if name in NETWORKS:
            model, label = generate(name).sized, name
        elif Path(name).is_file():
            model, label = read_model(name), Path(name).stem
        else:
            raise SpecError(f"networks: {name} is neither a file nor one of {', '.join(NETWORKS)}")
        if label in found:
            raise SpecError(f"networks: two are called {label}")
        found[label] = model.SerializeToString(deterministic=True)
    return found
