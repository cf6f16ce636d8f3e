"""The `agentspec` command; each subcommand is a file here, imported when it is used."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec

import click

from agentspec.cli._errors import EXIT_CODES_HELP, ErrorGroup

__all__ = ["main"]

# Name -> what `agentspec --help` says, so that help needs no import either. The command `x` is
# the attribute `x` of the module agentspec.cli.x, `-` written as `_` in both.
_COMMANDS = {
    "bench": "Measure plain against accelerated decoding.",
    "chat": "Work with a model in a repository.",
    "complete": "Answer one request.",
    "config": "Show settings and where each comes from; change them.",
    "doctor": "Check the installation, a model and its draft model.",
    "models": "List, pull and check model files.",
    "plan": "Tell what of a model fits in memory, and what to give up.",
    "print-config": "Print the configuration of a client for a running server.",
    "replay": "Replay recorded sessions on a cost curve.",
    "serve": "Serve one model over HTTP.",
    "train-heads": "Train what drafts from the inside of a model.",
    "verify": "Show that speculation left the text as it was.",
    "vllm": "Print the command of a vLLM server that drafts.",
}


def _module(command: str) -> str:
    return command.replace("-", "_")


class _LazyGroup(ErrorGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in sorted(_COMMANDS) if find_spec(f"{__name__}.{_module(name)}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        name = _module(cmd_name)
        command = getattr(import_module(f"{__name__}.{name}"), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if rows := [(name, _COMMANDS[name]) for name in self.list_commands(ctx)]:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


@click.group(
    cls=_LazyGroup,
    epilog=EXIT_CODES_HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="agentspec-engine", prog_name="agentspec")
@click.option("-v", "--verbose", count=True, help="Log more to standard error; -vv for all of it.")
@click.pass_context
def main(ctx: click.Context, verbose: int) -> None:
    """Lossless speculative decoding for local coding agents."""
    logger = logging.getLogger("agentspec")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])

    # Undone, because a test or a notebook may call this more than once in one process.
    def undo() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)

    ctx.call_on_close(undo)
