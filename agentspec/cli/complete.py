"""`agentspec complete`: one answer on standard output."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from agentspec.cli._options import engine_options, server_key, server_options, without_controls
from agentspec.errors import CancelledError, InvalidRequestError


@click.command("complete")
@click.argument("prompt", required=False)
@click.option("--model", help="Target: catalog name or GGUF path; with --base-url its name there.")
@engine_options
@server_options
@click.option("--system", help="System message.")
@click.option(
    "--messages",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with a JSON list of OpenAI-shaped messages, instead of PROMPT.",
)
@click.option(
    "--context",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File the answer may repeat; may be given several times.",
)
@click.option(
    "--workspace",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder whose files the answer may repeat; its index is kept.",
)
@click.option("--max-tokens", type=int, help="Most tokens of the answer.")
@click.option("--temperature", default=0.0, show_default=True)
@click.option("--top-k", default=0, show_default=True, help="0: off.")
@click.option("--top-p", default=1.0, show_default=True)
@click.option("--min-p", default=0.0, show_default=True)
@click.option("--seed", type=int)
@click.option("--stop", multiple=True, help="Stop string; may be given several times.")
@click.option("--k", type=int, help="Most draft tokens of a pass.")
@click.option("--no-speculation", is_flag=True, help="Plain decoding.")
@click.option("--exact", is_flag=True, help="The text of plain decoding, bit for bit.")
@click.option(
    "--lossy",
    type=click.Choice(["typical"]),
    help="Accept typical drafts, where --temperature is above 0: not the model's own distribution.",
)
@click.option("--stats", is_flag=True, help="Speed and acceptance on standard error.")
@click.option("--explain", is_flag=True, help="Why each draft was chosen, on standard error.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole completion as JSON.")
def complete(
    prompt: str | None,
    model: str | None,
    base_url: str | None,
    api_key_file: Path | None,
    system: str | None,
    messages: Path | None,
    context: tuple[Path, ...],
    workspace: Path | None,
    max_tokens: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int | None,
    stop: tuple[str, ...],
    k: int | None,
    no_speculation: bool,
    exact: bool,
    lossy: str | None,
    stats: bool,
    explain: bool,
    as_json: bool,
    **load: Any,
) -> None:
    """Answer PROMPT, or standard input when PROMPT is - or missing."""
    from agentspec.request import parse_request

    request: dict[str, Any] = {
        "context": context,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "stop": list(stop) or None,
        "speculation": _speculation(no_speculation, k, explain),
    }
    chat = _messages(prompt, system, messages)
    parse_request(chat, **request)  # what is wrong is said before a model is loaded
    load = {"exact": exact or None, "workspace": workspace, "lossy": lossy, **load}
    with _engine(model, base_url, api_key_file, load) as engine:
        if as_json:
            answer = engine.complete(chat, **request)
            click.echo(answer.model_dump_json())
            _say_lossy(answer)
            return
        final, cut = None, False
        # what a model says may hold sequences that steer a terminal; a file gets it as it is
        shown = without_controls if sys.stdout.isatty() else str
        stream = engine.stream(chat, **request)
        try:
            for chunk in stream:
                final = chunk
                for choice in chunk.choices:
                    cut = cut or choice.finish_reason == "length"
                    click.echo(shown(choice.delta.reasoning_content or ""), nl=False)
                    click.echo(shown(choice.delta.content or ""), nl=False)
        except KeyboardInterrupt:
            click.echo()
            raise CancelledError("interrupted; the text so far stands above") from None
        click.echo()
        _say_lossy(final)
        if max_tokens is None and cut:  # who gave a limit knows it
            click.echo("note: the answer was cut at its most tokens; give --max-tokens", err=True)
        if explain and final is not None and final.speculation is not None:
            for number, line in enumerate(final.speculation.explained, 1):
                click.echo(f"pass {number}: {line}", err=True)
        if stats and final is not None:
            click.echo(_stats_line(final), err=True)
            for note in final.speculation.notes if base_url is not None else ():
                click.echo(f"note: {note}", err=True)


def _engine(
    model: str | None, base_url: str | None, api_key_file: Path | None, load: dict[str, Any]
) -> Any:
    if base_url is None:
        from agentspec.loading import load_engine

        return load_engine(model, **load)
    wrong = next((name for name, value in load.items() if value is not None), None)
    if wrong is not None:
        option = f"--{wrong.replace('_', '-')}"
        raise click.UsageError(f"{option} is for a model that is loaded here, not for --base-url")
    from agentspec.remote.engine import RemoteEngine

    key = server_key(api_key_file, base_url)
    return RemoteEngine(base_url, model, api_key=key, plain_http=api_key_file is not None)


def _speculation(off: bool, k: int | None, explain: bool) -> Any:
    if off:
        return False
    options = {**({} if k is None else {"k": k}), **({"explain": True} if explain else {})}
    return options or None  # None: as the settings say


def _messages(prompt: str | None, system: str | None, path: Path | None) -> Any:
    if path is not None:
        if prompt is not None:
            raise click.UsageError("give PROMPT or --messages, not both")
        try:
            return json.loads(path.read_text("utf-8"))
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{path} is not JSON: {error}") from None
    if prompt is None or prompt == "-":
        if prompt is None and sys.stdin.isatty():
            raise click.UsageError("missing PROMPT; give a text, or - for standard input")
        try:
            prompt = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRequestError(f"standard input is not UTF-8: {error}") from None
    if not prompt.strip():
        raise InvalidRequestError("the prompt is empty")
    chat: list[dict[str, str]] = [{"role": "user", "content": prompt}]
    return [{"role": "system", "content": system}, *chat] if system else chat


def _say_lossy(answer: Any) -> None:
    stats = answer.speculation if answer is not None else None
    if stats is not None and stats.lossy:
        # a name of a server's is shown as text, not obeyed
        rule = without_controls(stats.lossy)
        click.echo(f"lossy: {rule} acceptance, not the model's own distribution", err=True)


def _stats_line(chunk: Any) -> str:
    s = chunk.speculation
    sources = ", ".join(f"{n} {c.accepted}/{c.drafted}" for n, c in s.sources.items())
    return (
        f"{s.generated_tokens} tokens at {s.tokens_per_second:.1f} tok/s, {s.passes} passes, "
        f"acceptance length {s.acceptance_length:.2f} ({sources or 'no drafts'}); "
        f"prompt {s.prompt_tokens} tokens, {s.cached_tokens} reused, {s.prefill_seconds:.1f} s"
    )
