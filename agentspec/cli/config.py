"""`agentspec config`: what is set, where each value comes from, and setting it for good."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from agentspec.errors import ConfigError

_SECRET = "(set)"

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def config() -> None:
    """Settings: flag > environment (AGENTSPEC_*) > project file > user file > default.

    The project file, .agentspec.toml, comes with a repository that nobody has vouched for: it may
    not set models, paths, the template, hosts, keys or commands that run unasked.
    """


@config.command(short_help="Show settings, and where each comes from.")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@_json_option
def show(keys: tuple[str, ...], as_json: bool) -> None:
    """Show every setting, or those named: its value and where that comes from.

    What those that are named mean stands on standard error.
    """
    from agentspec.config import RULES, check_key, load_settings

    for key in keys:
        check_key(key)
    settings = load_settings()
    rows = []
    for key in keys or tuple(RULES):
        value = getattr(settings, key)
        if RULES[key].secret and value is not None:
            value = _SECRET
        rows.append((key, value, settings.origins[key]))
    if as_json:
        data = {
            key: {
                "value": str(value) if isinstance(value, Path) else value,
                "origin": origin,
                "help": RULES[key].help,
                "project": RULES[key].project,
            }
            for key, value, origin in rows
        }
        click.echo(json.dumps(data))
        return
    width = max(len(key) for key, _, _ in rows)
    texts = [_text(value) for _, value, _ in rows]
    wide = min(max(map(len, texts)), 40)
    for (key, _, origin), text in zip(rows, texts, strict=True):
        click.echo(f"{key:<{width}}  {text:<{wide}}  {origin}")
        if keys:
            click.echo(f"  {RULES[key].help}", err=True)


@config.command(short_help="Print the path of the user's settings file.")
@_json_option
def path(as_json: bool) -> None:
    """Print the path of the user's settings file, whether or not it is there."""
    from agentspec.config import project_file, user_path
    from agentspec.files import cache_folder

    user = user_path(os.environ)
    if not as_json:
        click.echo(str(user))
        return
    project = project_file()
    click.echo(
        json.dumps(
            {
                "user": str(user),
                "user_exists": user.exists(),
                "project": str(project) if project else None,
                "cache": str(cache_folder("")),
            }
        )
    )


@config.command(name="set", short_help="Set KEY to VALUE in the user's file.")
@click.argument("key")
@click.argument("value")
def set_command(key: str, value: str) -> None:
    """Set KEY to VALUE in the user's file; comments there stay.

    A VALUE of - is read from standard input, which keeps a key out of the shell's history. Lists
    are separated by semicolons.
    """
    from agentspec.config import RULES, check_key, load_settings, set_in_user_file

    check_key(key)
    if value == "-":
        value = _read_value(key, secret=RULES[key].secret)
    where = set_in_user_file(key, value)
    click.echo(f"{key} is set in {where}")
    try:
        origin = load_settings().origins[key]
    except ConfigError as error:
        click.echo(f"but settings cannot be read here: {error}", err=True)
        return
    if origin != str(where):
        click.echo(f"but here another value is in force, from: {origin}", err=True)


def _read_value(key: str, *, secret: bool) -> str:
    if sys.stdin.isatty():
        return str(click.prompt(key, hide_input=secret, err=True))
    return sys.stdin.readline(1 << 16).rstrip("\r\n")


def _text(value: object) -> str:
    """A value as TOML would write it, on one line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return json.dumps(list(value), ensure_ascii=False)
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str) and not value.isprintable():
        return json.dumps(value)
    return str(value)
