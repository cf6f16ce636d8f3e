"""Options that several commands share, and the bar that long ones show."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from agentspec.errors import ConfigError

_Command = TypeVar("_Command", bound=Callable[..., Any])

_CLOSE = 1.3

_ENGINE_OPTIONS = (
    click.option("--draft", help="Draft model: catalog name, GGUF or folder path, or none."),
    click.option(
        "--draft-reencode/--no-draft-reencode",
        default=None,
        help="Let a draft model of another vocabulary draft by its text.",
    ),
    click.option(
        "--heads",
        callback=lambda _ctx, _param, value: value or None,
        multiple=True,
        help="Trained heads to draft with: Medusa, EAGLE, an exit adapter; several times.",
    ),
    click.option("--early-exit", help="Draft with the target's first layers: off, auto, or N."),
    click.option("--backend", help="auto, llama_cpp or torch; auto: torch for model folders."),
    click.option("--device", help="Device of the torch backend: auto, cpu, cuda, mps, …"),
    click.option("--dtype", help="Number format of the torch backend: auto, float32, bfloat16, …"),
    click.option("--n-ctx", type=int, help="Context window in tokens."),
    click.option("--n-threads", type=int, help="Threads of a pass; 0: one per core."),
    click.option("--n-gpu-layers", type=int, help="Layers on the GPU; -1: all."),
    click.option("--kv-type", help="Number format of the KV cache: f16, q8_0, …"),
    click.option("--template", help="Chat template: Jinja source, chatml or gemma."),
)


def engine_options(command: _Command) -> _Command:
    """The options that choose how a model is loaded, as keyword arguments of `load_engine`."""
    for option in reversed(_ENGINE_OPTIONS):
        command = option(command)
    return command


_SERVER_OPTIONS = (
    click.option("--base-url", help="Use a server instead: http://localhost:8080/v1."),
    click.option(
        "--api-key-file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="File with the key for --base-url; else OPENAI_API_KEY, over https"
        " or to this machine.",
    ),
)


def server_options(command: _Command) -> _Command:
    """The options that name a server, as `base_url` and `api_key_file`."""
    for option in reversed(_SERVER_OPTIONS):
        command = option(command)
    return command


def server_key(path: Path | None, url: str) -> str:
    """The key for a server; one from the environment goes over no foreign wire in the clear.

    Raises ConfigError for a file that cannot be read or is no text.
    """
    if path is not None:
        try:
            return path.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise ConfigError(f"{path} cannot be read as a key: {reason}") from None
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""  # whoever opens it says what is wrong
    if parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        return ""
    return os.environ.get("OPENAI_API_KEY", "")


def _checked_out(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    # said now: after minutes of measuring it would be too late
    if value is not None and not value.parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(value.parent)!r}", ctx, param)
    return value


out_option = click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    callback=_checked_out,
    help="Also write the JSON here.",
)


def give_report(data: Mapping[str, Any], text: str, *, as_json: bool, out: Path | None) -> None:
    """A report on standard output, then in the file: what fails last loses least."""
    dumped = json.dumps(data)
    click.echo(dumped if as_json else text)
    if out is not None:
        out.write_text(json.dumps(data, indent=1) + "\n")


class StepBar:
    """Steps of a long command on stderr: a line that is rewritten, or a line now and then."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._terminal = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._last = 0.0
        self._seen: list[tuple[int, float]] = []

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        left = self._left(done, total, now)
        self._seen.append((done, now))
        wait = 0.1 if self._terminal else 10.0
        if done < total and now - self._last < wait:
            return
        self._last = now
        line = f"{self._label}: {done} of {total}, {now - self._begun:.0f} s{left}"
        if self._terminal:
            click.echo(f"\r\x1b[K{line}", nl=done == total, err=True)
        else:
            click.echo(line, err=True)

    def _left(self, done: int, total: int, now: float) -> str:
        """The time left as all steps but the first tell, and as the later half of them does.

        The first one also loads and warms up what the others find: it says nothing of them.
        """
        if len(self._seen) < 2 or done >= total:
            return ""
        since = (self._seen[0], self._seen[len(self._seen) // 2])
        rates = [(now - then) / (done - before) for before, then in since if done > before]
        if not rates:
            return ""
        low, high = min(rates) * (total - done), max(rates) * (total - done)
        span = f"{low:.0f} to {high:.0f}" if high > _CLOSE * low else f"{high:.0f}"
        return f", about {span} s left"


def without_controls(text: str) -> str:
    """The text without control characters, except line feeds and tabs."""
    return "".join(c for c in text if c in "\n\t" or not (c < " " or "\x7f" <= c <= "\x9f"))
