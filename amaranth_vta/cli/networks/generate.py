"""``vta generate``: generate tokens with a quantized decoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from amaranth_vta.cli.common.options import (
    config_option,
    context_option,
    device_options,
    json_option,
    machines_option,
    memory_bus_option,
    wrong_results,
)
from amaranth_vta.cli.common.outputs import Outputs, reserve_trace, save_trace
from amaranth_vta.cli.common.problems import DONE
from amaranth_vta.extras import explain_missing_extras
from amaranth_vta.hw.config import Config
from amaranth_vta.report.text_table import counted
from amaranth_vta.sim.devices import RunOptions

from .run import asked_for, refuse_host_alone

if TYPE_CHECKING:
    from amaranth_vta.session import Session

# Tokens of the prompt per run, by default: a multiple of tiles, and enough rows for products to be
# limited by the array instead of the bus.
_PREFILL_STEP, _LARGEST_PREFILL = 16, 64


class TokensType(click.ParamType):
    """Tokens as numbers: ``1,2,3``."""

    name = "N,N,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isdecimal() for part in parts):
            self.fail(f"{value!r} is not a list of tokens, such as 1,2,3", param, ctx)
        return tuple(int(part) for part in parts)


@click.command()
@click.argument("model", type=click.Path(), metavar="MODEL|FILE")
@config_option
@device_options()
@machines_option
@memory_bus_option
@click.option("--prompt-ids", type=TokensType(), help="The prompt, as tokens.")
@click.option("--prompt", metavar="TEXT", help="The prompt as text, for --tokenizer.")
@click.option(
    "--tokenizer",
    "tokenizer_path",
    type=click.Path(),
    metavar="FILE",
    help="A tokenizer.json: prints text instead of tokens. Needs the extra `text`.",
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    default=16,
    show_default=True,
    help="Number of tokens to generate.",
)
@context_option
@click.option(
    "--prefill",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens of the prompt per run.  [default: all, rounded up to a multiple of 16, at most "
    "64; 1 for short prompts, and for models that cannot take several; as compiled for a FILE]",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Divides the logits before a token is drawn; 0 takes the token with the largest logit.",
)
@click.option(
    "--top-k",
    type=click.IntRange(min=0),
    metavar="K",
    default=0,
    help="Draw among the K tokens with the largest logits.  [default: all]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the drawn tokens.")
@click.option(
    "--allow-host",
    is_flag=True,
    help="Accept a float model, or a dynamically quantized one, as in `vta run`.",
)
@json_option
def generate(
    model: str,
    config: Config,
    options: RunOptions,
    trace: str | None,
    machines: int,
    memory_bus: int,
    prompt_ids: tuple[int, ...] | None,
    prompt: str | None,
    tokenizer_path: str | None,
    max_new_tokens: int,
    context: int | None,
    prefill: int | None,
    temperature: float,
    top_k: int,
    seed: int,
    allow_host: bool,
    json_path: str | None,
) -> int:
    """Generate tokens with the quantized decoder of MODEL.

    MODEL is an ONNX file whose inputs are input_ids, attention_mask, perhaps position_ids, and
    caches such as past_key_values.0.key, with the outputs logits and present.0.key. `vta compile
    --context N --prefill M` writes a FILE. Prints each token as soon as it is known. The caches
    stay in the machine's memory where layers write and read them.
    """
    if (prompt_ids is None) == (prompt is None):
        raise click.UsageError("give the prompt as --prompt-ids, or as --prompt with --tokenizer")
    if prompt is not None and tokenizer_path is None:
        raise click.UsageError("--prompt needs --tokenizer; --prompt-ids does not")
    if not options.has_results:
        raise click.UsageError(
            f"tokens follow from results, which {wrong_results(options)} does not compute"
        )
    with Outputs() as outputs:
        outputs.reserve("--json", json_path)
        timeline = reserve_trace(outputs, trace)
        tokenizer: Any = None if tokenizer_path is None else _tokenizer(tokenizer_path)
        ids = list(prompt_ids or ()) if prompt is None else tokenizer.encode(prompt).ids
        options = replace(options, timeline=timeline, machines=machines, memory_bus=memory_bus)
        to_error = json_path == "-"
        made: list[int] = []
        sizes = context, prefill, len(ids), max_new_tokens
        with _open(model, config, options, *sizes) as session:
            if not allow_host:
                refuse_host_alone(session, model)
            tokens = session.generate(
                ids, max_new_tokens, temperature=temperature, top_k=top_k, seed=seed
            )
            try:
                for text in _texts(tokens, made, tokenizer):
                    click.echo(text, nl=False, err=to_error)
            finally:  # also after a fault
                click.echo(err=to_error)
                session.close()
                save_trace(outputs, trace, timeline)
                report = session.report()
                outputs.save_json("--json", {"prompt_ids": ids, "tokens": made, **report})
    outputs.say(_summary(len(ids), len(made), report))
    return DONE


def _texts(tokens: Iterator[int], made: list[int], tokenizer: Any) -> Iterator[str]:
    """The text to print for each token, which is appended to ``made``."""
    shown = ""
    for token in tokens:
        made.append(token)
        if tokenizer is None:
            yield str(token) if len(made) == 1 else f" {token}"
            continue
        # A character may consist of several tokens; until it is complete, it is decoded as U+FFFD.
        text = tokenizer.decode(made)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text.removeprefix(shown)
            shown = text


def _summary(prompt: int, made: int, report: Mapping[str, Any]) -> str:
    line = f"{counted(made, 'token')} after {counted(prompt, 'token')}"
    blocks = report.get("prefill", {})
    for item, of in ((blocks, f"block of {blocks.get('tokens')} tokens"), (report, "token")):
        if item.get("cycles"):
            line += f"; {item['cycles'] / item['runs']:,.0f} cycles per {of}"
    return line


def _open(
    model: str,
    config: Config,
    options: RunOptions,
    context: int | None,
    prefill: int | None,
    prompt: int,
    new: int,
) -> Session:
    """The session of a model, with a context for a ``prompt`` and ``new`` tokens by default, or of
    a compiled network.
    """
    from amaranth_vta.session import Session
    from amaranth_vta.sw.runtime.archive import is_archive
    from amaranth_vta.sw.runtime.network.model_error import ModelError

    if is_archive(model):
        if context is not None:
            raise click.UsageError(f"--context is for `vta compile`; {model} is compiled")
        session = Session.load(model, asked_for(config), options, blocks=prefill != 1)
        tokens = session.tokens_per_block
        if prefill not in (None, tokens):
            session.close()
            runs = f"blocks of {tokens} tokens" if tokens > 1 else "single tokens"
            raise click.UsageError(
                f"--prefill is for `vta compile`; {model} is compiled for {runs}"
            )
        return session
    context = context or prompt + new
    # Each token needs the caches of all earlier ones.
    split = options.machines > 1
    if prefill is None and prompt >= _PREFILL_STEP:
        rounded = -(-prompt // _PREFILL_STEP) * _PREFILL_STEP
        with suppress(ModelError):
            return Session(
                *(model, config, options),
                context=context,
                prefill=min(rounded, _LARGEST_PREFILL),
                split=split,
            )
    return Session(model, config, options, context=context, prefill=prefill or 1, split=split)


def _tokenizer(path: str) -> Any:
    with explain_missing_extras():
        from tokenizers import Tokenizer
    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # the package raises nothing narrower
        reason = str(error).splitlines()[0]
        raise click.ClickException(f"--tokenizer {path} cannot be read: {reason}") from None
