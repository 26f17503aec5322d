"""Evaluates host operators at compile time that depend only on the positions of tokens.

In a generation of tokens the attention mask and the positions of each run are known, only tokens
are not. So are the places in ring buffers, which the runs count, and all that the host computes
from these, such as the mask in the order of a ring buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from amaranth_vta.sw.compiler.graph.layers.support.layer import HostNode
from amaranth_vta.sw.compiler.graph.load.onnx_model import RANDOM
from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.network_program import KnownRuns, RunHost
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from amaranth_vta.sw.runtime.network.token_inputs import TokenInputs

# Larger tables, of inputs or of results, would take more memory than they are worth. These hold the
# masks of 1,024 positions.
_MOST_BYTES = 1 << 21
_REASON = "its results are known for the tokens of a generation; the host runs it for other inputs"


def known_nodes(network: Network, hosts: Sequence[HostNode]) -> list[HostNode]:
    """The operators of ``hosts``, in topological order, that depend only on the positions of tokens
    in a decoder, and on variables that do so too."""
    tokens = _tokens(network)
    if tokens is None:
        return []
    counted = list(network.states)
    while True:
        known = {*tokens.positions(0, 1, tokens.per_run), *network.constants}
        known |= {state.source for state in counted}
        found, made = [], set[str]()
        for item in hosts:
            if known.issuperset(item.reads) and item.node.operator not in RANDOM:
                found.append(item)
                made.update(item.node.outputs)
                known |= made
        left = [state for state in counted if state.result in made]
        if len(left) == len(counted):
            return found
        counted = left


def with_known_runs(network: Network, step: RunHost) -> RunHost:
    """``step``, which runs `known_nodes`, with its results for all runs of generations, unless they
    have too many bytes, or a run fails."""
    tokens = _tokens(network)
    assert tokens is not None
    session, runs = exact_session(step.model), []
    states = [state for state in network.states if state.source in step.inputs]
    for masked, generation in tokens.generations():
        held = {state.source: state.after(masked) for state in states}
        for positions in generation:
            given = positions | held
            feeds = {name: given[name] for name in step.inputs}
            try:
                results = run_session(session, step.outputs, feeds)
            except ModelError:
                return step
            runs.append((feeds, results))
            size = sum(getattr(array, "nbytes", _MOST_BYTES) for array in results.values())
            size = max(size, sum(array.size for array in feeds.values()))
            if size * tokens.context > _MOST_BYTES:
                return step
            held = {state.source: results[state.result] for state in states}
    inputs = {name: _compact([feeds[name] for feeds, _ in runs]) for name in step.inputs}
    outputs = {name: np.stack([results[name] for _, results in runs]) for name in step.outputs}
    operators = tuple(replace(item, reason=_REASON) for item in step.operators)
    return replace(step, operators=operators, known=KnownRuns(inputs, outputs))


def _compact(arrays: Sequence[Array]) -> Array:
    """Integers, stacked, in a type of few bytes that holds them."""
    stacked = np.stack(arrays)
    for dtype in (np.uint8, np.int16, np.int32):
        limits = np.iinfo(dtype)
        if limits.min <= stacked.min() and stacked.max() <= limits.max:
            return stacked.astype(dtype)
    return stacked


def _tokens(network: Network) -> TokenInputs | None:
    """The inputs of a decoder; None for another network."""
    if not network.states:
        return None
    try:
        return TokenInputs({name: network.types[name] for name in network.public_inputs})
    except ModelError:
        return None
