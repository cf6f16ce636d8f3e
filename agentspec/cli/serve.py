"""`agentspec serve`: one model for every client that speaks OpenAI's or Anthropic's API."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentspec.cli._errors import ExitCode
from agentspec.cli._options import engine_options
from agentspec.errors import MissingExtraError

if TYPE_CHECKING:
    from agentspec.api import Engine
    from agentspec.config import Settings
    from agentspec.server.options import ServerOptions


@click.command("serve")
@click.argument("model", required=False)
@engine_options
@click.option("--host", help="Address to listen on; any but 127.0.0.1 needs an API key.")
@click.option("--port", type=int, help="Port to listen on; 0: any.  [default: 8080]")
@click.option(
    "--api-key",
    multiple=True,
    help="Key that clients must send; other users see it in the list of processes, so rather set "
    "AGENTSPEC_API_KEY or use --api-key-file.",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File of keys, one a line.",
)
@click.option("--allow-host", multiple=True, help="Further name in the Host header.")
@click.option("--allow-origin", multiple=True, help="Web page that may ask: https://example.org.")
@click.option("--parallel", type=click.IntRange(1, 64), help="Answers made at a time.")
@click.option("--max-queue", type=int, help="Requests that may wait.  [default: 64]")
@click.option("--max-tokens", type=int, help="Most tokens of an answer that names none.")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder whose files answers may repeat; its index is kept.",
)
@click.option(
    "--sessions-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder that conversations' KV caches are kept in from one start to the next.",
)
@click.option(
    "--normalise",
    type=click.Choice(["off", "cch"]),
    help="cch: read Claude Code's changing header line as if it stayed the same.",
)
@click.option("--drain-seconds", type=click.FloatRange(0, 3600), default=120.0, show_default=True)
@click.option("--no-page", is_flag=True, help="No page at /, and no text of any answer is kept.")
@click.option("--no-speculation", is_flag=True, help="Plain decoding unless a request asks.")
@click.option("--exact", is_flag=True, help="The text of plain decoding, bit for bit.")
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    model: str | None,
    host: str | None,
    port: int | None,
    api_key: tuple[str, ...],
    api_key_file: Path | None,
    allow_host: tuple[str, ...],
    allow_origin: tuple[str, ...],
    parallel: int | None,
    max_queue: int | None,
    max_tokens: int | None,
    workspace: Path | None,
    sessions_dir: Path | None,
    normalise: str | None,
    drain_seconds: float,
    no_page: bool,
    no_speculation: bool,
    exact: bool,
    **load: Any,
) -> None:
    """Serve MODEL (a catalog name or GGUF path; default: the configured one) until stopped.

    The first Ctrl-C or SIGTERM lets running answers finish: exit code 0. The second ends them: 130
    after Ctrl-C, 143 after SIGTERM. Conversations are kept in --sessions-dir either way. Closing
    the terminal is as SIGTERM.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "starlette", "server") from None
    from agentspec.config import load_settings
    from agentspec.loading import load_engine
    from agentspec.server.app import create_app
    from agentspec.server.options import ServerOptions
    from agentspec.server.run import address, bind
    from agentspec.server.run import serve as run
    from agentspec.server.security import check_bind

    settings = load_settings(
        {"host": host, "port": port, "max_queue": max_queue, "max_tokens": max_tokens}
    )
    options = ServerOptions(
        host=settings.host,
        port=settings.port,
        keys=_keys(api_key, api_key_file, settings),
        allow_hosts=allow_host,
        allow_origins=allow_origin,
        max_queue=settings.max_queue,
        page=not no_page,
        drain_seconds=drain_seconds,
    )
    # what is wrong is said before a model is loaded
    check_bind(options)
    sock = bind(options.host, options.port)
    with sock:
        if settings.origins["max_tokens"] == "default":
            # clients name no limit and mean none; the context is one
            load["max_tokens"] = load.get("n_ctx") or settings.n_ctx
        else:
            load["max_tokens"] = settings.max_tokens
        if no_speculation:
            load["speculation"] = False
        load.update(
            max_sessions=parallel, sessions_dir=sessions_dir, normalise=normalise
        )  # None: as the settings say
        with load_engine(model, exact=exact or None, workspace=workspace, **load) as engine:
            app = create_app(engine, options)
            where = address(sock, options.host)
            ended_by = run(
                app,
                sock,
                options,
                ready=lambda: click.echo(_announced(where, engine, options)),
                draining=_finishing,
            )
    if ended_by is not None:
        ctx.exit(ExitCode.INTERRUPTED if ended_by == signal.SIGINT else 128 + ended_by)


def _keys(flags: Sequence[str], file: Path | None, settings: Settings) -> tuple[str, ...]:
    from agentspec.server.security import check_keys, read_keys

    keys = [*flags, *(read_keys(file) if file is not None else ())]
    if settings.api_key is not None:
        keys.append(settings.api_key)
    return check_keys(keys)


def _announced(where: str, engine: Engine, options: ServerOptions) -> str:
    """What is printed once requests are taken; programs find the address in the first line."""
    lines = [
        f"serving {engine.model} at {where} ({engine.target.n_ctx} tokens of context)",
        f"  base URL {where}/v1 (Anthropic: {where})",
        f"  API key  {'needed' if options.keys else 'not needed'}",
        *([f"  watch    {where}/"] if options.page else ()),
        *([f"  kept     {_conversations(engine.restored)} of before"] if engine.restored else ()),
        f"  connect  agentspec print-config CLIENT --url {where}",
    ]
    trained = getattr(engine.target, "n_ctx_trained", 0)
    if 0 < trained < engine.target.n_ctx:
        lines.insert(1, f"  note     trained for {trained} tokens: a longer context is read badly")
    return "\n".join(lines)


def _conversations(number: int) -> str:
    return "1 conversation" if number == 1 else f"{number} conversations"


def _finishing(answers: int) -> None:
    if answers:
        what = "1 answer" if answers == 1 else f"{answers} answers"
        click.echo(f"finishing {what}, again to stop at once", err=True)
