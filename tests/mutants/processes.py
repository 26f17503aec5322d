"""Runs the checks for each bug in a separate process with limited time and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection, get_context
from resource import RLIMIT_CPU, RLIMIT_DATA, RUSAGE_CHILDREN, getrusage, setrlimit
from typing import Any

from .planting import Bug, Verdict

# A process that exceeds this limit hangs; one that catches nothing takes about a minute. There is
# no wall-clock limit, since harmless bugs would reach it on a busy computer.
_PROCESSOR_SECONDS = 300
_BYTES = 8 << 30

Work = tuple[Bug, tuple[Any, ...]]


def judge_each(
    judge: Callable[..., Verdict], works: Iterable[Work], jobs: int, start: str
) -> Iterator[Verdict]:
    """Call ``judge(bug, *arguments)`` for each of ``works`` in ``jobs`` processes; yield verdicts
    as they finish.

    ``start`` is "fork" or "spawn". A bug whose process is killed counts as caught: it hangs.
    """
    context: Any = get_context(start)
    waiting = iter(works)
    running: dict[Any, tuple[Any, Bug]] = {}
    while True:
        while len(running) < jobs and (work := next(waiting, None)) is not None:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(judge, work, sender))
            process.start()
            sender.close()
            running[receiver] = process, work[0]
        if not running:
            return
        ended: list[Any] = connection.wait(list(running))
        for receiver in ended:
            process, bug = running.pop(receiver)
            verdict = Verdict(bug, "hangs", f"no end in {_PROCESSOR_SECONDS} s of processor time")
            with suppress(EOFError):
                verdict = receiver.recv()
            process.join()
            yield verdict


def _run(judge: Callable[..., Verdict], work: Work, sender: Any) -> None:
    setrlimit(RLIMIT_CPU, (_PROCESSOR_SECONDS, _PROCESSOR_SECONDS))
    setrlimit(RLIMIT_DATA, (_BYTES, _BYTES))
    bug, arguments = work
    try:
        verdict = judge(bug, *arguments)
    except BaseException as error:
        verdict = Verdict(bug, "crash", repr(error))
    children = getrusage(RUSAGE_CHILDREN)
    seconds = time.process_time() + children.ru_utime + children.ru_stime
    sender.send(replace(verdict, seconds=seconds))
