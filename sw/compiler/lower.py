"""Lowers a schedule, pass by pass, to a loop nest of runtime calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth_vta.hw.config import Config

from .emit.listing import listing
from .environment import Environment, get_env
from .forms import check_form
from .nest.ir import LoopNest, LoweringError
from .nest.printer import body_text, to_text
from .passes.infer_bounds import infer_bounds
from .passes.pipeline import Pass, PlacedPass, passes_after, with_placed
from .passes.require_instructions import require_instructions
from .te.schedule import Schedule
from .te.tensor import Tensor


@dataclass
class Lowered:
    """A loop nest after all passes that succeeded; prints as text.

    ``problem`` is the reason why the next pass failed, None if all succeeded. ``steps`` holds the
    name of each pass and the text after it, if tracing was requested.
    """

    nest: LoopNest
    config: Config
    problem: LoweringError | None
    steps: list[tuple[str, str]]
    simple: bool = False

    def __str__(self) -> str:
        if self.steps:
            steps = list(self.steps)
            if self.problem is None:
                steps.append(("instructions", self.instructions()))
            return "\n\n".join(f"# {name}\n{text}" for name, text in steps) + self._note()
        return (body_text(self.nest) if self.simple else to_text(self.nest)) + self._note()

    def named(self, name: str) -> Lowered:
        """The same loop nest under another name, without the steps."""
        nest = LoopNest(name, self.nest.args, self.nest.body)
        return Lowered(nest, self.config, self.problem, [], self.simple)

    def labelled(self) -> str:
        """The loop nest as text, each line with its stage, axis and source line."""
        return to_text(self.nest, labels=True)

    def instructions(self) -> str:
        """Instructions and micro-ops as text, each with its stage and source line."""
        return listing(self.nest, self.config)

    def _note(self) -> str:
        return f"\n# not for the machine: {self.problem}" if self.problem else ""


def lower(
    schedule: Schedule,
    args: Sequence[Tensor],
    simple_mode: bool = False,
    trace: bool = False,
    name: str = "function",
    env: Environment | None = None,
    passes: Sequence[PlacedPass] = (),
    labels: bool = False,
) -> Lowered:
    """Lower a schedule as far as possible; if the machine cannot run it, `Lowered.problem` tells
    why.

    ``args`` are the placeholders and outputs, in the order of the function's arguments. Printing
    the result shows the loop nest, with ``simple_mode`` only its body. ``trace`` records every
    step, and with ``labels`` each line of the steps shows its stage, axis and source line.
    ``passes`` are additional passes, each with its place: ``("after fold_loops", function)``.
    Raises `LoweringError` if there is no loop nest at all, if the place of an additional pass does
    not exist, or if an additional pass does not return a `LoopNest`.
    """
    env = env or get_env()
    steps = with_placed([*env.passes, *passes])
    lowered = Lowered(infer_bounds(schedule, args, name), env.config, None, [], simple_mode)
    if trace:
        lowered.steps.append(("infer_bounds", to_text(lowered.nest, labels)))
    return _continue(lowered, steps, trace, labels)


def lower_further(nest: LoopNest, after: str, config: Config, trace: bool = False) -> Lowered:
    """Lower ``nest``, in the form that the pass ``after`` produces, as far as possible.

    ``after`` is one of `PASS_NAMES`; ``trace`` as in `lower`. Raises `LoweringError` if the nest
    does not have that form.
    """
    check_form(nest, after)
    lowered = Lowered(nest, config, None, [(after, to_text(nest))] if trace else [])
    return _continue(lowered, passes_after(after), trace, False)


def _continue(lowered: Lowered, steps: Sequence[Pass], trace: bool, labels: bool) -> Lowered:
    for step in steps:
        name = getattr(step, "__name__", type(step).__name__)
        try:
            nest = step(lowered.nest, lowered.config)
        except LoweringError as error:
            lowered.problem = error
            break
        if not isinstance(nest, LoopNest):
            raise LoweringError(
                f"the pass {name} returned {type(nest).__name__} and not a LoopNest"
            )
        lowered.nest = nest
        if trace and step is not require_instructions:
            lowered.steps.append((name, to_text(nest, labels)))
    return lowered
