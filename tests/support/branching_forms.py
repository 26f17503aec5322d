"""Forms with If and Loop, whose conditions are known at compile time or only at run time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .quantized_forms import IMAGE, Form, Shape, floats, matrix, qdq

# Writes the nodes that compute the tensor with a given name.
Text = Callable[[str], str]

WEIGHTS = matrix("m", "k(8,8,1,1)") + matrix("n", "k(8,8,1,1)")


def layer(result: str, source: str, weights: str = "m") -> str:
    """A layer; its tensors are named after ``result``."""
    return (
        qdq(f"{result}_a", source, 0.03)
        + f"{result}_b = Conv({result}_a, {weights})"
        + qdq(result, f"{result}_b", 0.05)
    )


def choice(condition: str, then: Text, otherwise: Text, result: str = "z") -> str:
    """An If."""
    t, e = f"{result}_t", f"{result}_e"
    return (
        f" {result} = If ({condition}) <then_branch = g () => (float {t}) {{ {then(t)} }}, "
        f"else_branch = h () => (float {e}) {{ {otherwise(e)} }}> "
    )


def of(operation: str) -> Text:
    """The text of one operator."""
    return lambda result: f"{result} = {operation}"


def repetition(count: str, condition: str, step: str, more: str = "") -> str:
    """A Loop from d to z: ``step`` computes w from v, and ``on`` from iteration k and ``was``."""
    return (
        f" z{more and ', s'} = Loop({count}, {condition}, d) <body = b (int64 k, bool was, float v)"
        f" => (bool on, float w{more and ', float u'}) {{ {step} {more} }}> "
    )


def form(text: str, shape: Shape = IMAGE, host: tuple[str, ...] = ()) -> Form:
    return Form(partial(floats, text, shape), frozenset(host))


# FIRST computes d, which the If or Loop reads; LAST reads its result z.
FIRST = WEIGHTS + layer("d", "x")
LAST = layer("y", "z")
BOOL = " p = Cast<to=9>(c(1)) "
AT_RUN_TIME = " l = ReduceSum<keepdims=0>(x) p = Greater(l, c(0)) "
EITHER = choice("p", lambda r: layer(r, "d"), lambda r: layer(r, "d", "n"))


def decided() -> dict[str, Form]:
    """If and Loop whose control flow is decided at compile time."""
    step = layer("w", "v")
    goes_on = "on = Identity(was)"
    return {
        "If of a constant": form(FIRST + BOOL + EITHER + LAST),
        "If of a constant, the other branch": form(
            FIRST + " p = Cast<to=9>(c(0)) " + EITHER + LAST
        ),
        "If of a vector": form(FIRST + "p = Greater(v(1), c(0.1))" + EITHER + LAST),
        "If of a shape": form(
            FIRST + "s = Shape(d) r = Gather(s, i(2)) p = Less(r, i(12))" + (EITHER + LAST)
        ),
        "If of a size that is 1": form(
            FIRST
            + "f = GlobalAveragePool(d)"
            + qdq("v", "f", 0.04)
            + "s = Shape<start=2,end=3>(v) p = Equal(s, i(1))"
            + choice("p", of("Squeeze(v, i(2,3))"), of("Identity(v)"))
            + matrix("o", "k(8,5)")
            + "u = MatMul(z, o)"
            + qdq("y", "u", 0.06)
        ),
        "If in If": form(
            FIRST
            + BOOL
            + choice(
                "p",
                lambda r: choice("p", lambda q: layer(q, "d"), of("Identity(d)"), r),
                of("Relu(d)"),
            )
            + LAST
        ),
        "If with constants of its own": form(
            FIRST
            + BOOL
            + choice(
                "p",
                lambda r: f"c = Constant<value_float=0.25>() {r} = Add(d, c)",
                lambda r: f"c = Constant<value_float=0.5>() {r} = Add(d, c)",
            )
            + LAST
        ),
        "If with branches that are alike": form(
            FIRST
            + AT_RUN_TIME
            + choice(
                "p",
                lambda r: layer(r, "d"),
                lambda r: layer("e", "d") + f"{r} = Reshape(e, i(1,8,10,10))",
            )
            + LAST,
            host=("ReduceSum", "Greater"),
        ),
        "If of two views": form(
            FIRST
            + AT_RUN_TIME
            + choice("p", of("Reshape(d, i(1,8,100,1))"), of("Reshape(d, i(0,0,-1,1))"))
            + LAST,
            host=("ReduceSum", "Greater"),
        ),
        "Loop of three": form(
            FIRST + BOOL + " j = Squeeze(i(3)) " + repetition("j", "p", step + goes_on) + LAST
        ),
        "Loop without a condition": form(
            FIRST + " j = Squeeze(i(2)) " + repetition("j", "", step + goes_on) + LAST
        ),
        "Loop of none": form(
            FIRST + BOOL + " j = Squeeze(i(0)) " + repetition("j", "p", step + goes_on) + LAST
        ),
        "Loop until": form(
            FIRST
            + BOOL
            + " two = Squeeze(i(2)) "
            + repetition("", "p", step + "on = Less(k, two)")
            + LAST
        ),
        "Loop as often as a shape says": form(
            FIRST
            + BOOL
            + "s = Shape<start=0,end=1>(d) t = Add(s, i(1)) j = Squeeze(t)"
            + repetition("j", "p", step + goes_on)
            + LAST
        ),
        "Loop with results of all iterations": form(
            FIRST
            + BOOL
            + " j = Squeeze(i(2)) "
            + repetition("j", "p", step + goes_on, "u = Relu(w)")
            + "t = Squeeze(s, i(1)) "
            + layer("y", "t"),
            host=("Concat", "Squeeze", "Unsqueeze"),
        ),
        "Loop with If of the iteration": form(
            FIRST
            + BOOL
            + " j = Squeeze(i(3)) one = Squeeze(i(1)) "
            + repetition(
                "j",
                "p",
                "q = Equal(k, one)"
                + choice("q", lambda r: layer(r, "v"), lambda r: layer(r, "v", "n"), "w")
                + goes_on,
            )
            + LAST
        ),
    }
