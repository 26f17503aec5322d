"""Tokens computed at once equal those of a walk over the instructions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from amaranth_vta.hw.isa import TOKEN_QUEUES, Module, TokenQueue
from amaranth_vta.sw.compiler.passes.support.hazards import ElementAccesses, needed_tokens

# Each scratchpad, with a module that writes it and a module that reads it.
USERS = [
    ("inp", Module.LOAD, Module.COMPUTE),
    ("inp", Module.STORE, Module.COMPUTE),
    ("wgt", Module.LOAD, Module.COMPUTE),
    ("acc", Module.COMPUTE, Module.STORE),
]
DEPTH = 24


def random_accesses(seed: int) -> list[ElementAccesses]:
    """Instructions that each touch one range, or none, of each scratchpad that their module
    uses."""
    random = np.random.default_rng(seed)
    count = 60
    modules = random.integers(0, 3, count)
    accesses = []
    uses = {(scope, writer, True) for scope, writer, _ in USERS}
    uses |= {(scope, reader, False) for scope, _, reader in USERS}
    for scope, module, writes in sorted(uses):
        (numbers,) = np.nonzero((modules == module) & (random.random(count) < 0.8))
        # In two parts, as two statements of a nest would have them.
        for part in (numbers[::2], numbers[1::2]):
            begins = random.integers(0, DEPTH, len(part))
            ends = np.minimum(begins + random.integers(0, 9, len(part)), DEPTH)
            accesses.append(ElementAccesses(part, module, scope, writes, begins, ends))
    return accesses


def followed(accesses: list[ElementAccesses]) -> dict[TokenQueue, list[tuple[int, int]]]:
    """The reference: tracks the latest user of each element; returns (push, pop) instructions per
    queue.
    """
    latest = {(users, writes): [-1] * DEPTH for users in USERS for writes in (True, False)}
    tokens: dict[TokenQueue, list[tuple[int, int]]] = {queue: [] for queue in TOKEN_QUEUES}
    for number in range(1 + max(int(item.numbers.max()) for item in accesses if len(item.numbers))):
        needed: dict[TokenQueue, int] = {}
        for item, users in product(accesses, USERS):
            _, writer, reader = users
            own, other = (writer, reader) if item.writes else (reader, writer)
            if (item.scope, item.module) != (users[0], own):
                continue
            for place in np.flatnonzero(item.numbers == number):
                elements = slice(int(item.begins[place]), int(item.ends[place]))
                others = latest[users, not item.writes][elements]
                needed[other, own] = max([needed.get((other, own), -1), *others])
                found = latest[users, item.writes]
                found[elements] = [number] * len(found[elements])
        for queue, producer in needed.items():
            if producer > max((push for push, _ in tokens[queue]), default=-1):
                tokens[queue].append((producer, number))
    return tokens


@pytest.mark.parametrize("seed", range(20))
def test_tokens_are_those_of_following_the_instructions(seed: int) -> None:
    accesses = random_accesses(seed)
    expected = followed(accesses)
    assert any(expected.values())
    for queue, (pushes, pops) in needed_tokens(accesses).items():
        assert list(zip(pushes.tolist(), pops.tolist(), strict=True)) == expected[queue]


def test_a_program_without_instructions_needs_no_token() -> None:
    assert all(not len(pops) for _, pops in needed_tokens([]).values())
