"""The instructions and micro-ops of a lowered loop nest as text, each with its origin."""

from __future__ import annotations

import re

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.nest.ir import Kernel, LoopNest
from amaranth_vta.sw.runtime.program import Recorder

from .host_code import HostCode, KernelLoader, argument_bytes, issue_to_runtime

# Column of the labels; longer lines push theirs to the right.
_COLUMN = 100


class _Marked(Recorder):
    """A recorder that notes the statement of each instruction."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.begins: list[tuple[int, int]] = []

    def at(self, statement: int) -> None:
        self.begins.append((self.queued, statement))


def listing(nest: LoopNest, config: Config) -> str:
    """One line per instruction with its stage and source line, followed by its micro-ops.

    ``nest`` must be fully lowered. Its arguments are placed in memory in order, from address 0.
    """
    code = HostCode(nest, marks=True)
    recorder = _Marked(config)
    buffers = [recorder.allocate(argument_bytes(a.shape, a.dtype), a.name) for a in nest.args]
    host = code.compile(issue_to_runtime)
    KernelLoader(code)(recorder)
    host(recorder, *buffers)
    begins = dict(recorder.begins)
    lines, label = [], "micro-ops"
    for line in recorder.dump().splitlines():
        number = re.match(r" *(\d+)  ", line)
        if number is None:
            lines.append(line)
            continue
        if int(number[1]) in begins:
            statement = code.statements[begins[int(number[1])]][0]
            label = str(statement.uop.label if isinstance(statement, Kernel) else statement.label)
        lines.append(f"{line:{_COLUMN}}  # {label}")
    return "\n".join(lines)
