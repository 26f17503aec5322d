"""Transformer encoders for text and for images (Vaswani et al., 2017)."""

from __future__ import annotations

from .float_network import FloatNetwork, Value


def bert_tiny(net: FloatNetwork, size: int) -> list[Value]:
    """BERT-tiny (Turc et al., 2019): 2 layers of width 128, 2 heads; ``size`` tokens, two classes.

    Normalization follows the additions, and Gelu is composed with Erf, since opset 17 has no Gelu.
    """
    wide = net.channels(128)
    tokens, types = net.tokens("input_ids", size), net.tokens("token_type_ids", size)
    x = net.node("Gather", net.normal("word_embeddings", 1000, wide), tokens, rms=1.0)
    kinds = net.node("Gather", net.normal("type_embeddings", 2, wide), types, rms=1.0)
    places = net.normal("position_embeddings", 1, size, wide)
    x = net.norm(net.node("Add", net.add(x, kinds), places))
    for layer in range(2):
        with net.part(f"layer{layer}"):
            x = net.norm(net.add(x, _attention(net, x, heads=2)))
            y = net.linear(net.linear(x, 4 * wide, "Erf"), wide)
            x = net.norm(net.add(x, y))
    first = net.node("Gather", x, net.constant("first", 0, "int64"), axis=1)
    pooled = net.node("Tanh", net.gemm(first, wide), rms=0.6)
    return [net.gemm(pooled, 2)]


def vit_tiny(net: FloatNetwork, size: int) -> list[Value]:
    """ViT-Ti/16 (Touvron et al., 2021) with 4 layers: width 192, 3 heads, patches of 16×16 pixels;
    classifies the average of all patches.

    Normalization precedes attention and products, and Gelu is the operator of opset 20.
    """
    wide = net.channels(192)
    x = net.conv(net.image(3, size, size), wide, 16, 16, act="", pads=0)
    x = net.node("Transpose", net.reshape(x, 0, wide, -1), perm=[0, 2, 1])
    x = net.node("Add", x, net.normal("position_embeddings", *x.shape, deviation=0.5), rms=1.1)
    for layer in range(4):
        with net.part(f"layer{layer}"):
            x = net.add(x, _attention(net, net.norm(x), heads=3))
            x = net.add(x, net.linear(net.linear(net.norm(x), 4 * wide, "Gelu"), wide))
    axes = net.constant("axes", [1], "int64")
    return [net.gemm(net.node("ReduceMean", net.norm(x), axes, keepdims=0), 1000)]


def _attention(net: FloatNetwork, x: Value, heads: int) -> Value:
    """Self-attention over a sequence (1, length, width)."""
    length, wide = x.shape[1:]
    each = wide // heads

    def projected(name: str, *order: int) -> Value:
        with net.part(name):
            y = net.reshape(net.linear(x, wide), 0, length, heads, each)
            return net.node("Transpose", y, perm=order)

    with net.part("attention"):
        query, key = projected("query", 0, 2, 1, 3), projected("key", 0, 2, 3, 1)
        value = projected("value", 0, 2, 1, 3)
        scores = net.node("MatMul", query, key, rms=each**0.5)
        scores = net.node("Div", scores, net.constant("root", each**0.5), rms=1.0)
        shares = net.node("Softmax", scores, axis=-1, rms=1 / length)
        mixed = net.node("MatMul", shares, value, rms=1.6 / length**0.5)
        mixed = net.reshape(net.node("Transpose", mixed, perm=[0, 2, 1, 3]), 0, length, wide)
        return net.linear(mixed, wide)
