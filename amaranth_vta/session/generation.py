"""Generates tokens with a decoder that holds its caches as variables: `generate`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram
from amaranth_vta.sw.runtime.network.tile_layout import Array
from amaranth_vta.sw.runtime.network.token_inputs import TokenInputs

from .batches import InputError, Run


@dataclass(frozen=True)
class Sampling:
    """How to choose a token: the one with the largest logit at ``temperature`` 0, else at random,
    by ``seed``, with probabilities of Softmax of the logits divided by ``temperature``, among the
    ``top_k`` largest if that is not 0.
    """

    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or self.temperature == float("inf"):
            raise InputError(f"the temperature is 0 or a positive number, not {self.temperature}")
        if self.top_k < 0:
            raise InputError(f"top_k is 0 or a number of tokens, not {self.top_k}")

    def chooser(self) -> Callable[[Array], int]:
        """A function from logits to a token."""
        if self.temperature == 0:
            return lambda logits: int(logits.argmax())
        random = np.random.default_rng(self.seed)

        def choose(logits: Array) -> int:
            scaled = logits.astype(np.float64) / self.temperature
            if 0 < self.top_k < scaled.size:
                # Among equal logits, the first tokens.
                order = np.argsort(-scaled, kind="stable")
                scaled[order[self.top_k :]] = -np.inf
            shares = np.exp(scaled - scaled.max())
            return int(random.choice(scaled.size, p=shares / shares.sum()))

        return choose


class TokenDecoder:
    """The ``inputs`` and results of ``program``; raises `ModelError` if it is no decoder with
    caches as variables.
    """

    def __init__(self, program: NetworkProgram) -> None:
        if not program.has_variables:
            raise ModelError("generate needs a session of a decoder that was opened with a context")
        self.inputs = TokenInputs(program.inputs)
        self.context = self.inputs.context
        self._logits = next(iter(program.outputs))
        self.vocabulary = (program.outputs[self._logits].shape or (0,))[-1]

    def logits(self, outputs: Mapping[str, Array]) -> Array:
        """The logits of the next token."""
        return outputs[self._logits].reshape(-1, self.vocabulary)[-1]

    def require(self, prompt_ids: Sequence[int], max_new_tokens: int) -> None:
        """Raise `InputError` unless the prompt and the new tokens are valid and fit the context."""
        if not prompt_ids:
            raise InputError("the prompt has no tokens")
        if max_new_tokens < 1:
            raise InputError(f"{max_new_tokens} new tokens cannot be generated: give 1 or more")
        for token in prompt_ids:
            if not 0 <= token < self.vocabulary:
                raise InputError(f"{token} is no token; the network has {self.vocabulary:,}")
        if len(prompt_ids) + max_new_tokens > self.context:
            raise InputError(
                f"{len(prompt_ids):,} tokens of the prompt and {max_new_tokens:,} new ones exceed "
                f"the context of {self.context:,}"
            )


def generate(
    decoder: TokenDecoder,
    run: Run,
    prompt_ids: Sequence[int],
    block: int,
    max_new_tokens: int,
    sampling: Sampling,
    stop_ids: Collection[int],
) -> Iterator[int]:
    """Yields up to ``max_new_tokens`` tokens after the prompt, each as soon as it is known; a token
    of ``stop_ids`` is the last. ``run`` starts with empty caches, and takes a single token or a
    ``block``. If the prompt is no multiple of that, its first block begins with masked positions.
    """
    choose, tokens, place = sampling.chooser(), [*prompt_ids], 0
    while True:
        count = (len(tokens) - place) % block or block
        new = tokens[place : place + count]
        outputs = run(decoder.inputs.feeds(new, place, 1 if count == 1 else block))
        place += count
        if place < len(tokens):
            continue
        tokens.append(choose(decoder.logits(outputs)))
        yield tokens[-1]
        if tokens[-1] in stop_ids or len(tokens) == len(prompt_ids) + max_new_tokens:
            return
