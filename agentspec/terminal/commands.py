"""What each slash command does."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Literal, Protocol

from rich.table import Table
from rich.text import Text

from agentspec.aio import Stop
from agentspec.assistant import history, session_log
from agentspec.assistant.change import Change
from agentspec.assistant.compare import Compared, Comparison, RecordingModel, compare
from agentspec.assistant.decide import Command
from agentspec.assistant.errors import RefusedError
from agentspec.assistant.git import Git
from agentspec.assistant.model import Speculating, TextPiece
from agentspec.assistant.open import Session
from agentspec.assistant.repository import shown
from agentspec.assistant.results import ends
from agentspec.assistant.slash import Typed, help_lines
from agentspec.assistant.tool_command import asked, execute
from agentspec.files import replacing
from agentspec.terminal import speed as speeds
from agentspec.terminal.diff import diff_text
from agentspec.terminal.screen import Screen

_MOST_LISTED = 200
_MOST_TOLD = 6_000
_LISTED_SESSIONS = 20
_KEYS = [
    ("@FILE", "Show the model a file, or @FILE:10-20"),
    ("!COMMAND", "As /run"),
    ("Alt-Enter", "A new line; so does \\ at the end of one"),
    ("Tab", "Completes commands, and files behind an @"),
    ("Up, Ctrl-R", "Earlier requests; Ctrl-R searches them"),
    ("Ctrl-X Ctrl-E", "Write the request in $EDITOR, then send it"),
    ("Ctrl-C", "Stops the model; clears a line; leaves at an empty one"),
    ("Ctrl-Z", "Back to the shell; fg comes back"),
    ("Ctrl-D", "Leaves, as /exit"),
]
_SUBJECT = (
    "Write the subject line of a git commit for this change: one line, at most 72 characters, in "
    "the imperative, without quotes or explanation.\n\n"
)


class Front(Protocol):
    """What commands need of the program around them."""

    screen: Screen
    recording: RecordingModel
    speed: speeds.Speed
    explained: list[str]
    compared: Comparison | None
    test_command: str
    greedy: bool

    @property
    def session(self) -> Session: ...

    @property
    def model(self) -> Speculating: ...

    def confirm(self, question: str) -> bool: ...

    def interruptible(self, work: Callable[[Stop], None]) -> None: ...

    def switch_model(self, name: str) -> None: ...

    def switch_session(self, id_: str) -> None: ...


class Leave(Exception):
    """The user wants to leave."""


class Commands:
    """The commands over a front; `run` raises what RefusedErrors say to the user, and Leave."""

    def __init__(self, front: Front) -> None:
        self.front = front

    def run(self, typed: Typed) -> None:
        """Do what was typed."""
        name = typed.command.name.replace("-", "_")
        getattr(self, f"_{name}")(typed)

    @property
    def _session(self) -> Session:
        return self.front.session

    def _help(self, typed: Typed) -> None:
        rows = help_lines(typed.arguments[0] if typed.arguments else "")
        if not typed.arguments:
            rows += _KEYS
        table = Table.grid(padding=(0, 2))
        for usage, text in rows:
            table.add_row(Text(f"  {usage}", "bold", no_wrap=True), text)
        self.front.screen.console.print(table)

    def _add(self, typed: Typed) -> None:
        self._hold(typed, editable=True)

    def _read_only(self, typed: Typed) -> None:
        self._hold(typed, editable=False)

    def _hold(self, typed: Typed, *, editable: bool) -> None:
        added: list[str] = []
        for path in typed.arguments:
            added += self._session.held.add(path, editable=editable)
        how = "" if editable else ", not to be edited"
        self.front.screen.note(f"shown to the model with the next request{how}: {_listed(added)}")

    def _drop(self, typed: Typed) -> None:
        gone = self._session.held.drop(typed.arguments)
        self.front.screen.note(f"taken back: {_listed(gone)}" if gone else "nothing was added")

    def _ls(self, typed: Typed) -> None:
        screen, session = self.front.screen, self._session
        folders = [session.repository.name(path) for path in typed.arguments]
        paths = [
            entry.path
            for entry in session.repository.files()
            if not folders
            or any(f == "" or entry.path == f or entry.path.startswith(f + "/") for f in folders)
        ]
        screen.lines("\n".join(shown(path) for path in paths[:_MOST_LISTED]))
        if len(paths) > _MOST_LISTED:
            screen.note(f"[{len(paths) - _MOST_LISTED:,} more; name a folder]")
        for title, held in (
            ("added", session.held.editable),
            ("added, not to be edited", session.held.read_only),
        ):
            if held:
                screen.note(f"{title}: {_listed(held)}")

    def _map(self, typed: Typed) -> None:
        session = self._session
        session.chart.refresh()
        chart = session.chart.render(2_000, session.conversation.model.count)
        self.front.screen.lines(chart or "no definitions were found")

    def _diff(self, typed: Typed) -> None:
        journal = self._session.journal
        turns = [*journal.turns(), *journal.undone()]
        turn = int(typed.arguments[0]) if typed.arguments else max(journal.turns(), default=0)
        if turn not in turns:
            if not turns:
                raise RefusedError("no turn has changed anything")
            raise RefusedError(f"turn {turn} has no changes; these have: {_numbers(turns)}")
        for change in journal.changes(turn):
            self.front.screen.console.print(diff_text(change.diff), soft_wrap=True)

    def _undo(self, typed: Typed) -> None:
        journal = self._session.journal
        turn = int(typed.arguments[0]) if typed.arguments else max(journal.turns(), default=0)
        self._moved("undone", turn, journal.undo(turn))

    def _redo(self, typed: Typed) -> None:
        journal = self._session.journal
        last = journal.undone()[-1:]
        turn = int(typed.arguments[0]) if typed.arguments else sum(last)
        self._moved("made again", turn, journal.redo(turn))

    def _moved(self, what: Literal["undone", "made again"], turn: int, paths: list[str]) -> None:
        self._session.conversation.note(
            f"The user has {what} changes of yours. "
            f"Read these files again before you change them: {_listed(paths)}"
        )
        # numbers of turns that changed nothing may come again after a restart: the last one has it
        said = dict(self._session.log.requests()).get(turn, "")
        name = f"turn {turn} (“{said}”)" if said else f"turn {turn}"
        self.front.screen.note(f"{what}: {name}: {_listed(paths)}")

    def _commit(self, typed: Typed) -> None:
        session, front = self._session, self.front
        if not session.repository.git:
            raise RefusedError("this folder is no git repository; there is nothing to commit to")
        git = Git(session.repository.root)
        made: dict[str, list[tuple[bytes | None, bytes | None]]] = {}
        for turn in session.journal.turns():
            for change in session.journal.changes(turn):
                made.setdefault(change.path, []).append((change.before, change.after))
        now = {path: session.repository.current(path) for path in made}
        changes = [Change(path, git.committed(path), now[path]) for path in made]
        paths = [change.path for change in changes if change.before != change.after]
        if not paths:
            raise RefusedError("the session has changed nothing that is not committed")
        mixed = git.mixed({path: made[path] for path in paths}, now)
        if mixed:
            front.screen.warn(f"these also hold changes of yours: {_listed(mixed)}")
            if not front.confirm("Commit them too, as they are now?"):
                raise RefusedError("nothing was committed")
        message = typed.text or self._subject("".join(change.diff for change in changes))
        if not typed.text and not front.confirm(f"Commit {_listed(paths)} as “{message}”?"):
            raise RefusedError("nothing was committed; give a message: /commit MESSAGE")
        front.screen.note(f"committed {git.commit(paths, message)}: {message}")

    def _subject(self, diff: str) -> str:
        """A subject line by the model."""
        found: list[str] = []

        def work(stop: Stop) -> None:
            pieces = self.front.model.answer(
                [history.user(_SUBJECT + ends(diff, _MOST_TOLD))], [], stop=stop, max_tokens=60
            )
            with closing(pieces):
                found.extend(piece.text for piece in pieces if isinstance(piece, TextPiece))

        self.front.interruptible(work)
        line = "".join(found).strip().split("\n")[0].strip(" `\"'")
        if not line:
            raise RefusedError("the model gave no message; give one: /commit MESSAGE")
        return line[:100]

    def _run(self, typed: Typed) -> None:
        self._execute(asked(typed.text))

    def _test(self, typed: Typed) -> None:
        if not self.front.test_command:
            raise RefusedError(
                "how are the tests run? set it: agentspec config set test_command 'pytest -q'"
            )
        self._execute(asked(f"{self.front.test_command} {typed.text}".strip()))

    def _execute(self, command: Command) -> None:
        """Run what the user typed, and show it to the model with the next request."""

        def work(stop: Stop) -> None:
            self.front.screen.waiting.show("running it")
            result, _ = execute(
                command,
                self._session.repository.root,
                shell=True,
                seconds=self._session.conversation.seconds,
                stop=stop,
            )
            self.front.screen.lines(result.text)
            self._session.conversation.note(
                f"The user ran `{command.text}`:\n{ends(result.text, _MOST_TOLD)}"
            )

        self.front.interruptible(work)

    def _model(self, typed: Typed) -> None:
        if typed.text:
            self.front.switch_model(typed.text)
        model = self.front.model
        self.front.screen.note(f"{model.name}, {model.n_ctx:,} tokens of context")

    def _tokens(self, typed: Typed) -> None:
        session = self._session
        conversation, model = session.conversation, session.conversation.model
        size = conversation.compactor.size
        parts = {
            "instructions and map": size(conversation.messages[:1], model, []),
            "tools": size([], model, conversation.toolbox.schemas()),
        }
        for title, roles in (
            ("requests", ("user",)),
            ("answers", ("assistant",)),
            ("tool results", ("tool",)),
        ):
            some = [m for m in conversation.messages[1:] if m["role"] in roles]
            parts[f"{len(some)} {title}"] = size(some, model, [])
        whole = sum(parts.values())
        for title, tokens in parts.items():
            self.front.screen.lines(f"{tokens:>8,}  {title}")
        limit = conversation.compactor.limit(model)
        self.front.screen.lines(f"{whole:>8,}  of {limit:,} before the context is shortened")

    def _speed(self, typed: Typed) -> None:
        if typed.arguments:
            self._compare()
            return
        for line in speeds.details(self.front.speed):
            self.front.screen.say(line)

    def _compare(self) -> None:
        front = self.front
        asked_ = front.recording.asked
        found: list[Compared] = []

        def work(stop: Stop) -> None:
            total = sum(a.finished is not None for a in asked_)
            front.screen.waiting.show(
                lambda: f"writing answer {len(found) + 1} of {total} again without speculation"
            )
            for each in compare(front.model.plain(), asked_, stop):
                found.append(each)

        front.interruptible(work)
        front.compared = Comparison(tuple(found))
        for line in speeds.compared_lines(front.compared, greedy=front.greedy):
            front.screen.say(line)

    def _explain(self, typed: Typed) -> None:
        if not self.front.explained:
            if not self.front.model.explains:
                self.front.screen.say(
                    "a server does not tell its decisions; those of a model in this process show"
                )
                return
            raise RefusedError("there is nothing to explain: the last answer had no drafts")
        for line in speeds.recent(self.front.explained):
            self.front.screen.say(line)
        self.front.screen.note(speeds.LEGEND)

    def _compact(self, typed: Typed) -> None:
        def work(stop: Stop) -> None:
            self.front.screen.waiting.show("shortening the conversation")
            self.front.screen.note(self._session.conversation.compact(stop))

        self.front.interruptible(work)

    def _clear(self, typed: Typed) -> None:
        conversation = self._session.conversation
        conversation.replace([m for m in conversation.messages[:1] if m["role"] == "system"])
        self._session.held.forget()
        self.front.screen.note("the conversation is forgotten; files and changes stay as they are")

    def _save(self, typed: Typed) -> None:
        session = self._session
        path = _target(typed.text or f"agentspec-{session.log.id}.md", session.repository.root)
        if os.path.lexists(path) and not self.front.confirm(f"Replace {shown(str(path))}?"):
            raise RefusedError("nothing was written")
        try:
            with replacing(path) as file:
                file.write(session.log.export().encode())
        except OSError as error:
            why = error.strerror or error
            raise RefusedError(f"{shown(str(path))} cannot be written: {why}") from error
        self.front.screen.note(f"written to {shown(str(path))}")

    def _load(self, typed: Typed) -> None:
        if typed.text:
            self.front.switch_session(typed.text)
            return
        known = session_log.sessions(self._session.project)
        for info in known[:_LISTED_SESSIONS]:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.at))
            turns = f"{info.turns} turn{'s' * (info.turns != 1)}"
            here = "(this one) " if info.id == self._session.log.id else ""
            line = f"{info.id}  {when}  {turns:>9}  {here}{info.title}"
            self.front.screen.lines(speeds.cut(line, self.front.screen.console.width))
        self.front.screen.note("/load ID goes on with one" if known else "there is no session yet")

    def _exit(self, typed: Typed) -> None:
        raise Leave


def _target(name: str, root: Path) -> Path:
    """The file that /save writes: a new one, or a regular one that the user may replace.

    A link that came with the repository must not lead a file out of it.
    """
    try:
        path = Path(name).expanduser()
    except RuntimeError:
        raise RefusedError(f"{shown(name)}: there is no such home folder") from None
    if "\0" in name:
        raise RefusedError(f"{shown(name)} is no path: it holds NUL")
    if not path.is_absolute():
        at = root
        for part in path.parent.parts:
            at /= part
            if at.is_symlink():
                raise RefusedError(f"{shown(str(at))} is a link; give the whole path")
        path = root / path
    try:
        mode = path.lstat().st_mode
    except OSError:
        return path
    if stat.S_ISDIR(mode):
        raise RefusedError(f"{shown(str(path))} is a folder; name a file")
    if not stat.S_ISREG(mode):
        raise RefusedError(f"{shown(str(path))} is a link or a device; name a file")
    return path


def _numbers(turns: list[int]) -> str:
    return ", ".join(map(str, sorted(turns)))


def _listed(paths: list[str]) -> str:
    some = ", ".join(shown(path) for path in paths[:12])
    return f"{some} and {len(paths) - 12} more" if len(paths) > 12 else some
