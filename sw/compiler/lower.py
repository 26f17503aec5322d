"""Lowering: a schedule becomes calls of the runtime, by a list of passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from amaranth_vta.hw.config import Config

from .emit.listing import listing
from .environment import Environment, get_env
from .nest.ir import Assign, Function, LoweringError, walk
from .nest.printer import body_text, to_text
from .passes.allocate_scratchpads import allocate_scratchpads
from .passes.copy_by_dma import copy_by_dma
from .passes.fold_loops import fold_loops
from .passes.infer_bounds import infer_bounds
from .passes.insert_tokens import insert_tokens
from .passes.interleave_threads import interleave_threads
from .passes.map_to_alu import map_to_alu
from .passes.mark_independent import mark_independent
from .passes.overwrite_first import overwrite_first
from .passes.share_storage import share_storage
from .passes.tensorize_gemm import tensorize_gemm
from .passes.unroll_loops import unroll_loops
from .te.schedule import Schedule
from .te.tensor import Tensor

Pass = Callable[[Function, Config], Function]
# Where it goes, "before" or "after" and the name of a pass, and what it does.
OwnPass = tuple[str, Pass]


def _unconfigured(function: Callable[[Function], Function]) -> Pass:
    def run(nest: Function, _: Config) -> Function:
        return function(nest)

    run.__name__ = function.__name__
    return run


def require_instructions(function: Function, _: Config) -> Function:
    """``function`` itself, if every statement of it has become an instruction."""
    for part in walk(function.body):
        if isinstance(part, Assign):
            raise LoweringError(
                f"{part.label.stage} is not done by an instruction: it has neither "
                "dma_copy nor alu nor gemm"
            )
    return function


PASSES: tuple[Pass, ...] = (
    overwrite_first,
    _unconfigured(interleave_threads),
    _unconfigured(unroll_loops),
    _unconfigured(share_storage),
    copy_by_dma,
    tensorize_gemm,
    map_to_alu,
    require_instructions,
    fold_loops,
    allocate_scratchpads,
    mark_independent,
    insert_tokens,
)
# Those that leave a loop nest of their own, in order.
PASS_NAMES = (
    "infer_bounds",
    *(step.__name__ for step in PASSES if step is not require_instructions),
)


@dataclass
class Lowered:
    """A function after as many passes as could be done; printing it shows its loop nest.

    ``problem`` is why the next pass could not be done, None if all were. ``steps`` has the text
    after each pass, if it was asked for.
    """

    function: Function
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
        text = body_text(self.function) if self.simple else to_text(self.function)
        return text + self._note()

    def labelled(self) -> str:
        """The loop nest with the stage, axis and source line that each line comes from."""
        return to_text(self.function, labels=True)

    def instructions(self) -> str:
        """The instructions and micro-ops, each with the stage and source line it comes from."""
        return listing(self.function, self.config)

    def _note(self) -> str:
        return f"\n# not for the machine: {self.problem}" if self.problem else ""


def lower(
    schedule: Schedule,
    args: Sequence[Tensor],
    simple_mode: bool = False,
    trace: bool = False,
    name: str = "function",
    env: Environment | None = None,
    passes: Sequence[OwnPass] = (),
    labels: bool = False,
) -> Lowered:
    """Lowers any schedule as far as it goes; what the machine cannot do is `Lowered.problem`.

    ``args`` are the placeholders and outputs, in the order of the function's arguments. The
    loop nest alone is printed in ``simple_mode``; every step with ``trace``, and with ``labels``
    the stage, axis and source line at each line of it. ``passes`` are passes of one's own. Raises
    `LoweringError` only if there is no loop nest at all, or for a pass of one's own that has no
    place or returns no `Function`.
    """
    env = env or get_env()
    config = env.config
    steps = _with_own([*env.passes, *passes])
    lowered = Lowered(infer_bounds(schedule, args, name), config, None, [], simple_mode)
    if trace:
        lowered.steps.append(("infer_bounds", to_text(lowered.function, labels)))
    return _continue(lowered, steps, trace, labels)


def lower_further(function: Function, after: str, config: Config, trace: bool = False) -> Lowered:
    """Lowers what is in the form that the pass ``after`` leaves."""
    names = ["infer_bounds", *(step.__name__ for step in PASSES)]
    steps = PASSES[names.index(after) :]
    return _continue(Lowered(function, config, None, []), steps, trace, False)


def _with_own(own: Sequence[OwnPass]) -> list[Pass]:
    """The passes behind `infer_bounds`, in order, those of one's own among them."""
    left = list(own)

    def at(phase: str) -> list[Pass]:
        found = [item for item in left if item[0] == phase]
        for item in found:
            left.remove(item)
        return [step for _, step in found]

    steps = at("after infer_bounds")
    for step in PASSES:
        steps += [*at(f"before {step.__name__}"), step, *at(f"after {step.__name__}")]
    if left:
        names = ", ".join(step.__name__ for step in PASSES)
        raise LoweringError(
            f"{left[0][0]!r} is no place for a pass: it is before or after one of {names}, or "
            "after infer_bounds"
        )
    return steps


def _continue(lowered: Lowered, steps: Sequence[Pass], trace: bool, labels: bool) -> Lowered:
    for step in steps:
        name = getattr(step, "__name__", type(step).__name__)
        try:
            function = step(lowered.function, lowered.config)
        except LoweringError as error:
            lowered.problem = error
            break
        if not isinstance(function, Function):
            raise LoweringError(
                f"the pass {name} returned {type(function).__name__} and not a Function"
            )
        lowered.function = function
        if trace and step is not require_instructions:
            lowered.steps.append((name, to_text(function, labels)))
    return lowered
