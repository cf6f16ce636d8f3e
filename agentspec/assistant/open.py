"""A session put together: the repository, what may be done in it, and the conversation."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentspec.assistant.changes import Journal
from agentspec.assistant.compaction import Compactor
from agentspec.assistant.decide import Decider, Gate
from agentspec.assistant.held import HeldFiles
from agentspec.assistant.model import Model
from agentspec.assistant.prompt import system_prompt
from agentspec.assistant.repo_map import RepoMap
from agentspec.assistant.repository import Repository
from agentspec.assistant.results import MAX_TEXT
from agentspec.assistant.session_log import SessionLog, project_folder
from agentspec.assistant.tools import Toolbox
from agentspec.assistant.turn import Conversation
from agentspec.closing import Closing

_MAP_SHARE = 0.06
_MOST_MAP = 2_000


@dataclass(frozen=True, slots=True)
class Rules:
    """What the user allows, from flags and the user's own configuration alone.

    `allowed` commands run unasked (see Gate). `test_command` is what `run_tests` runs; it is asked
    for like any other unless it is allowed.
    """

    read_only: bool = False
    dry_run: bool = False
    yes: bool = False
    allowed: Sequence[str] = ()
    test_command: str = ""
    max_answers: int = 40
    max_tokens: int | None = None
    command_seconds: float = 120


@dataclass(slots=True)
class Session(Closing):
    """Everything of a session; close it when it ends."""

    project: Path
    repository: Repository
    chart: RepoMap
    held: HeldFiles
    log: SessionLog
    journal: Journal
    gate: Gate
    conversation: Conversation

    @property
    def notes(self) -> list[str]:
        """What the user should know of an earlier crash."""
        return [note for note in (self.log.note, *self.journal.notes) if note]

    def close(self) -> None:
        """Let other processes have the session; safe to call twice.

        One in which nothing was said leaves nothing behind.
        """
        if not self.log.asked and not self.journal.turns() and not self.journal.undone():
            shutil.rmtree(self.log.folder, ignore_errors=True)
        self.journal.close()
        self.log.close()


def open_session(
    path: str | Path,
    model: Model,
    decider: Decider,
    rules: Rules = Rules(),
    *,
    resume: str | None = None,
    latest: bool = False,
    data: Path | None = None,
    map_tokens: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Session:
    """A session about the repository around `path`: a new one, one by id, or the latest.

    `data` is where projects are kept, by default below the user's data folder. `map_tokens` is
    what the map may take of the context, 0 for none. Raises RefusedError when the folder or the
    session cannot be used.
    """
    repository = Repository.around(path)
    project = project_folder(repository.root, data)
    if resume is not None:
        log = SessionLog.resume(project, resume)
    elif latest:
        log = SessionLog.latest(project)
    else:
        log = SessionLog.new(project, model=model.name, root=str(repository.root))
    try:
        journal = Journal(log.folder / "changes", repository)
    except BaseException:
        log.close()
        raise
    try:
        chart = RepoMap(repository, project / "map.json")
        if map_tokens is None:
            map_tokens = min(_MOST_MAP, int(_MAP_SHARE * model.n_ctx))
        system = ""
        if not log.messages:
            if map_tokens > 0:
                chart.refresh(progress)
            system = system_prompt(
                repository,
                chart=chart.render(map_tokens, model.count) if map_tokens > 0 else "",
                read_only=rules.read_only,
                dry_run=rules.dry_run,
            )
        most = min(MAX_TEXT, max(1000, int(0.6 * model.n_ctx)))
        held = HeldFiles(repository, most=2 * most)
        gate = Gate(
            decider,
            read_only=rules.read_only,
            dry_run=rules.dry_run,
            yes=rules.yes,
            allowed=tuple(rules.allowed),
        )
        conversation = Conversation(
            model,
            repository=repository,
            toolbox=Toolbox.of(
                repository,
                read_only=rules.read_only,
                test_command=rules.test_command,
                most=most,
            ),
            journal=journal,
            gate=gate,
            system=system,
            messages=log.messages,
            log=log,
            compactor=Compactor(pinned=held.texts),
            max_answers=rules.max_answers,
            max_tokens=rules.max_tokens,
            seconds=rules.command_seconds,
        )
    except BaseException:
        journal.close()
        log.close()
        raise
    return Session(project, repository, chart, held, log, journal, gate, conversation)
