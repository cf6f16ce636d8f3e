"""The line that the user types: history, completion, several lines, what is known below it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.mentions import candidates, open_mention, quoted
from agentspec.assistant.slash import completions, parse_slash

if TYPE_CHECKING:
    from prompt_toolkit import Application, PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

_REFRESH = 0.5
_FILES_FOR = 5.0


class Prompt:
    """Asks for requests and for answers to questions, with what was typed before in `history`.

    `paths` gives the files that `@` completes, `status` the line below. Must be used in the main
    thread; `fail` may be called in any.
    """

    def __init__(
        self,
        *,
        history: Path | None = None,
        paths: Callable[[], Sequence[str]] = lambda: (),
        status: Callable[[], str] = lambda: "",
        colour: bool = True,
        mark: str = "> ",
    ) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import InMemoryHistory
        from prompt_toolkit.output import ColorDepth

        self._paths = paths
        self._listed: tuple[float, Sequence[str]] = (0.0, ())
        self._status = status
        self._mark = mark
        depth = None if colour else ColorDepth.DEPTH_1_BIT
        self._requests: PromptSession[str] = PromptSession(
            history=_history(history)
            if history is not None and _own_file(history)
            else InMemoryHistory(),
            completer=self._completer(),
            complete_while_typing=True,
            key_bindings=self._keys(),
            multiline=True,
            bottom_toolbar=self._toolbar,
            refresh_interval=_REFRESH,
            color_depth=depth,
            enable_open_in_editor=True,
            enable_suspend=True,
            reserve_space_for_menu=6,
        )
        self._requests.app.before_render += self._without_echo
        self._first = False
        self._failed = False
        self._questions: PromptSession[str] = PromptSession(color_depth=depth, enable_suspend=True)

    def request(self, text: str = "") -> str:
        """What the user types, on one line or several; `text` stands there already.

        Raises KeyboardInterrupt for Ctrl-C at an empty line, EOFError for Ctrl-D and after `fail`.
        """
        if self._failed:
            raise EOFError
        self._first = True
        return self._requests.prompt(
            [("bold", self._mark)],
            default=text,
            pre_run=self._ended,
            prompt_continuation=lambda width, *_: "." * (width - 1) + " ",
        )

    def remember(self, text: str) -> None:
        """Put a request among those that were typed before: it was, but not here."""
        self._requests.history.append_string(text)

    def question(self, text: str, default: str = "") -> str:
        """The answer to a question; raises KeyboardInterrupt and EOFError.

        What was typed together with the line before was typed before the question was seen.
        """
        from prompt_toolkit.input.typeahead import clear_typeahead

        clear_typeahead(self._questions.app.input)
        return self._questions.prompt(text, default=default)

    def fail(self) -> None:
        """End the request that is being typed, or the next, with EOFError: something has failed."""
        self._failed = True
        application = self._requests.app
        loop = application.loop
        if loop is None or not application.is_running:
            return

        def leave() -> None:
            with contextlib.suppress(Exception):
                application.exit(exception=EOFError())

        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(leave)

    def _ended(self) -> None:
        # asked once `fail` would find it running: one of the two ends it
        if self._failed:
            self._requests.app.exit(exception=EOFError())

    def _without_echo(self, application: Application[str]) -> None:
        # what was typed just before is read all the same, but the terminal has echoed it
        if self._first:
            self._first = False
            application.output.write_raw("\r")
            application.output.erase_end_of_line()

    def _toolbar(self) -> str:
        return self._status()

    def _files(self) -> Sequence[str]:
        # listing a large repository for every letter would be felt
        at, files = self._listed
        if time.monotonic() - at > _FILES_FOR or not files:
            files = self._paths()
            self._listed = time.monotonic(), files
        return files

    def _completer(self) -> Completer:
        from prompt_toolkit.completion import Completer, Completion, ThreadedCompleter
        from prompt_toolkit.document import Document

        files = self._files

        class Names(Completer):
            """Commands, and files behind an @ or behind a command that takes them."""

            def get_completions(self, document: Document, event: object) -> Iterable[Completion]:
                typed = document.text_before_cursor
                for name in completions(typed):
                    if name != typed:
                        yield Completion(name, start_position=-len(typed))
                found = open_mention(typed)
                if found is not None:
                    begin, part = found
                    for path in candidates(part, files()):
                        yield Completion(
                            quoted(path), start_position=begin - len(typed), display=path
                        )
                elif (part_ := _argument(typed)) is not None:
                    for path in candidates(part_, files()):
                        text = f'"{path}"' if " " in path else path
                        yield Completion(text, start_position=-len(part_), display=path)

        return ThreadedCompleter(Names())

    def _keys(self) -> KeyBindings:
        from prompt_toolkit.filters import is_searching
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()
        # a search has its own meaning of these, and a line of its own
        typing = ~is_searching

        by_tab: list[object] = [None]

        @keys.add("enter", filter=typing)
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            state = buffer.complete_state
            # Enter takes what arrows have found in the menu; what Tab wrote was taken already
            if state is not None and state.current_completion and state is not by_tab[0]:
                buffer.apply_completion(state.current_completion)
            elif buffer.document.current_line_before_cursor.endswith("\\"):
                buffer.delete_before_cursor()
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        @keys.add("tab", filter=typing)
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            state = by_tab[0] = buffer.complete_state
            if state is None:
                buffer.start_completion(insert_common_part=True)
            elif len(state.completions) == 1:
                buffer.apply_completion(state.completions[0])
            else:
                buffer.complete_next()

        @keys.add("escape", "enter", filter=typing)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c", filter=typing)
        def _(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            else:
                event.app.exit(exception=KeyboardInterrupt(), style="class:aborting")

        return keys


def _history(path: Path) -> FileHistory:
    from prompt_toolkit.history import FileHistory

    class Kept(FileHistory):
        """What cannot be kept, on a full disk or as no valid Unicode, is sent all the same."""

        def store_string(self, string: str) -> None:
            with contextlib.suppress(OSError):
                super().store_string(string.encode("utf-8", "replace").decode())

        def load_history_strings(self) -> Iterable[str]:
            with contextlib.suppress(OSError):
                yield from super().load_history_strings()

    return Kept(str(path))


def _argument(typed: str) -> str | None:
    """The unfinished last word of a command that takes files; None for anything else."""
    if not typed.startswith("/") or " " not in typed or typed.endswith("\\"):
        return None
    try:
        command = parse_slash(f"{typed} x")
    except RefusedError:
        return None
    if command is None or command.command.takes != "files":
        return None
    return typed.rpartition(" ")[2]


def _own_file(path: Path) -> bool:
    """Make the file, for its owner alone; False where that cannot be: then nothing is kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600))
    except OSError:
        return False
    return True
