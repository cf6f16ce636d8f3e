"""From options to a program that runs: models, sessions, and the two ways to use them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentspec.aio import Stop
from agentspec.assistant.compare import RecordingModel
from agentspec.assistant.decide import Decider, Refuser
from agentspec.assistant.open import Rules, Session, open_session
from agentspec.assistant.repository import Repository
from agentspec.assistant.session_log import project_folder
from agentspec.config import Settings
from agentspec.terminal.chat import Chat, LoadedModel, Ways
from agentspec.terminal.headless import OutputFormat, run_once
from agentspec.terminal.interrupts import Interrupts, ending
from agentspec.terminal.opening import Opening
from agentspec.terminal.speed import Speed
from agentspec.terminal.waiting import Waiting, reading

Models = Callable[[str | None], LoadedModel]
"""A model by its name, None for the one that was asked for at the start."""


def local(
    settings: Settings,
    root: Path,
    load: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    tokens: bool,
) -> Models:
    """Models in this process, loaded in a thread; files of `root` are what answers may repeat.

    `load` are arguments of `load_engine`, `options` those of every request.
    """

    def model(name: str | None) -> LoadedModel:
        from agentspec.assistant.loading_model import LoadingModel
        from agentspec.loading import resolve, title

        chosen = replace(settings, model=name or settings.model)
        # a name that is none is said now, not in a thread
        called = title(resolve(chosen))
        # a draft model that was chosen belongs to the target that was
        arguments = {**load, "draft": None} if name is not None else load

        def loaded() -> Any:
            from agentspec.assistant.engine_model import EngineModel
            from agentspec.loading import load_engine

            engine = load_engine(chosen.model, workspace=root, project_dir=root, **arguments)
            return EngineModel(engine, tokens=tokens, **options)

        return LoadingModel(called, settings.n_ctx, loaded)

    return model


def remote(url: str, first: str | None, key: str, options: Mapping[str, Any]) -> Models:
    """Models of a server."""

    def model(name: str | None) -> LoadedModel:
        from agentspec.assistant.http_model import HttpModel

        known = {key: value for key, value in options.items() if value is not None}
        return HttpModel(url, name=name or first or "", key=key, **known)

    return model


@dataclass(frozen=True, slots=True)
class Sessions:
    """How sessions about a repository are opened; `resume` is as of `terminal.chat.Ways`."""

    repository: Repository
    rules: Rules
    resume: str | None = None
    map_tokens: int | None = None

    def open(
        self,
        model: RecordingModel,
        decider: Decider,
        resume: str | None,
        progress: Callable[[int, int], None],
    ) -> Session:
        """A session: a new one, one by its id, or with "" the latest."""
        return open_session(
            self.repository.root,
            model,
            decider,
            self.rules,
            resume=resume or None,
            latest=resume == "",
            map_tokens=self.map_tokens,
            progress=progress,
        )


def talk(
    models: Models, sessions: Sessions, *, greedy: bool, colour: bool, by_source: bool
) -> None:
    """The program at a terminal, until the user leaves."""
    from rich.console import Console

    from agentspec.terminal.prompt import Prompt

    colour = colour and not os.environ.get("NO_COLOR")
    # a width that is exported stays when the window changes
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    console = Console(
        highlight=False, emoji=False, markup=False, no_color=not colour, _environ=environment
    )
    repository = sessions.repository
    chat: Chat | None = None
    prompt = Prompt(
        history=project_folder(repository.root) / "history",
        paths=lambda: [entry.path for entry in repository.texts()],
        status=lambda: chat.status() if chat is not None else "",
        colour=colour,
    )
    chat = Chat(
        Ways(models, sessions.open),
        repository,
        prompt,
        console,
        resume=sessions.resume,
        test_command=sessions.rules.test_command,
        greedy=greedy,
        by_source=by_source and colour,
    )
    with ending(), closing(chat):
        if by_source and not colour:
            chat.screen.warn("without colours the sources of tokens cannot be shown")
        elif by_source and not chat.model.explains:
            chat.screen.warn("a server does not tell who proposed a token: all are shown alike")
        chat.run()


def once(
    models: Models,
    sessions: Sessions,
    text: str,
    *,
    format: OutputFormat,
    write: Callable[[str], None],
    remark: Callable[[str], None],
    display: Callable[[str], None],
) -> str:
    """One request; why the turn ended, as of events.TurnEnded. The rest is as of `run_once`."""
    from rich.console import Console

    stop = Stop()
    waiting = Waiting(Console(stderr=True))

    def written(text: str) -> None:
        waiting.clear()
        write(text)

    def remarked(text: str) -> None:
        waiting.clear()
        remark(text)

    def displayed(text: str) -> None:
        waiting.clear()
        display(text)

    with ending(), closing(waiting), closing(models(None)) as model:
        recording = RecordingModel(model)
        with (
            closing(
                Opening(lambda told: sessions.open(recording, Refuser(), sessions.resume, told))
            ) as opening,
            Interrupts(stop).listening(),
        ):
            waiting.show(opening.state)
            session = opening.wait(stop)
            if format != "stream-json":
                waiting.show(lambda: reading(model.reading(), "working"))
            ended = run_once(
                session,
                text,
                Speed(model.n_ctx),
                format=format,
                write=written,
                remark=remarked,
                display=displayed,
                stop=stop,
                plain_per_second=model.plain_per_second,
            )
    return ended.why
