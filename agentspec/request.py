"""One request, checked: everything `complete` and `stream` were asked, in typed form."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentspec.chat.normalise import check_names
from agentspec.errors import InvalidRequestError
from agentspec.types import SamplingParams
from agentspec.wire import (
    Message,
    Tool,
    check_unicode,
    parse_messages,
    parse_tool_choice,
    parse_tools,
)

_MAX_CONTEXT_FILE = 16 << 20


@dataclass(frozen=True, slots=True)
class Speculation:
    """How one request speculates; `k` is the most draft tokens of a pass.

    `enabled` None is what the engine was loaded for; `explain` keeps why each draft was chosen.
    """

    enabled: bool | None = None
    exact: bool = False
    lookup: bool = True
    draft_model: bool = True
    k: int | None = None
    explain: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request; `context` are (source, text) runs that the answer may repeat.

    With a `prompt`, text or token ids, the answer continues it as it is, and there are no messages.
    """

    messages: list[Message]
    tools: list[Tool]
    tool_choice: str
    sampling: SamplingParams
    max_tokens: int | None
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    context: tuple[tuple[str, str], ...]
    response_format: Mapping[str, Any] | None
    speculation: Speculation
    grammar: str | None = None
    prompt: str | tuple[int, ...] | None = None
    parallel_tool_calls: bool = True
    normalise: tuple[str, ...] = ()
    """Kinds of volatile header lines that are read as if they stayed the same."""


def parse_request(
    messages: object,
    *,
    tools: object = None,
    tool_choice: object = "auto",
    parallel_tool_calls: object = None,
    context: object = (),
    max_tokens: int | None = None,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[Any, float] | None = None,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    stop: object = None,
    stop_token_ids: Iterable[int] | None = None,
    seed: int | None = None,
    response_format: Mapping[str, Any] | None = None,
    grammar: object = None,
    prediction: object = None,
    speculation: bool | Mapping[str, Any] | None = None,
    normalise: object = (),
    **unknown: object,
) -> Request:
    """Check and convert the arguments of `complete`. Raises InvalidRequestError naming each."""
    for name in unknown:
        raise _invalid(name, f"is not an option of a request{_suggestion(name)}")
    parsed_tools = parse_tools(tools)
    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        logit_bias=_logit_bias(logit_bias),
        logprobs=_logprobs(logprobs, top_logprobs),
    )
    choice, form = parse_tool_choice(tool_choice, parsed_tools), _response_format(response_format)
    runs = [("predicted", text) for text in _prediction(prediction)]
    runs += [("lookup", text) for text in _context(context)]
    return Request(
        messages=parse_messages(messages),
        tools=parsed_tools,
        tool_choice=choice,
        sampling=sampling,
        max_tokens=_max_tokens(max_tokens),
        stop=_stop(stop),
        stop_token_ids=_token_ids(stop_token_ids),
        context=tuple(runs),
        response_format=form,
        speculation=_speculation(speculation),
        grammar=_grammar(grammar, choice, form),
        parallel_tool_calls=_parallel(parallel_tool_calls),
        normalise=check_names(normalise),
    )


def parse_text_request(prompt: str | Sequence[int], **options: Any) -> Request:
    """A request to continue `prompt`, text or token ids, without a template and without tools.

    Special tokens that the text spells are special: it is the whole prompt, as a template would
    have written it. Options as of `parse_request`. Raises InvalidRequestError naming each.
    """
    for name in ("messages", "tools", "tool_choice"):
        if name in options:
            raise _invalid(name, "is not an option of a request without a chat template")
    # checked as any other request, with a message in the place of the text
    request = parse_request([{"role": "user", "content": ""}], **options)
    return replace(request, messages=[], prompt=_prompt(prompt))


def _prompt(value: object) -> str | tuple[int, ...]:
    if isinstance(value, str):
        check_unicode(value, "prompt")
        return value
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
        raise _invalid("prompt", "must be a string or a list of token ids")
    ids = tuple(value)
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise _invalid("prompt", "must be a string or a list of token ids")
    return ids


def _invalid(param: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param} {problem}", param=param)


def _max_tokens(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _invalid("max_tokens", f"must be a whole number of at least 1, not {value!r}")
    return value


def _stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = (value,) if isinstance(value, str) else value
    if not isinstance(stops, Sequence) or not all(isinstance(s, str) and s for s in stops):
        raise _invalid("stop", "must be a string or a list of strings, none of them empty")
    for text in stops:
        check_unicode(text, "stop")
    return tuple(stops)


def _suggestion(name: str) -> str:
    known = [p for p in inspect.signature(parse_request).parameters if p != "unknown"]
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _logprobs(wanted: object, top: object) -> int | None:
    if wanted is not None and not isinstance(wanted, bool):
        raise _invalid("logprobs", f"must be true or false, not {wanted!r}; see top_logprobs")
    if top is None:
        return 0 if wanted else None
    if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= 100:
        raise _invalid("top_logprobs", f"must be between 0 and 100, not {top!r}")
    if not wanted:
        raise _invalid("top_logprobs", "needs logprobs=True")
    return top


def _token_ids(value: object) -> frozenset[int]:
    ids = () if value is None else value
    if not isinstance(ids, Iterable):
        raise _invalid("stop_token_ids", "must be a list of token ids")
    ids = list(ids)
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise _invalid("stop_token_ids", "must be a list of token ids")
    return frozenset(ids)


def _logit_bias(value: Mapping[Any, float] | None) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _invalid("logit_bias", "must be an object of token ids and numbers")
    try:
        # OpenAI's clients send the ids as JSON keys, hence as text
        return {int(token): bias for token, bias in value.items()}
    except (TypeError, ValueError, OverflowError):
        raise _invalid("logit_bias", "has a key that is not a token id") from None


def _prediction(value: object) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, Mapping) or value.get("type", "content") != "content":
        raise _invalid("prediction", 'must be {"type": "content", "content": …}')
    content = value.get("content")
    parts = [content] if isinstance(content, str) else content
    if not isinstance(parts, Sequence):
        raise _invalid("prediction.content", "must be text or a list of text parts")
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise _invalid("prediction.content", "must be text or a list of text parts")
    joined = "".join(str(text) for text in texts)
    check_unicode(joined, "prediction.content")
    return [joined] if joined else []


def _context(value: object) -> list[str]:
    """Texts of `context`: strings are text, path objects are files to read."""
    if isinstance(value, (str, os.PathLike)):
        value = (value,)
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, Iterable):
        raise _invalid("context", "must be a list of texts or of pathlib.Path")
    texts = []
    for i, item in enumerate(value):
        if isinstance(item, str):
            check_unicode(item, f"context[{i}]")
            texts.append(item)
        elif isinstance(item, os.PathLike):
            texts.append(_read(Path(os.fspath(item)), f"context[{i}]"))
        else:
            raise _invalid(f"context[{i}]", "must be text or a pathlib.Path")
    return texts


def _read(path: Path, where: str) -> str:
    try:
        if not path.is_file():
            raise _invalid(where, f"is not a file: {path}")
        if path.stat().st_size > _MAX_CONTEXT_FILE:
            raise _invalid(where, f"is larger than {_MAX_CONTEXT_FILE >> 20} MiB: {path}")
        return path.read_text("utf-8", errors="replace")
    except OSError as error:
        raise _invalid(where, f"cannot be read: {error}") from error


def _response_format(value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise _invalid("response_format.type", "must be 'text', 'json_object' or 'json_schema'")
    if kind == "json_schema":
        schema = value.get("json_schema")
        if not isinstance(schema, Mapping) or not isinstance(schema.get("schema"), Mapping):
            raise _invalid("response_format.json_schema.schema", "must be a JSON schema object")
        for key, kind_of in (("name", str), ("description", str), ("strict", bool)):
            if not isinstance(schema.get(key), kind_of | None):
                words = "true or false" if kind_of is bool else "a string"
                raise _invalid(f"response_format.json_schema.{key}", f"must be {words}")
    return None if kind == "text" else value


def _grammar(
    value: object, tool_choice: str, response_format: Mapping[str, Any] | None
) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise _invalid("grammar", "must be the text of a Lark or GBNF grammar")
    check_unicode(value, "grammar")
    if response_format is not None:
        raise _invalid("grammar", "cannot be asked for together with response_format")
    if tool_choice not in ("auto", "none"):
        raise _invalid("grammar", "cannot be asked for together with a call: see tool_choice")
    return value


def _parallel(value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, bool):
        raise _invalid("parallel_tool_calls", f"must be true or false, not {value!r}")
    return value


def _speculation(value: bool | Mapping[str, Any] | None) -> Speculation:
    if value is None or isinstance(value, bool):
        return Speculation(enabled=value)
    if not isinstance(value, Mapping):
        raise _invalid("speculation", "must be true, false or an object of options")
    known = {"enabled", "exact", "lookup", "draft_model", "k", "explain"}
    for key, option in value.items():
        if key not in known:
            names = ", ".join(sorted(known))
            raise _invalid(f"speculation.{key}", f"is unknown; known are {names}")
        if key == "k":
            if isinstance(option, bool) or not isinstance(option, int) or not 0 <= option <= 64:
                raise _invalid("speculation.k", f"must be between 0 and 64, not {option!r}")
        elif not isinstance(option, bool):
            raise _invalid(f"speculation.{key}", f"must be true or false, not {option!r}")
    return Speculation(**value)
