"""`agentspec bench`: plain against accelerated, in alternating order."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from agentspec.cli._options import StepBar, engine_options, give_report, out_option

_SUFFIXES = (".html", ".png")


def _checked_reports(
    ctx: click.Context, param: click.Parameter, value: tuple[Path, ...]
) -> tuple[Path, ...]:
    # said now: after minutes of measuring it would be too late
    for path in value:
        if path.suffix.lower() not in _SUFFIXES:
            known = " or ".join(_SUFFIXES)
            raise click.BadParameter(f"{path.name!r} does not end in {known}", ctx, param)
        if not path.parent.is_dir():
            raise click.BadParameter(f"there is no folder {str(path.parent)!r}", ctx, param)
    return value


@click.command("bench")
@click.argument("sessions", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--model", help="Target: catalog name or GGUF path.")
@engine_options
@click.option("--max-tokens", default=200, show_default=True, help="Most tokens of an answer.")
@click.option("--repeat", default=3, show_default=True, help="Pairs of runs per session.")
@click.option("--k", type=int, help="Most draft tokens of a pass.")
@click.option("--temperature", default=0.0, show_default=True)
@click.option("--warm", is_flag=True, help="Proposers know each session's earlier answer.")
@click.option("--exact", is_flag=True, help="Exact mode for both runs.")
@click.option(
    "--report",
    "reports",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    callback=_checked_reports,
    help="Measure cold and warm; draw a page (.html) or a picture (.png); repeatable.",
)
@click.option("--peers", is_flag=True, help="Also with other engines' ways to draft.")
@click.option(
    "--llama-server",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="For --peers: llama.cpp's server, where it is not on PATH.",
)
@click.option("--details", is_flag=True, help="Keep what each pass did, in the JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@out_option
def bench(
    sessions: tuple[Path, ...],
    model: str | None,
    max_tokens: int,
    repeat: int,
    k: int | None,
    temperature: float,
    warm: bool,
    exact: bool,
    reports: tuple[Path, ...],
    peers: bool,
    llama_server: Path | None,
    details: bool,
    as_json: bool,
    out: Path | None,
    **load: Any,
) -> None:
    """Measure generation speed, plain against accelerated, on SESSIONS.

    SESSIONS are files of OpenAI-shaped messages (JSONL: one conversation a line); without any,
    ten agent-like prompts that come along. Each prompt is read before its first timed run. Every
    further way to draft (--report: warm; --peers) adds as many runs.
    """
    from agentspec.bench.findings import bench_data
    from agentspec.bench.live import COLD, WARM, compare
    from agentspec.bench.peer_ways import peer_ways
    from agentspec.bench.report import bench_text, stamp
    from agentspec.bench.sessions import load_sessions, packaged_sessions
    from agentspec.bench.surroundings import describe_setup
    from agentspec.loading import load_engine

    if repeat < 1 or max_tokens < 1:
        raise click.UsageError("--repeat and --max-tokens must be at least 1")
    if llama_server is not None and not peers:
        raise click.UsageError("--llama-server is for --peers")
    pictures = [path for path in reports if path.suffix.lower() == ".png"]
    if pictures:
        from agentspec.replay.plots import need_matplotlib

        need_matplotlib()
    chosen = load_sessions(sessions) if sessions else packaged_sessions()
    speculation: dict[str, Any] = {} if k is None else {"k": k}
    recorded = details or peers or bool(reports)
    own = [WARM] if warm and not (reports or peers) else [COLD]
    if (warm or reports) and WARM not in own:
        own.insert(0 if warm else 1, WARM)
    # one live sequence: other conversations in the cache would cost every pass a little
    with (
        load_engine(model, exact=exact or None, max_sessions=1, **load) as engine,
        peer_ways(engine, llama_server) if peers else nullcontext() as others,
    ):
        found = compare(
            engine,
            chosen,
            [*own, *(others.ways if others is not None else ())],
            max_tokens=max_tokens,
            repeat=repeat,
            details=recorded,
            speculation_options=speculation,
            progress=StepBar("bench"),
            temperature=temperature,
        )
        stamped = stamp(engine, temperature=temperature, k=k)
        if recorded:
            stamped["command"] = shlex.join(
                ["agentspec", "bench", *_given(click.get_current_context())]
            )
            stamped["settings"] |= {"max_tokens": max_tokens, "repeat": repeat}
            stamped |= describe_setup(engine)
        data = bench_data(engine, found, stamped, details=recorded, peers=others)
    text = bench_text(next(iter(found.values())), data)
    try:
        give_report(data, text, as_json=as_json, out=out)
    finally:
        for path in reports:
            _draw(path, data)


def _draw(path: Path, data: dict[str, Any]) -> None:
    if path.suffix.lower() == ".png":
        from agentspec.bench.picture import save_picture

        save_picture(data, path)
    else:
        from agentspec.bench.page import bench_page

        path.write_text(bench_page(data), "utf-8")


def _given(ctx: click.Context) -> Iterator[str]:
    """The words of this command line again, of paths the names alone: folders are nobody's."""
    for param in ctx.command.params:
        if ctx.get_parameter_source(param.name or "") is not ParameterSource.COMMANDLINE:
            continue
        value = ctx.params[param.name or ""]
        values = value if isinstance(value, tuple) else (value,)
        for one in values:
            if isinstance(param, click.Option):
                yield max(param.opts, key=len)
                if param.is_flag:
                    continue
            is_path = isinstance(one, Path) or ("/" in str(one) and param.name != "template")
            yield Path(one).name if is_path else str(one)
