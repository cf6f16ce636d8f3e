"""One request without a terminal: `agentspec chat -p`.

`text` prints the last answer. `json` prints one object when the turn is over::

    {"type": "result", "why": "done", "text": "…", "session": "…", "turn": 1, "answers": 3,
     "changed": ["src/a.py"], "changes": [{"path": "src/a.py", "diff": "…", "made": true}],
     "refused": [{"tool": "run_command", "why": "…"}],
     "usage": {"prompt_tokens": 900, "completion_tokens": 120, "cached_tokens": 700},
     "seconds": 12.3, "speed": {"tokens_per_second": 20.1, "acceptance_length": 2.1,
     "plain_per_second": 11.0, "speedup_estimate": 1.8}}

Each figure of `speed` is null where it is not known: an answer that came in one burst has no
tokens per second, one whose server counts no passes no acceptance length.

`stream-json` prints one object a line: {"type": "session", "id", "model", "root"}, then as they
come {"type": "text" | "thinking", "text", "source"}, {"type": "call", "id", "name", "arguments"},
{"type": "change", "id", "path", "diff", "made": bool}, {"type": "command", "id", "command"},
{"type": "call_result", "id", "name", "error": bool, "text"}, {"type": "answer", "reason", "usage",
"speculation", "seconds"}, {"type": "note", "text"}, and the result as the last line.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal

from agentspec.aio import Stop
from agentspec.assistant import events
from agentspec.assistant.compare import writing_seconds
from agentspec.assistant.mentions import with_files
from agentspec.assistant.open import Session
from agentspec.terminal.speed import Speed, at_once
from agentspec.wire import SpeculationStats

OutputFormat = Literal["text", "json", "stream-json"]

_WHY = {
    "length": "the answer was cut at its most tokens; --max-tokens allows more, --continue goes on",
    "max_answers": "stopped after the most answers; --max-turns allows more, --continue goes on",
    "repeating": "stopped: the model made the same call again and again",
}
"""Why the model was not done, in words: the exit code alone says only that."""


@dataclass(slots=True)
class _Turn:
    """What has happened so far."""

    texts: list[str] = field(default_factory=list)
    last: str = ""
    refused: list[dict[str, str]] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Those that were shown, by the ids of their calls, as they were made in the end."""
    ended: events.TurnEnded | None = None


def run_once(
    session: Session,
    text: str,
    speed: Speed,
    *,
    format: OutputFormat,
    write: Callable[[str], None],
    remark: Callable[[str], None],
    display: Callable[[str], None],
    stop: Stop,
    plain_per_second: Callable[[], float | None] = lambda: None,
) -> events.TurnEnded:
    """Run a turn and write what comes of it, a line each; remarks go where `remark` puts them.

    `display` is for the diffs of a dry run, which has no other effect that could be seen.
    Raises what the turn raises; with `json` and `stream-json` nothing but objects is written.
    """
    turn = _Turn()
    lines = format == "stream-json"

    def line(kind: str, **values: Any) -> None:
        if lines:
            write(json.dumps({"type": kind, **values}, ensure_ascii=False))

    line("session", id=session.log.id, model=session.conversation.model.name,
         root=str(session.repository.root))  # fmt: skip
    for note in session.notes:
        remark(note)

    def noted(text: str) -> None:
        remark(text)
        line("note", text=text)

    request = with_files(session.repository, text, noted)
    happened = session.conversation.turn(request, stop=stop, said=text)
    with closing(happened):
        for event in happened:
            match event:
                case events.Text(text=piece, source=source):
                    turn.texts.append(piece)
                    line("text", text=piece, source=source)
                case events.Thinking(text=piece, source=source):
                    line("thinking", text=piece, source=source)
                case events.CallBegun():
                    line("call", id=event.id, name=event.name, arguments=event.arguments)
                case events.ChangeProposed():
                    turn.asked.add(event.id)
                    turn.changes[event.id] = _change(event, made=False)
                    if format == "text" and session.gate.dry_run:
                        display(event.change.diff)
                    line("change", id=event.id, path=event.change.path, diff=event.change.diff,
                         made=False)  # fmt: skip
                case events.ChangeMade():
                    turn.asked.discard(event.id)
                    turn.changes[event.id] = _change(event, made=True)
                    line("change", id=event.id, path=event.change.path, diff=event.change.diff,
                         made=True)  # fmt: skip
                case events.CommandAsked():
                    turn.asked.add(event.id)
                case events.CommandBegun():
                    turn.asked.discard(event.id)
                    line("command", id=event.id, command=event.command.text)
                case events.CallEnded():
                    if event.id in turn.asked:
                        turn.refused.append({"tool": event.name, "why": event.result.text})
                    line("call_result", id=event.id, name=event.name, error=event.result.error,
                         text=event.result.text)  # fmt: skip
                case events.Answered():
                    speed.add(event)
                    turn.last, turn.texts = "".join(turn.texts), []
                    line("answer", reason=event.reason, usage=event.usage.model_dump(),
                         speculation=event.speculation and _told(event.speculation),
                         seconds=event.seconds)  # fmt: skip
                case events.Note():
                    noted(event.text)
                case events.TurnEnded():
                    turn.ended = event
    assert turn.ended is not None
    speed.rows_per_second = plain_per_second()
    said = "".join(turn.texts) or turn.last
    if format == "text":
        write(said)
        for refused in turn.refused:
            remark(f"{refused['tool']}: {refused['why'].removeprefix('error: ')}")
        if turn.ended.why in _WHY:
            remark(_WHY[turn.ended.why])
    else:
        write(json.dumps(_result(session, turn, turn.ended, said, speed), ensure_ascii=False))
    return turn.ended


def _told(stats: SpeculationStats) -> dict[str, Any]:
    """Statistics without the figures that nobody knows."""
    found = stats.model_dump()
    if at_once(stats.generated_tokens, writing_seconds(stats)):
        found["tokens_per_second"] = None
    found["acceptance_length"] = found["acceptance_length"] or None
    return found


def _change(event: events.ChangeProposed | events.ChangeMade, *, made: bool) -> dict[str, Any]:
    return {"path": event.change.path, "diff": event.change.diff, "made": made}


def _result(
    session: Session, turn: _Turn, ended: events.TurnEnded, said: str, speed: Speed
) -> dict[str, Any]:
    return {
        "type": "result",
        "why": ended.why,
        "text": said,
        "session": session.log.id,
        "turn": ended.turn,
        "answers": ended.answers,
        "changed": list(ended.changed),
        "changes": list(turn.changes.values()),
        "refused": turn.refused,
        "usage": {
            "prompt_tokens": ended.prompt_tokens,
            "completion_tokens": ended.completion_tokens,
            "cached_tokens": speed.cached_tokens,
        },
        "seconds": round(ended.seconds, 3),
        "speed": {
            "tokens_per_second": round(speed.per_second, 2) or None,
            "acceptance_length": round(speed.acceptance_length, 3) or None,
            "plain_per_second": speed.plain_per_second and round(speed.plain_per_second, 3),
            "speedup_estimate": speed.estimate and round(speed.estimate, 3),
        },
    }
