"""Record the streams of layers, for one machine or several that share each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer
from amaranth_vta.sw.runtime.launches.join import CannotJoin
from amaranth_vta.sw.runtime.launches.scratchpad_offsets import OffsetRuntime, ScratchpadOffsets
from amaranth_vta.sw.runtime.network.network_program import Launch, RunLayer
from amaranth_vta.sw.runtime.program import Recorder
from amaranth_vta.sw.runtime.work import work


@dataclass
class LayerCall:
    """A ``layer``, its ``functions``, one per machine that computes a part of it, and their
    arguments, ``buffers``. ``streams`` has the streams of each machine, once recorded.
    """

    layer: Layer
    functions: Sequence[Function]
    buffers: Sequence[Any]
    streams: list[range] = field(default_factory=list)

    def recorded(self, recorder: Recorder) -> RunLayer:
        first, *beside = self.streams
        numbers = [number for streams in self.streams for number in streams]
        words = np.concatenate([recorder.streams[number][0] for number in numbers])
        needed, layer = work(recorder.config, words), self.layer
        return RunLayer(layer.name, layer.operator, layer.macs, first, needed, tuple(beside))


def groups_between_barriers(calls: Sequence[LayerCall]) -> Iterator[list[LayerCall]]:
    """Divide consecutive layers into groups: a group starts once all machines are done with its
    predecessor. Layers on several machines are alone.
    """
    group: list[LayerCall] = []
    for call in calls:
        if group and len(call.functions) + len(group[-1].functions) > 2:
            yield group
            group = []
        group.append(call)
    if group:
        yield group


def record(recorder: Recorder, groups: Sequence[Sequence[LayerCall]]) -> list[Launch]:
    """Record the streams of all layers, machine by machine; each group can be launched separately.
    Returns the launches of the groups of several layers.
    """
    most = max((len(call.functions) for group in groups for call in group), default=0)
    for machine in range(most):
        for group in groups:
            recorder.invalidate_micro_ops()
            offsets = ScratchpadOffsets(recorder.config)
            for call in group:
                if machine < len(call.functions):
                    function, first = call.functions[machine], len(recorder.streams)
                    offset = OffsetRuntime(recorder, offsets.next(function.elements))
                    function.run_on(offset, *call.buffers)
                    recorder.synchronize()
                    call.streams.append(range(first, len(recorder.streams)))
    return [*_launches(recorder, groups)]


def _launches(recorder: Recorder, groups: Sequence[Sequence[LayerCall]]) -> Iterator[Launch]:
    """Join the streams of the layers of each group."""
    for group in groups:
        streams = [index for call in group for index in call.streams[0]]
        if len(group) < 2 or any(len(call.streams[0]) != 1 for call in group):
            continue
        whole = range(streams[0], streams[-1] + 1)
        with suppress(CannotJoin):
            stream, ends = recorder.join(whole)
            yield Launch(stream, whole, ends)
