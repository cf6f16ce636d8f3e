"""How failures leave the command line: one line on stderr and a documented exit code."""

from __future__ import annotations

import enum
import errno
import json
import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import click

from agentspec.errors import (
    AgentspecError,
    CancelledError,
    ConfigError,
    RequestError,
    UnknownModelError,
)

__all__ = ["EXIT_CODES_HELP", "ErrorGroup", "ExitCode"]

_LOG = logging.getLogger(__name__)
_JSON = "agentspec.json"

EXIT_CODES_HELP = (
    "Exit codes: 0 ok, 1 failure, 2 wrong usage or invalid input (also what was named and is no "
    "model, file or session; a model that is not pulled is a 1), 3 verification found a defect, "
    "4 the model was not done (chat -p), 130 interrupted. With --json, an error is also one object "
    'on standard output: {"error": {"type": …, "message": …}}.'
)


class ExitCode(enum.IntEnum):
    """What `agentspec` exits with."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    DEFECT = 3
    UNFINISHED = 4
    INTERRUPTED = 130


class ErrorGroup(click.Group):
    """A group whose commands may raise AgentspecError, OSError or KeyboardInterrupt."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        as_json = _asks_for_json(args)
        try:
            context = super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if as_json:
                _print_json(error, error.format_message())
            raise
        context.meta[_JSON] = as_json
        return context

    def invoke(self, ctx: click.Context) -> Any:
        as_json = bool(ctx.meta.get(_JSON))
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            # click prints it on stderr and knows its exit code.
            if as_json:
                _print_json(error, error.format_message())
            raise
        except AgentspecError as error:
            code = _exit_code(error)
            message = str(error)
            failure: BaseException = error
        except KeyboardInterrupt as error:
            code, message, failure = ExitCode.INTERRUPTED, "interrupted", error
        except OSError as error:
            if error.errno == errno.EPIPE:
                # The reader has gone (`… | head`); click ends quietly.
                raise
            code, message, failure = ExitCode.FAILURE, str(error), error
        # Shown with -vv, for a report of the bug.
        _LOG.debug("the error came from here", exc_info=failure)
        line = one_line(message) or type(failure).__name__
        if as_json:
            _print_json(failure, line)
        click.echo(f"error: {line}", err=True)
        ctx.exit(code)


def one_line(text: str) -> str:
    """`text` on one line, with what could steer a terminal spelled out."""
    return "".join(
        c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.strip().splitlines())
    )


def _exit_code(error: AgentspecError) -> ExitCode:
    if isinstance(error, CancelledError):
        return ExitCode.INTERRUPTED
    if isinstance(error, (ConfigError, RequestError, UnknownModelError)):
        return ExitCode.USAGE
    return ExitCode.FAILURE


def _asks_for_json(args: Sequence[str]) -> bool:
    # Read from the arguments themselves: a usage error leaves no parsed options behind.
    before = args[: args.index("--")] if "--" in args else args
    for name, value in pairwise(before):
        if name == "--output-format" and "json" in value:
            return True
    return "--json" in before or any(
        arg.startswith("--output-format=") and "json" in arg for arg in before
    )


def _print_json(error: BaseException, message: str) -> None:
    click.echo(json.dumps({"error": {"type": type(error).__name__, "message": message}}))
