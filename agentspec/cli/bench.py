"""`agentspec bench`: plain against accelerated, in alternating order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agentspec.cli._options import StepBar, engine_options, give_report, out_option


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
    as_json: bool,
    out: Path | None,
    **load: Any,
) -> None:
    """Measure generation speed, plain against accelerated, on SESSIONS.

    SESSIONS are files of OpenAI-shaped messages (JSONL: one conversation a line); without any,
    ten agent-like prompts that come along. Each prompt is read before its first timed run.
    """
    from agentspec.bench.live import bench as run_bench
    from agentspec.bench.report import bench_text, stamp
    from agentspec.bench.sessions import load_sessions, packaged_sessions
    from agentspec.loading import load_engine

    if repeat < 1 or max_tokens < 1:
        raise click.UsageError("--repeat and --max-tokens must be at least 1")
    chosen = load_sessions(sessions) if sessions else packaged_sessions()
    speculation: dict[str, Any] = {} if k is None else {"k": k}
    # one live sequence: other conversations in the cache would cost every pass a little
    with load_engine(model, exact=exact or None, max_sessions=1, **load) as engine:
        report = run_bench(
            engine,
            chosen,
            max_tokens=max_tokens,
            repeat=repeat,
            warm=warm,
            speculation_options=speculation,
            progress=StepBar("bench"),
            temperature=temperature,
        )
        data = {**stamp(engine, temperature=temperature, k=k), **report.as_dict()}
    give_report(data, bench_text(report, data), as_json=as_json, out=out)
