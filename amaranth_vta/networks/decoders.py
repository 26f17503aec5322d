"""Decoders of text, with caches of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from .float_network import FloatNetwork, Value

# Added to the scores of masked positions.
_MASKED = -1e9
_FLOAT, _BOOL = TensorProto.FLOAT, TensorProto.BOOL


@dataclass(frozen=True)
class _Sizes:
    wide: int
    layers: int
    heads: int
    inner: int
    vocabulary: int

    @property
    def each(self) -> int:
        """The width of a head."""
        return self.wide // self.heads


def llama_tiny(net: FloatNetwork, size: int) -> list[Value]:
    """Llama (Touvron et al., 2023) of 2 layers of width 64, 2 heads; see `_llama`."""
    return _llama(net, size, _Sizes(net.channels(64), 2, 2, net.channels(128), 256))


def llama_15m(net: FloatNetwork, size: int) -> list[Value]:
    """Llama in the size of Karpathy's stories15M: 6 layers of width 288, 6 heads; see `_llama`."""
    return _llama(net, size, _Sizes(net.channels(288), 6, 6, net.channels(768), 32000))


llama_15m_int4 = llama_15m


def _llama(net: FloatNetwork, size: int, sizes: _Sizes) -> list[Value]:
    """Process one token or several, given the keys and values of earlier ones in the inputs
    ``past``; the results are ``logits`` and the caches ``present``, longer by the new tokens. The
    graph is built for one token after ``size`` - 1 others; all lengths are open.

    Takes and returns the same tensors as decoders exported by Optimum. Queries and keys have rotary
    position embeddings, layers begin with RMS normalization, the feed-forward part is gated by Silu
    (SwiGLU), and masked and later positions get large negative scores.
    """
    ids, mask, places = (
        net.tokens("input_ids", 1, "sequence_length"),
        net.tokens("attention_mask", size, "total_sequence_length"),
        net.tokens("position_ids", 1, "sequence_length"),
    )
    x = net.node("Gather", net.normal("embeddings", sizes.vocabulary, sizes.wide), ids, rms=1.0)
    hidden = _hidden(net, mask, places)
    angles = np.outer(np.arange(4 * size), 1e4 ** (-np.arange(0, sizes.each, 2) / sizes.each))
    waves = [
        net.node("Gather", net.constant(name, np.tile(wave(angles), 2)), places, rms=0.7)
        for name, wave in (("cosines", np.cos), ("sines", np.sin))
    ]
    present = []
    for layer in range(sizes.layers):
        with net.part(f"layer{layer}"):
            made, *caches = _attention(net, _rms_norm(net, x), sizes, layer, hidden, waves, size)
            present += caches
            x = net.add(x, made)
            y = _rms_norm(net, x)
            gate, up = _product(net, y, sizes.inner, "Silu"), _product(net, y, sizes.inner)
            x = net.add(x, _product(net, net.node("Mul", gate, up, rms=0.6), sizes.wide))
    logits = _product(net, _rms_norm(net, x), sizes.vocabulary)
    return [net.named("logits", logits, {1: "sequence_length"}), *present]


def _hidden(net: FloatNetwork, mask: Value, places: Value) -> Value:
    """Large negative scores of each new token (rows) for masked and later ones (columns). The
    position of a token is the number of tokens before it that are not masked.
    """
    ends = net.node("CumSum", mask, net.constant("axis", 1, np.int64))
    places = net.node("Add", places, net.constant("one", 1, np.int64))
    later = net.node("Greater", ends, net.reshape(places, -1, 1))
    masked = net.node("Not", net.node("Cast", mask, to=_BOOL))
    hidden = net.node("Cast", net.node("Or", later, masked), to=_FLOAT)
    return net.node("Mul", hidden, net.constant("masked", _MASKED))


def _attention(
    net: FloatNetwork,
    x: Value,
    sizes: _Sizes,
    layer: int,
    hidden: Value,
    waves: list[Value],
    size: int,
) -> list[Value]:
    """Attention of new tokens to the cache and themselves; also returns the new caches."""
    heads, each = sizes.heads, sizes.each

    def projected(turned: bool) -> Value:
        y = net.reshape(_product(net, x, sizes.wide), 0, 0, heads, each)
        y = net.node("Transpose", y, perm=[0, 2, 1, 3])
        return _turned(net, y, waves) if turned else y

    query = projected(turned=True)
    caches = []
    for what in ("key", "value"):
        name = f"past_key_values.{layer}.{what}"
        past = net.past(name, "past_sequence_length", heads, size - 1, each)
        cache = net.concat([past, projected(turned=what == "key")], axis=2)
        caches.append(net.named(f"present.{layer}.{what}", cache, {2: "total_sequence_length"}))
    keys = net.node("Transpose", caches[0], perm=[0, 1, 3, 2])
    scores = net.node("MatMul", query, keys, rms=each**0.5)
    scores = net.node("Mul", scores, net.constant("root", each**-0.5), rms=1.0)
    shares = net.node("Softmax", net.node("Add", scores, hidden), axis=-1, rms=1 / size)
    mixed = net.node("MatMul", shares, caches[1], rms=1.6 / size**0.5)
    mixed = net.reshape(net.node("Transpose", mixed, perm=[0, 2, 1, 3]), 0, 0, sizes.wide)
    return [_product(net, mixed, sizes.wide), *caches]


def _turned(net: FloatNetwork, x: Value, waves: list[Value]) -> Value:
    """Rotary position embedding (Su et al., 2021)."""
    first, second = net.nodes("Split", x, results=2, axis=-1)
    swapped = net.concat([net.node("Neg", second), first], axis=-1)
    cosines, sines = waves
    return net.add(net.node("Mul", x, cosines), net.node("Mul", swapped, sines))


def _rms_norm(net: FloatNetwork, x: Value) -> Value:
    """RMS normalization over the last dimension, with a scale per channel."""
    mean = net.node("ReduceMean", net.node("Mul", x, x), axes=[-1])
    root = net.node("Sqrt", net.node("Add", mean, net.constant("epsilon", 1e-5)))
    return net.node("Mul", net.node("Div", x, root, rms=1.0), net.scales(x.shape[-1]))


def _product(net: FloatNetwork, x: Value, outputs: int, act: str = "") -> Value:
    """A product without bias, and an activation."""
    return net.activation(net.matmul(x, outputs), act)
