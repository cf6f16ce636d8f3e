"""Slash commands: their names, what they take, and what a typed line means."""

from __future__ import annotations

import difflib
import re
import shlex
from dataclasses import dataclass
from typing import Literal

from agentspec.assistant.errors import RefusedError

Takes = Literal["nothing", "files", "text", "number", "words"]
"""`text` is the rest of the line as it is; `files` are paths and may be quoted."""


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A command: what it takes, at least how many, and its line of help."""

    name: str
    takes: Takes
    usage: str
    help: str
    least: int = 0
    words: tuple[str, ...] = ()
    """What it takes, where that is one of some words."""
    other: tuple[str, ...] = ()
    """Other names of it."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A slash command as typed; `text` is everything behind its name."""

    command: SlashCommand
    arguments: tuple[str, ...]
    text: str


_TURN = re.compile(r"[0-9]{1,9}")
_ALL = (
    SlashCommand("help", "words", "[COMMAND]", "What can be typed here", other=("?",)),
    SlashCommand("add", "files", "FILE…", "Show files to the model, to be edited", 1),
    SlashCommand("drop", "files", "[FILE…]", "Take files back; all without a name"),
    SlashCommand("read-only", "files", "FILE…", "Show files to the model, never to be edited", 1),
    SlashCommand("ls", "files", "[FOLDER]", "The files of the repository, and those added"),
    SlashCommand("map", "nothing", "", "The map of the repository that the model is shown"),
    SlashCommand("diff", "number", "[TURN]", "What a turn changed; the last one without a number"),
    SlashCommand("undo", "number", "[TURN]", "Take back what a turn changed, or the last "
                 "one that changed something"),
    SlashCommand("redo", "number", "[TURN]", "Make again what was undone"),
    SlashCommand("commit", "text", "[MESSAGE]", "Commit what the session changed"),
    SlashCommand("run", "text", "COMMAND", "Run a command and show its output to the model", 1,
                 other=("!",)),
    SlashCommand("test", "text", "[ARGUMENTS]", "Run the tests and show the model what fails"),
    SlashCommand("model", "text", "[NAME]", "The model, or another one from now on"),
    SlashCommand("tokens", "nothing", "", "What the context holds"),
    SlashCommand("speed", "words", "[compare]", "How fast the last turn was; compare runs it "
                 "again without speculation", words=("compare",)),
    SlashCommand("explain", "nothing", "", "Of the last passes: who drafted, how sure it "
                 "was, and what that was to earn"),
    SlashCommand("compact", "nothing", "", "Shorten the conversation now"),
    SlashCommand("clear", "nothing", "", "Forget the conversation; files and changes stay"),
    SlashCommand("save", "text", "[FILE]", "Write the conversation to a file"),
    SlashCommand("load", "text", "[ID]", "Go on with another session; list them without an ID"),
    SlashCommand("exit", "nothing", "", "Leave", other=("quit", "q")),
)  # fmt: skip

COMMANDS: dict[str, SlashCommand] = {command.name: command for command in _ALL}
_NAMES = {name: command for command in _ALL for name in (command.name, *command.other)}


def parse_slash(line: str) -> Typed | None:
    """The slash command that a line is, None for a line that is a request.

    Raises RefusedError for a name that is none and for arguments that do not fit. A line that
    begins with a path (`/usr/bin/x is missing`) is a request.
    """
    line = line.strip()
    if line.startswith("!") and len(line) > 1:
        line = f"/! {line[1:]}"
    if not line.startswith("/") or line.startswith("//"):
        return None
    name, _, text = line[1:].partition(" ")
    text = text.strip()
    if "/" in name or not name:
        return None
    command = _NAMES.get(name.lower())
    if command is None:
        near = difflib.get_close_matches(name.lower(), _NAMES, n=1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists them"
        raise RefusedError(f"there is no command /{name[:40]}; {hint}")
    arguments = _arguments(command, text)
    if len(arguments) < command.least:
        raise RefusedError(f"/{command.name} needs an argument: /{command.name} {command.usage}")
    return Typed(command, arguments, text)


def completions(typed: str) -> list[str]:
    """The commands, each with its slash, that begin with what was typed."""
    if not typed.startswith("/") or " " in typed:
        return []
    return [f"/{name}" for name in COMMANDS if name.startswith(typed[1:].lower())]


def help_lines(name: str = "") -> list[tuple[str, str]]:
    """(usage, help) of one command or of all. Raises RefusedError for a name that is none."""
    if not name:
        return [(f"/{c.name} {c.usage}".rstrip(), c.help) for c in _ALL]
    command = _NAMES.get(name.removeprefix("/").lower())
    if command is None:
        raise RefusedError(f"there is no command /{name.removeprefix('/')[:40]}")
    return [(f"/{command.name} {command.usage}".rstrip(), command.help)]


def _arguments(command: SlashCommand, text: str) -> tuple[str, ...]:
    if not text:
        return ()
    if command.takes == "text":
        return (text,)
    if command.takes == "nothing":
        raise RefusedError(f"/{command.name} takes nothing")
    try:
        words = tuple(word.removeprefix("@") for word in shlex.split(text))
    except ValueError as error:
        raise RefusedError(f"/{command.name}: {str(error).lower()}") from None
    if command.takes == "number" and (len(words) > 1 or not _TURN.fullmatch(words[0])):
        raise RefusedError(f"/{command.name} takes the number of a turn")
    if command.words and (len(words) > 1 or words[0] not in command.words):
        raise RefusedError(f"/{command.name} takes {' or '.join(command.words)}")
    return words
