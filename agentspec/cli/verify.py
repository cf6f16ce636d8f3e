"""`agentspec verify`: is the text with speculation the text without it?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentspec.cli._errors import ExitCode
from agentspec.cli._options import engine_options, give_report, out_option

if TYPE_CHECKING:
    from agentspec.api import Engine
    from agentspec.backends.base import Backend


@click.command("verify")
@click.argument("sessions", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--model", help="Target: catalog name or GGUF path.")
@engine_options
@click.option("--max-tokens", default=220, show_default=True, help="Most tokens of an answer.")
@click.option("--k", type=int, help="Most draft tokens of a pass.")
@click.option("--exact", is_flag=True, help="Verify exact mode: the texts must be equal.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@out_option
@click.pass_context
def verify(
    ctx: click.Context,
    /,
    sessions: tuple[Path, ...],
    model: str | None,
    max_tokens: int,
    k: int | None,
    exact: bool,
    as_json: bool,
    out: Path | None,
    **load: Any,
) -> None:
    """Answer SESSIONS greedily with and without speculation, and explain every difference.

    The accelerated passes are replayed in a fresh context with other rejected tokens. A
    difference in text is a tie when that replay is bit-equal: rounding that depends on the
    number of rows in a pass. Anything else is a defect (exit code 3).
    """
    from agentspec.audit.verify import verify as run_verify
    from agentspec.bench.report import stamp, verify_text
    from agentspec.bench.sessions import load_sessions, packaged_sessions
    from agentspec.loading import load_engine

    chosen = load_sessions(sessions) if sessions else packaged_sessions()
    stamps: list[dict[str, Any]] = []

    def load_wrapped(wrap: Callable[[Backend], Backend]) -> Engine:
        engine = load_engine(model, wrap=wrap, exact=exact or None, **load)
        stamps.append(stamp(engine, temperature=0.0, k=k))
        return engine

    report = run_verify(
        load_wrapped,
        [(s.messages, s.tools) for s in chosen],
        max_tokens=max_tokens,
        speculation=True if k is None else {"k": k},
        progress=lambda text: click.echo(f"verify: {text}", err=True),
    )
    data = {**stamps[0], **report.as_dict()}
    give_report(data, verify_text(report, data), as_json=as_json, out=out)
    if report.defects:
        ctx.exit(ExitCode.DEFECT)
