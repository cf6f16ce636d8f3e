"""`agentspec chat`: a line, a turn, a line."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.cells import cell_len
from rich.console import Console

from agentspec.aio import Stop
from agentspec.assistant import events, session_log
from agentspec.assistant.compare import Comparison, RecordingModel
from agentspec.assistant.errors import RefusedError
from agentspec.assistant.mentions import with_files
from agentspec.assistant.model import Speculating
from agentspec.assistant.open import Session
from agentspec.assistant.repository import Repository, shown
from agentspec.assistant.results import plain
from agentspec.assistant.slash import parse_slash
from agentspec.errors import AgentspecError, CancelledError
from agentspec.terminal.ask import TerminalDecider
from agentspec.terminal.commands import Commands, Leave
from agentspec.terminal.interrupts import Interrupts, forget_typed
from agentspec.terminal.opening import Opening
from agentspec.terminal.screen import Screen
from agentspec.terminal.speed import Speed, cut, status_within
from agentspec.terminal.typed import Typed

if TYPE_CHECKING:
    from agentspec.terminal.prompt import Prompt

_LEAVES_AFTER = 1.0


class LoadedModel(Speculating, Protocol):
    """A model that can be closed."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Ways:
    """How the program makes what it needs: a model by name, and a session over a model.

    `session` takes the model, who decides, the id of a session to go on with ("" the latest, None
    a new one) and where to report how far the repository is indexed.
    """

    model: Callable[[str | None], LoadedModel]
    session: Callable[
        [RecordingModel, TerminalDecider, str | None, Callable[[int, int], None]], Session
    ]


class Chat:
    """The program. `run` returns when the user leaves; `close` frees everything.

    `resume` is as of Ways.session. `greedy` says that the same request gives the same text.
    """

    def __init__(
        self,
        ways: Ways,
        repository: Repository,
        prompt: Prompt,
        console: Console,
        *,
        resume: str | None = None,
        test_command: str = "",
        greedy: bool = True,
        by_source: bool = False,
    ) -> None:
        self.model: LoadedModel = ways.model(None)
        # a server gives no tokens, only their text
        self.screen = Screen(console, by_source=by_source and self.model.explains)
        self.repository = repository
        self.test_command = test_command
        self.greedy = greedy
        self.compared: Comparison | None = None
        self.explained: list[str] = []
        self._ways = ways
        self._prompt = prompt
        self._interrupts: Interrupts | None = None
        self._typed = Typed(self.screen.queued)
        self._stopped = 0.0
        self.recording = RecordingModel(self.model)
        self.speed = Speed(self.model.n_ctx)
        self._resume = resume
        self._opening = self._open(resume, prompt.fail)
        self._commands = Commands(self)

    @property
    def session(self) -> Session:
        """The session; waits for it."""
        if not self._opening.ready:
            self.screen.waiting.show(self._opening.state)
            try:
                return self._opening.wait()
            finally:
                self.screen.waiting.clear()
        return self._opening.wait()

    def run(self) -> None:
        """Until the user leaves. Raises what opening the session or loading the model raised."""
        self._greet()
        self._talk()
        if self._opening.ready and self._opening.error is None and self.session.log.asked:
            # one in which nothing was said leaves nothing behind
            root = self.repository.root
            there = "" if Path.cwd().is_relative_to(root) else f" {shlex.quote(str(root))}"
            self.screen.note(
                f"to go on: agentspec chat{there} --continue, or --resume {self.session.log.id}"
            )

    def _talk(self) -> None:
        told = False
        while True:
            try:
                line = self._request()
            except EOFError:
                if self._opening.error is not None:
                    raise self._opening.error from None
                return
            except KeyboardInterrupt:
                if time.monotonic() - self._stopped < _LEAVES_AFTER:
                    self.screen.note("Ctrl-C again leaves")
                    self._stopped = 0.0
                    continue
                return
            try:
                if not told:
                    told = True
                    for note in self.session.notes:
                        self.screen.warn(note)
                if not self._line(line):
                    return
            except (KeyboardInterrupt, CancelledError):
                self._stopped = time.monotonic()
                self._typed.hold()
                self.screen.warn("stopped")
            except (AgentspecError, OSError) as error:
                self._typed.hold()
                if error is self._opening.error:
                    raise
                self.screen.error(str(error) or type(error).__name__)
            finally:
                self.screen.end()

    def close(self) -> None:
        """Close session and model; safe to call twice."""
        try:
            self.screen.close()
        finally:
            try:
                self._opening.close()
            finally:
                self.model.close()

    def confirm(self, question: str) -> bool:
        """Ask the user; no where she leaves the question."""
        with suppress(KeyboardInterrupt, EOFError):
            return self._ask(f"{question} (yes, no) ", "").strip().lower() in ("y", "yes")
        return False

    def interruptible(self, work: Callable[[Stop], None]) -> None:
        """Work that Ctrl-C ends by setting what it is given."""
        stop = Stop()
        self._interrupts = Interrupts(stop, self._typed)
        try:
            with self._interrupts.listening():
                work(stop)
        finally:
            self._interrupts = None
            self.screen.end()
            if stop.is_set():
                self._stopped = time.monotonic()

    def switch_model(self, name: str) -> None:
        """Go on with another model; the one before is freed first: both may not fit."""
        before = self.model
        before.close()
        self.screen.waiting.show(f"loading {name}")
        try:
            self.model = self._ways.model(name)
            self.model.count("")  # waits for it
        except BaseException:
            self.model.close()
            self.model = self._ways.model(None)
            raise
        finally:
            self.screen.waiting.clear()
            self.recording.use(self.model)
            self._forget_turn()

    def switch_session(self, id_: str) -> None:
        """Go on with another session; the one before stays where it cannot be opened."""
        if id_ and self.session.log.id.startswith(id_):
            raise RefusedError("this is the session you are in")
        before = self._opening
        opening = self._open(id_, lambda: None)  # nothing is typed meanwhile
        try:
            opening.wait()
        except BaseException:
            opening.close()
            raise
        self._opening = opening
        before.close()
        requests = self.session.log.requests()
        last = requests[-1][1] if requests else ""
        self.screen.note(session_line(self.session.log.id, len(requests), last))

    def _open(self, resume: str | None, failed: Callable[[], None]) -> Opening:
        decider = TerminalDecider(self._ask, self.screen.warn, self._paused)
        recording = self.recording
        return Opening(
            lambda progress: self._ways.session(recording, decider, resume, progress), failed
        )

    def _greet(self) -> None:
        where = shown(self.repository.root.name or str(self.repository.root))
        self.screen.note(f"{self.model.name} in {where} · /help says what can be typed")
        if not self.repository.git:
            self.screen.warn("this is no git repository: /undo works, /diff and /commit do less")
        if self._resume is not None:
            # what cannot be opened, the opening itself says
            known = session_log.sessions(session_log.project_folder(self.repository.root))
            found = [info for info in known if info.id.startswith(self._resume)][:1]
            for info in found:
                self.screen.note(session_line(info.id, info.turns, info.last))

    def _request(self) -> str:
        """What was typed before, else what is typed now; raises as `Prompt.request` does."""
        line, text = self._typed.take()
        if line is None:
            return self._prompt.request(text)
        self._prompt.remember(line)
        self.screen.typed(line)
        return line

    def _line(self, line: str) -> bool:
        """Do what was typed; False to leave."""
        if not line.strip():
            return True
        typed = parse_slash(line)
        if typed is None:
            self._turn(line.strip())
            return True
        try:
            self._commands.run(typed)
        except Leave:
            return False
        return True

    def _turn(self, text: str) -> None:
        session = self.session
        conversation = session.conversation
        request = with_files(
            session.repository, text, lambda line: self.screen.warn(f"note: {line}")
        )
        for news in session.held.news():
            conversation.note(news)
        before = self.speed, self.compared, self.explained
        self._forget_turn()

        def work(stop: Stop) -> None:
            self.screen.begin(self.model.reading)
            happened = conversation.turn(request, stop=stop, said=text)
            with closing(happened):
                for event in happened:
                    if isinstance(event, events.TurnEnded):
                        self._typed.settle()
                    self.screen.show(event)
                    if isinstance(event, events.Answered):
                        self._answered(event)
                    elif isinstance(event, events.TurnEnded):
                        session.held.seen(event.changed)
                        self._ended(event)

        try:
            self.interruptible(work)
        finally:
            if not self.speed.answers:
                # stopped, or failed: the last figures that there were still stand
                self.speed, self.compared, self.explained = before

    def _forget_turn(self) -> None:
        self.recording.forget()
        self.compared, self.explained = None, []
        self.speed = Speed(self.model.n_ctx)

    def _answered(self, event: events.Answered) -> None:
        self.speed.add(event)
        if event.speculation is not None and event.speculation.explained:
            self.explained = event.speculation.explained
        self.screen.begin(self.model.reading)

    def _ended(self, event: events.TurnEnded) -> None:
        self.speed.rows_per_second = self.model.plain_per_second()
        self.screen.end()
        if self.screen.by_source:
            self.screen.legend()
        if event.changed:
            n = len(event.changed)
            self.screen.note(
                f"{n} file{'s' * (n != 1)} changed · /diff shows it, /undo takes it back"
            )
        if self.speed.answers:
            self.screen.note(status_within(self.screen.console.width, self.speed))

    def status(self) -> str:
        """The line below what is typed."""
        name = " ".join(plain(self.model.name).split())
        width = self.screen.console.width
        if not self._opening.ready:
            state = self._opening.state()
            whole = f"{name} · {state} (you can type)"
            return whole if cell_len(whole) <= width else cut(state, width)
        if self.speed.answers:
            return status_within(width, self.speed, self.compared, name=name)
        return cut(f"{name} · ready", width)

    def _ask(self, question: str, text: str) -> str:
        with self._paused():
            self.screen.waiting.clear()
            forget_typed()
            return self._prompt.question(question, text)

    def _paused(self) -> AbstractContextManager[None]:
        return self._interrupts.paused() if self._interrupts is not None else nullcontext()


def session_line(id_: str, turns: int, last: str) -> str:
    """Which session goes on."""
    said = f" · last request: “{last}”" if last else ""
    return f"session {id_} · {turns} turn{'s' * (turns != 1)}{said}"
