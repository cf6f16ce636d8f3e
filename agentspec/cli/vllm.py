"""`agentspec vllm`: what a server of vLLM must be told to draft for a model."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import click

from agentspec.cli.plan import Size

if TYPE_CHECKING:
    from agentspec.vllm.command import Gpus

_METHODS = (
    "draft_model", "ngram", "suffix", "eagle3", "eagle", "medusa", "mtp", "custom_class",
)  # fmt: skip


@click.group()
def vllm() -> None:
    """Serve a model with vLLM, on more GPUs than one."""


@vllm.command("command", context_settings={"ignore_unknown_options": True})
@click.argument("line", metavar="MODEL [FLAGS OF VLLM]…", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--draft", help="Draft model, heads, package.module.Class of a proposer, or agentspec: ours."
)
@click.option("--method", type=click.Choice(_METHODS), help="How to draft.  [default: told by it]")
@click.option("--k", type=click.IntRange(1), help="Tokens to draft in one step.")
@click.option(
    "--use-heterogeneous-vocab",
    is_flag=True,
    help="Let a draft model of another vocabulary draft the tokens that both have.",
)
@click.option("--gpus", help="GPUs, e.g. 4x80GiB.  [default: those of this machine]")
@click.option("--concurrency", type=click.IntRange(1), help="Requests that should fit at once.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    line: tuple[str, ...],
    draft: str | None,
    method: str | None,
    k: int | None,
    use_heterogeneous_vocab: bool,
    gpus: str | None,
    concurrency: int | None,
    as_json: bool,
) -> None:
    """Print the `vllm serve` command for MODEL and what drafts for it, and check the two.

    A command of an older guide may be given as it stands, `vllm serve` included: flags that vLLM
    has no more are translated, all others are passed on. What vLLM would refuse is refused here, by
    name. Nothing is started and no weights are read; models are folders or names of Hugging Face.
    """
    from agentspec.vllm.command import compose
    from agentspec.vllm.line import read_line
    from agentspec.vllm.report import data, text
    from agentspec.vllm.speculation import OURS

    if draft == "agentspec":
        draft = OURS
    words = list(line)
    for flag, value in (("--spec-model", draft), ("--spec-method", method), ("--spec-tokens", k)):
        if value is not None:
            words += [flag, str(value)]
    if use_heterogeneous_vocab:
        words.append("--speculative-config.use_heterogeneous_vocab=true")
    answer = compose(read_line(words), gpus=_gpus(gpus), requests=concurrency)
    click.echo(json.dumps(data(answer)) if as_json else text(answer))


def _gpus(told: str | None) -> Gpus | None:
    from agentspec.models.gpu import known_gpus
    from agentspec.vllm.command import Gpus

    if told is None:
        found = known_gpus()
        if not found:
            return None
        smallest = min(found, key=lambda gpu: gpu.total)
        return Gpus(len(found), smallest.total, smallest.name)
    parts = re.fullmatch(r"\s*(?:(\d{1,4})\s*[xX×*]\s*)?(\S+)\s*", told)
    if parts is None or parts[1] == "0":
        raise click.BadParameter(f"{told!r}; write it like 4x80GiB", param_hint="--gpus")
    return Gpus(int(parts[1] or 1), Size().convert(parts[2], None, None))
