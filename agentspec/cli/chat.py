"""`agentspec chat`: a coding assistant in a repository."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import click

from agentspec.cli._errors import ExitCode, one_line
from agentspec.cli._options import engine_options, server_key, server_options, without_controls
from agentspec.errors import CancelledError, InvalidRequestError, MissingExtraError

_HEADLESS = """\b
Without a terminal, with -p, or with a request on standard input, one request is done and the
program ends: exit code 0 when the model was done, 4 when the turn ended before (--max-turns, a
cut answer, the same call again and again), and 1, 2 and 130 as for every command. There nobody
can be asked: edits need --yes, commands --allow-command or the setting allow_commands."""


@click.command("chat", epilog=_HEADLESS)
@click.argument("path", default=".", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--model", help="Target: catalog name or GGUF path; with --base-url its name there.")
@engine_options
@server_options
@click.option("-p", "--print", "request", metavar="TEXT",
              help="Do this one request and end; - reads it from standard input.")  # fmt: skip
@click.option("--output-format", type=click.Choice(["text", "json", "stream-json"]),
              default="text", show_default=True, help="What -p prints.")  # fmt: skip
@click.option("--max-turns", type=click.IntRange(1), default=40, show_default=True,
              help="Most answers of the model to one request.")  # fmt: skip
@click.option("--continue", "latest", is_flag=True, help="Go on with the last session.")
@click.option("--resume", metavar="ID", help="Go on with this session.")
@click.option("--yes", is_flag=True, help="Make edits without asking.")
@click.option("--read-only", is_flag=True, help="Change nothing and run nothing.")
@click.option("--dry-run", is_flag=True, help="Show changes and commands; make and run none.")
@click.option("--allow-command", multiple=True, metavar="WORDS",
              help="Run this command unasked; a last * for any further words.")  # fmt: skip
@click.option("--test-command", help="How /test and the model run the tests.")
@click.option("--map-tokens", type=click.IntRange(0), help="Most tokens of the map; 0: no map.")
@click.option("--max-tokens", type=int, help="Most tokens of an answer.")
@click.option("--temperature", type=click.FloatRange(0, 100), default=0.0, show_default=True)
@click.option("--seed", type=int)
@click.option("--no-speculation", is_flag=True, help="Plain decoding.")
@click.option("--exact", is_flag=True, help="The text of plain decoding, bit for bit.")
@click.option("--color-by-source", is_flag=True, help="Paint each token by who proposed it.")
@click.option("--no-color", is_flag=True, help="No colours; NO_COLOR does the same.")
@click.pass_context
def chat(
    ctx: click.Context,
    /,
    path: Path,
    model: str | None,
    base_url: str | None,
    api_key_file: Path | None,
    request: str | None,
    output_format: Literal["text", "json", "stream-json"],
    max_turns: int,
    latest: bool,
    resume: str | None,
    yes: bool,
    read_only: bool,
    dry_run: bool,
    allow_command: tuple[str, ...],
    test_command: str | None,
    map_tokens: int | None,
    max_tokens: int | None,
    temperature: float,
    seed: int | None,
    no_speculation: bool,
    exact: bool,
    color_by_source: bool,
    no_color: bool,
    **load: Any,
) -> None:
    """Work with a model in the git repository around PATH.

    The model lists, reads and searches files by itself. It asks before every change and every
    command; /undo takes back what a turn changed. /help lists what can be typed.
    """
    if latest and resume is not None:
        raise click.UsageError("give --continue or --resume, not both")
    if resume is not None and not resume.strip():
        raise click.UsageError("--resume needs the id of a session; --continue takes the last one")
    for module in ("rich", "prompt_toolkit", "pathspec"):
        if find_spec(module) is None:
            raise MissingExtraError(module, "chat")
    from agentspec.assistant.open import Rules
    from agentspec.assistant.repository import Repository
    from agentspec.assistant.session_log import known, project_folder
    from agentspec.config import load_settings
    from agentspec.terminal import start
    from agentspec.visible import plain

    _streams(as_json=output_format != "text")
    asked = _request(request)
    repository = Repository.around(path)
    settings = load_settings(
        {"model": model, "max_tokens": max_tokens, "test_command": test_command, **load},
        project_dir=repository.root,
    )
    if latest or resume is not None:
        # said now, not when the model is loaded
        known(project_folder(repository.root), resume)
    rules = Rules(
        read_only=read_only,
        dry_run=dry_run,
        yes=yes,
        allowed=(*settings.allow_commands, *allow_command),
        test_command=settings.test_command or "",
        max_answers=max_turns,
        max_tokens=max_tokens,
    )
    options: dict[str, Any] = {"temperature": temperature, "seed": seed}
    if base_url is not None:
        models = start.remote(base_url, model, server_key(api_key_file, base_url), options)
    else:
        load = {"exact": exact or None, **load}
        options["speculation"] = False if no_speculation else {"explain": True}
        models = start.local(
            settings, repository.root, load, options, tokens=color_by_source and asked is None
        )
    session = start.Sessions(repository, rules, "" if latest else resume, map_tokens)
    if asked is None:
        start.talk(
            models,
            session,
            greedy=temperature == 0,
            colour=not no_color,
            by_source=color_by_source,
        )
        return
    shown = without_controls if sys.stdout.isatty() else str
    why = start.once(
        models,
        session,
        asked,
        format=output_format,
        write=lambda text: click.echo(shown(text)),
        remark=lambda text: click.echo(f"note: {one_line(text)}", err=True),
        display=lambda text: click.echo(plain(text), err=True, nl=False),
    )
    if why == "cancelled":
        raise CancelledError("interrupted; what was written so far is kept: --continue goes on")
    if why != "done":
        ctx.exit(ExitCode.UNFINISHED)


def _streams(*, as_json: bool) -> None:
    """Streams for those that were closed, and none that fails at a character."""
    from agentspec.terminal.encoding import tolerant

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    tolerant(sys.stdout, json=as_json)
    tolerant(sys.stderr)


def _request(given: str | None) -> str | None:
    """The request of a run without a terminal; None where somebody can be asked."""
    if given is None and sys.stdin.isatty() and sys.stdout.isatty():
        return None
    if given is None and sys.stdin.isatty():
        raise click.UsageError("standard output is no terminal; give the request with -p")
    if given is None or given == "-":
        try:
            given = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRequestError(f"standard input is not UTF-8: {error}") from None
    if not given.strip():
        raise InvalidRequestError("the request is empty")
    return given
