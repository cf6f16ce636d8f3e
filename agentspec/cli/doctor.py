"""`agentspec doctor`: looks at everything that can be wrong, and says what to change."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from agentspec.cli._errors import ExitCode, one_line

_MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.argument("model", required=False)
@click.option("--draft", help="Draft model: catalog name, GGUF path, or none.")
@click.option("--measure", is_flag=True, help="Load the model, hash its file, measure its curve.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(
    ctx: click.Context, model: str | None, draft: str | None, measure: bool, as_json: bool
) -> None:
    """Check the installation, MODEL and its draft model; say in plain words what to change.

    Without --measure only headers and vocabularies are read. Exits with 1 where a check fails;
    a warning is none.
    """
    from agentspec.doctor import examine

    checks = []
    for check in examine(model, draft=draft, measure=measure):
        checks.append(check)
        if as_json:
            continue
        mark = click.style(_MARKS[check.state], fg=_COLOURS[check.state])
        click.echo(f"{mark}  {check.name}: {one_line(check.found)}")
        if check.advice:
            click.echo(f"      → {one_line(check.advice)}")
    states = [check.state for check in checks]
    if as_json:
        failed = "fail" in states
        click.echo(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}))
    else:
        click.echo(
            f"{states.count('ok')} ok, {states.count('warn')} to look at, "
            f"{states.count('fail')} failed"
        )
    ctx.exit(ExitCode.FAILURE if "fail" in states else ExitCode.OK)
