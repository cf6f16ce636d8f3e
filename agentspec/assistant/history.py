"""Messages that a template accepts: every call has its result, whatever was interrupted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentspec.assistant.model import WireMessage

UNREADABLE = "[Your tool call could not be read: "
INTERRUPTED = "[interrupted]"
LOST = "error: the program ended before this call had a result; look at what is there now"


def user(text: str) -> WireMessage:
    """A message of the user, as valid Unicode."""
    return {"role": "user", "content": clean(text)}


def assistant(
    text: str,
    thinking: str = "",
    calls: Sequence[tuple[str, str, str]] = (),
    *,
    whole: bool = False,
) -> WireMessage:
    """An answer; `calls` are (id, name, arguments). One that is not whole is never empty."""
    message: WireMessage = {"role": "assistant", "content": clean(text) if text else None}
    if thinking:
        message["reasoning_content"] = clean(thinking)
    if calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in calls
        ]
    elif not text:
        message["content"] = "" if whole else INTERRUPTED
    return message


def asks(message: WireMessage) -> bool:
    """Whether a message is a request of the user, not one that we sent in the user's name."""
    return message["role"] == "user" and not message["content"].startswith(UNREADABLE)


def unreadable(why: str) -> WireMessage:
    """What a model is told about a call that was no call."""
    return user(
        f"{UNREADABLE}{why.replace('_', ' ')}. Write it again, with the arguments as one JSON "
        "object.]"
    )


def result(id_: str, name: str, text: str) -> WireMessage:
    """The result of a call."""
    return {"role": "tool", "tool_call_id": id_, "name": name, "content": clean(text)}


def clean(text: str) -> str:
    """Text without lone surrogates."""
    return text.encode("utf-8", "replace").decode()


def repaired(messages: Iterable[WireMessage], why: str = LOST) -> list[WireMessage]:
    """The messages with a result for every call and an answer for every request.

    A crash leaves calls open: their result is `why`. Results without a call are dropped.
    """
    found: list[WireMessage] = []
    open_: dict[str, str] = {}

    def close() -> None:
        found.extend(result(id_, name, why) for id_, name in open_.items())
        open_.clear()

    for message in messages:
        role = message.get("role")
        if role == "tool":
            if open_.pop(str(message.get("tool_call_id")), None) is not None:
                found.append(message)
            continue
        close()
        if role == "user" and found and found[-1]["role"] in ("user", "tool"):
            found.append(assistant(""))
        found.append(message)
        for call in message.get("tool_calls") or ():
            open_[str(call["id"])] = str(call["function"]["name"])
    close()
    return found
