"""The `agentspec` command; each subcommand is a file here, imported when it is used."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec

import click

from agentspec.cli._errors import EXIT_CODES_HELP, ErrorGroup

__all__ = ["main"]

# Name -> what `agentspec --help` says, so that help needs no import either. The command `x` is
# the attribute `x` of the module agentspec.cli.x.
_COMMANDS = {
    "bench": "Measure plain against accelerated decoding.",
    "complete": "Answer one request.",
    "models": "List, pull and check model files.",
    "replay": "Replay recorded sessions on a cost curve.",
    "verify": "Show that speculation left the text as it was.",
}


class _LazyGroup(ErrorGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in sorted(_COMMANDS) if find_spec(f"{__name__}.{name}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = getattr(import_module(f"{__name__}.{cmd_name}"), cmd_name)
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
