"""Threads that share a session or a built function get the same results as a single thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import amaranth_vta as vta
from amaranth_vta import te

DIGITS = Path(__file__).parents[2] / "examples/digits"
THREADS = 4


def together(work: Callable[[int], Any]) -> list[Any]:
    """The results of ``work`` in several threads that start at the same time."""
    barrier = Barrier(THREADS)

    def begin(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


@pytest.fixture(scope="module")
def images() -> npt.NDArray[np.float32]:
    with np.load(DIGITS / "images.npz") as file:
        return file["image"]


@pytest.mark.parametrize(("device", "rounds"), [("functional", 20), ("rtl", 1)])
def test_threads_share_a_session(device: str, rounds: int, images: npt.NDArray[np.float32]) -> None:
    with vta.Session(DIGITS / "digits.onnx", "tiny", device) as session:
        expected = [session.run({"image": images[at : at + 1]})["logits"] for at in range(THREADS)]
        runs = session.report()["runs"]

        def work(number: int) -> bool:
            own = {"image": images[number : number + 1]}
            results = [session.run(own)["logits"] for _ in range(rounds)]
            return all(np.array_equal(result, expected[number]) for result in results)

        assert together(work) == [True] * THREADS
        assert session.report()["runs"] == runs + THREADS * rounds


def test_a_comparison_and_runs_share_a_session(images: npt.NDArray[np.float32]) -> None:
    with vta.Session(DIGITS / "digits.onnx", "tiny") as session:
        found = together(lambda number: session.check({"image": images[number::THREADS][:8]}))
    assert [report.mismatches for report in found] == [0] * THREADS


def test_sessions_are_made_and_run_in_parallel(images: npt.NDArray[np.float32]) -> None:
    def work(number: int) -> int:
        with vta.Session(DIGITS / "digits.onnx", ("tiny", "pynq")[number % 2]) as session:
            return session.check({"image": images[:2]}).mismatches

    assert together(work) == [0] * THREADS


def test_threads_share_a_built_function() -> None:
    env = vta.Environment(vta.PRESETS["tiny"])
    shape = (4, 4, env.BATCH, env.BLOCK_OUT)
    a = te.placeholder(shape, "a", env.acc_dtype)
    on_chip = te.compute(shape, lambda *i: a(*i), "on_chip")
    sums = te.compute(shape, lambda *i: on_chip(*i) + 1, "sums")
    y = te.compute(shape, lambda *i: sums(*i).astype(env.out_dtype), "y")
    s = te.create_schedule(y.op)
    for stage in (on_chip, sums):
        s[stage].set_scope(env.acc_scope)
    s[on_chip].pragma(s[on_chip].op.axis[0], env.dma_copy)
    s[sums].pragma(s[sums].op.axis[0], env.alu)
    s[y].pragma(s[y].op.axis[0], env.dma_copy)
    function = vta.build(s, [a, y], env=env)

    def work(number: int) -> bool:
        given, made = np.full(shape, number, np.int32), np.zeros(shape, np.int8)
        right = True
        for _ in range(20):
            made[...] = 0
            function(given, made)
            right &= bool((made == number + 1).all())
        return right

    assert together(work) == [True] * THREADS
