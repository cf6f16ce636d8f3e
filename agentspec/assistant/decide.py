"""Who decides what the model may do: the user, within the rules the user has set."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from agentspec.assistant.change import Change
from agentspec.assistant.repository import shown

# What runs by itself later: an editor, a shell, git or a server would execute what is in it.
_ACTS = re.compile(
    r"(.*/)?(\.envrc|\.gitmodules|\.gitattributes|\.agentspec\.toml|\.pre-commit-config\.ya?ml|"
    r"\.(vscode|idea|husky|githooks|github|devcontainer|circleci|claude|cursor|codex)/.*|"
    r"\.gitlab-ci\.yml|sitecustomize\.py|.*\.pth)",
    re.IGNORECASE | re.DOTALL,
)
_SHELL = re.compile(r"[;&|<>`$(){}\[\]*?~#!\n\r\\=%^]")


@dataclass(frozen=True, slots=True)
class Command:
    """A command that the model wants to run in the repository's root, as it would be typed."""

    text: str
    why: str = ""
    argv: tuple[str, ...] = ()
    """The words, where it is run without a shell; a shell reads `text` otherwise."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`all` allows this and every later edit of the turn; `edited` takes `text` instead.

    For a change `text` is the whole new file, for a command the command line. For `no` it is the
    reason, which the model is told.
    """

    kind: Literal["yes", "no", "all", "edited"]
    text: str = ""


YES, ALL = Decision("yes"), Decision("all")


class Decider(Protocol):
    """Asks the user; raises CancelledError when the user leaves instead of answering."""

    def change(self, change: Change) -> Decision: ...

    def command(self, command: Command) -> Decision: ...


class Refuser:
    """Decides where there is nobody to ask: no, and what would have allowed it."""

    def change(self, change: Change) -> Decision:
        if acts(change.path):
            how = "not even --yes allows it, for other programs run that file"
        else:
            how = "--yes makes edits unasked"
        return Decision("no", f"there is nobody to ask; {how}")

    def command(self, command: Command) -> Decision:
        if words(command.text):
            how = "--allow-command, or the setting allow_commands, runs a command unasked"
        else:
            how = "--allow-command allows no line that a shell reads, only a command and its words"
        return Decision("no", f"there is nobody to ask; {how}")


@dataclass(slots=True)
class Gate:
    """A decider within the user's rules.

    `yes` allows edits, `allowed` commands: each pattern is the words of a command, a last `*`
    stands for any further words. Both come from the user alone, never from the repository. A
    command with anything that a shell would read is always asked for, and so is an edit of a file
    that something runs by itself.
    """

    decider: Decider
    read_only: bool = False
    dry_run: bool = False
    yes: bool = False
    allowed: Sequence[str] = ()
    _all: bool = field(default=False, init=False)

    def begin_turn(self) -> None:
        """Forget `all` of the turn before."""
        self._all = False

    def asks_change(self, change: Change) -> bool:
        """Whether the user is asked."""
        if self.read_only or self.dry_run:
            return False
        return bool(acts(change.path)) or not (self.yes or self._all)

    def change(self, change: Change) -> Decision:
        if self.read_only:
            return Decision("no", "the session is read-only")
        if self.dry_run:
            return Decision("no", "this is a dry run: the change was shown, not written")
        if not self.asks_change(change):
            return YES
        decision = self.decider.change(change)
        if decision.kind == "all":
            self._all = True
        return decision

    def asks_command(self, command: Command) -> bool:
        """Whether the user is asked."""
        return not (self.read_only or self.dry_run) and not is_allowed(command.text, self.allowed)

    def command(self, command: Command) -> Decision:
        """The decision; one `edited` by the user is that command, allowed."""
        if self.read_only:
            return Decision("no", "the session is read-only")
        if self.dry_run:
            return Decision("no", "this is a dry run: the command was shown, not run")
        return self.decider.command(command) if self.asks_command(command) else YES


def acts(path: str) -> bool:
    """Whether other programs run what is in a file of this name."""
    return _ACTS.fullmatch(path) is not None


def words(text: str) -> tuple[str, ...]:
    """The words of a command that a shell would take as they are; () for any other."""
    if _SHELL.search(text):
        return ()
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return ()


def is_allowed(text: str, patterns: Sequence[str]) -> bool:
    """Whether a command has exactly the words of a pattern; then it needs no shell."""
    given = words(text)
    if not given:
        return False
    for pattern in patterns:
        try:
            wanted = shlex.split(pattern)
        except ValueError:
            continue
        if wanted[-1:] == ["*"] and len(wanted) > 1:
            if list(given[: len(wanted) - 1]) == wanted[:-1]:
                return True
        elif list(given) == wanted:
            return True
    return False


def told(change: Change) -> str:
    """One line for the user about a change that needs a second look; "" for any other."""
    return f"{shown(change.path)} is run by other programs" if acts(change.path) else ""
