"""Asks the user, in the terminal, what the model may do."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager

import click

from agentspec.assistant.change import Change
from agentspec.assistant.decide import ALL, YES, Command, Decision
from agentspec.assistant.errors import RefusedError
from agentspec.assistant.text_file import TextFile
from agentspec.assistant.tool_command import asked
from agentspec.errors import CancelledError

Line = Callable[[str, str], str]
"""Asks for a line: the question, what stands there already. Raises KeyboardInterrupt, EOFError."""


class TerminalDecider:
    """A Decider that asks at the terminal.

    `line` asks, `say` prints a remark, `paused` is entered while an editor has the terminal.
    """

    def __init__(
        self,
        line: Line,
        say: Callable[[str], None],
        paused: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._line = line
        self._say = say
        self._paused = paused

    def change(self, change: Change) -> Decision:
        """Ask about an edit; raises CancelledError when the user leaves."""
        editable = change.after is not None
        choices = "yes, no, all" + (", edit" if editable else "")
        while True:
            word, rest = self._asked(f"Make this change? ({choices}) ")
            if word in ("y", "yes"):
                return YES
            if word in ("a", "all"):
                return ALL
            if word in ("n", "no"):
                return Decision("no", rest)
            if word in ("e", "edit") and editable:
                text = self._edited(change)
                if text is not None:
                    return Decision("edited", text)
                self._say("nothing was edited")
                continue
            self._say(
                "yes makes it, no leaves the file alone (you may say why: no, because …), all "
                "makes this and every later edit of the turn, edit opens an editor"
            )

    def command(self, command: Command) -> Decision:
        """Ask about a command; raises CancelledError when the user leaves."""
        while True:
            word, rest = self._asked("Run this command? (yes, no, edit) ")
            if word in ("y", "yes"):
                return YES
            if word in ("n", "no"):
                return Decision("no", rest)
            if word in ("e", "edit"):
                try:
                    return Decision("edited", asked(self._ask("$ ", command.text)).text)
                except RefusedError as error:
                    self._say(str(error))
                continue
            self._say("yes runs it, no does not (you may say why: no, because …), edit changes it")

    def _asked(self, question: str) -> tuple[str, str]:
        answer = self._ask(question, "").strip()
        word, _, rest = answer.partition(" ")
        return word.rstrip(",.:").lower(), rest.strip(" ,.:")

    def _ask(self, question: str, text: str) -> str:
        try:
            return self._line(question, text)
        except (KeyboardInterrupt, EOFError):
            raise CancelledError("the user left the question") from None

    def _edited(self, change: Change) -> str | None:
        """The new file as the user saved it in an editor; None where it was not saved."""
        assert change.after is not None
        before = TextFile.decode(change.after, change.path).text
        # older releases of click give the name to a shell
        suffix = re.search(r"\.[A-Za-z0-9_]{1,16}\Z", change.path)
        with self._paused():
            try:
                return click.edit(before, extension=suffix[0] if suffix else ".txt")
            except click.ClickException as error:
                self._say(error.format_message())
            except UnicodeDecodeError:
                self._say("what was saved is not UTF-8; nothing was changed")
            except (OSError, ValueError) as error:
                self._say(f"no editor could be used: {error}")
        return None
