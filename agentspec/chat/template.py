"""Messages and tools to prompt text and token ids, through the model's own Jinja template."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError

from agentspec.backends.base import Tokenizer
from agentspec.chat.guard import Guard, Segment
from agentspec.chat.sandbox import RUN, LimitError, RefusedError, Run, Sandbox
from agentspec.errors import InvalidRequestError, ModelError, line_of
from agentspec.wire import Message, Tool, check_json

FALLBACKS = ("chatml", "gemma")
"""Templates that come with the package, for model files that hold none."""

_MAX_SOURCE = 1_000_000
_THINKING = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


class ChatTemplate:
    """One compiled chat template.

    `bos` and `eos` are the texts of the vocabulary's tokens. Rendering is cut off after
    `seconds` and after `growth` times the size of the input plus 1 M characters. Raises ModelError
    when the source does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        bos: str,
        eos: str,
        seconds: float = 10.0,
        growth: int = 16,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        if len(source) > _MAX_SOURCE:
            raise ModelError(
                f"the chat template has {len(source)} characters, more than {_MAX_SOURCE}; "
                "pass another with template="
            )
        self.source = source
        self._names = {"bos_token": bos, "eos_token": eos}
        self._seconds = seconds
        self._growth = growth
        try:
            self._template = Sandbox(now).from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(
                f"the chat template does not compile: line {error.lineno}: {line_of(error)}; "
                "pass another with template="
            ) from error
        except (jinja2.TemplateError, RecursionError, SyntaxError, MemoryError) as error:
            raise ModelError(
                f"the chat template does not compile: {line_of(error)}; pass another with template="
            ) from error
        self._guard: tuple[tuple[str, ...], Guard] = ((), Guard(()))

    def mentions(self, word: str) -> bool:
        """True when the template's source has the word, e.g. `tools`."""
        return re.search(rf"\b{re.escape(word)}\b", self.source) is not None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = True,
        *,
        special_pieces: Sequence[str] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> list[Segment]:
        """The prompt as segments to tokenise one by one.

        What content holds of `special_pieces` is cut across segments, so that no segment has one
        that the template itself did not write. A template that refuses system or tool messages
        gets their text inside user messages. `variables` are further names for the template.
        Raises InvalidRequestError when the template refuses the messages, ModelError when it
        fails.
        """
        chat = [self._plain(message) for message in messages]
        if tools and not self.mentions("tools"):
            chat = _with_tools(chat, tools)
        try:
            return self._render(chat, tools, add_generation_prompt, special_pieces, variables)
        except RefusedError as error:
            folded = _folded(chat)
            if folded == chat:
                raise self._refused(error) from error
        try:
            return self._render(folded, tools, add_generation_prompt, special_pieces, variables)
        except RefusedError as error:
            raise self._refused(error) from error

    @staticmethod
    def _refused(error: RefusedError) -> InvalidRequestError:
        return InvalidRequestError(
            f"the model's chat template refuses these messages: {line_of(error)}", param="messages"
        )

    def _render(
        self,
        chat: list[dict[str, Any]],
        tools: Sequence[Tool],
        add_generation_prompt: bool,
        special_pieces: Sequence[str],
        variables: Mapping[str, Any] | None,
    ) -> list[Segment]:
        schemas = [_schema(tool) for tool in tools]
        extra = dict(variables or {})
        size = 0
        strings = list(_strings([chat, schemas, extra]))
        for text in strings:
            size += len(text)
        marks = self._guard_for(special_pieces).marks([*strings, self.source, *special_pieces])
        run = Run(marks, self._seconds, self._growth * size + 1_000_000)
        names: dict[str, Any] = {
            **extra,
            **self._names,
            "messages": [_marked(message, marks.value) for message in chat],
            "tools": marks.value(schemas) if schemas else None,
            "add_generation_prompt": add_generation_prompt,
            RUN: run,
        }
        chunks: list[str] = []
        made = 0
        try:
            for chunk in self._template.generate(names):
                made += len(chunk)
                run.check_size(made)
                run.check_time()
                chunks.append(chunk)
        except RefusedError:
            raise
        except LimitError as error:
            raise ModelError(
                f"the chat template was stopped: {line_of(error)}; pass another with template="
            ) from error
        except SecurityError as error:
            raise ModelError(
                f"the chat template tries what a template may not do: {line_of(error)}"
            ) from error
        except Exception as error:
            # A template runs arbitrary expressions over the caller's data: any exception type.
            raise ModelError(
                f"the chat template failed on these messages: {type(error).__name__}: "
                f"{marks.clean(line_of(error))}; pass another with template="
            ) from error
        return marks.segments("".join(chunks))

    def _guard_for(self, special_pieces: Sequence[str]) -> Guard:
        key = tuple(special_pieces)
        known, guard = self._guard
        if key != known:
            guard = Guard(key)
            # One assignment, so that another thread never sees a guard under a wrong key.
            self._guard = (key, guard)
        return guard

    def _plain(self, message: Message) -> dict[str, Any]:
        """A message as the dict that templates expect: text content, arguments as objects."""
        role: str = message.role
        if role == "developer" and not self.mentions("developer"):
            role = "system"
        content = message.text
        plain: dict[str, Any] = {"role": role, "content": content}
        if message.reasoning_content is not None:
            plain["reasoning_content"] = message.reasoning_content
        elif role == "assistant" and self.mentions("reasoning_content"):
            # Marks would hide the thinking tags from a template that looks for them.
            thinking = _THINKING.match(content)
            if thinking:
                plain["reasoning_content"] = thinking.group(1).strip("\n")
                plain["content"] = content[thinking.end() :]
        if message.name is not None:
            plain["name"] = message.name
        if message.tool_call_id is not None:
            plain["tool_call_id"] = message.tool_call_id
        if message.tool_calls:
            calls = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": _arguments(call.function.arguments),
                    },
                }
                for call in message.tool_calls
            ]
            if self.mentions("tool_calls"):
                plain["tool_calls"] = calls
            else:
                texts = [plain["content"]] if plain["content"] else []
                texts += [
                    f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
                    for call in calls
                ]
                plain["content"] = "\n".join(texts)
        return plain


def encode_chat(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    special_pieces: Sequence[str] = (),
    *,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
    bos_id: int | None = None,
) -> list[int]:
    """Token ids of a conversation; special ids come from the template only.

    `bos_id` is put first when the template did not write it itself. Raises InvalidRequestError
    and ModelError like `ChatTemplate.render`.
    """
    segments = template.render(
        messages,
        tools,
        add_generation_prompt,
        special_pieces=special_pieces,
        variables=variables,
    )
    ids: list[int] = []
    for text, plain in segments:
        ids += tokenizer.encode(text) if plain else tokenizer.encode_special(text)
    if bos_id is not None and ids[:1] != [bos_id]:
        ids.insert(0, bos_id)
    return ids


def encode_prompt(
    prompt: str | Sequence[int],
    tokenizer: Tokenizer,
    *,
    vocab_size: int,
    bos_id: int | None = None,
) -> list[int]:
    """Token ids of a prompt that no template makes: of its text, or the ids as they are.

    `bos_id` is put before a text that does not begin with it. Raises InvalidRequestError for a
    prompt without tokens and for an id outside the vocabulary.
    """
    if isinstance(prompt, str):
        ids = tokenizer.encode_special(prompt)
        if bos_id is not None and ids[:1] != [bos_id]:
            ids.insert(0, bos_id)
    else:
        ids = list(prompt)
    if not ids:
        raise InvalidRequestError("the prompt has no tokens", param="prompt")
    for at, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise InvalidRequestError(
                f"prompt[{at}] is {token}, not a token of this vocabulary of {vocab_size}",
                param="prompt",
            )
    return ids


def load_template(
    source: str | None,
    *,
    bos: str,
    eos: str,
    template: str | None = None,
    fallback: str | None = None,
) -> ChatTemplate:
    """The template to use: the caller's, else the model's own, else the catalog's fallback.

    `template` and `fallback` are Jinja source or one of FALLBACKS. Raises ModelError when there
    is none or it does not compile.
    """
    chosen = template or source or fallback
    if not chosen:
        raise ModelError(
            "the model file holds no chat template; pass template= with a Jinja source or one of "
            + ", ".join(FALLBACKS)
        )
    if chosen in FALLBACKS:
        chosen = packaged_prompt(f"{chosen}.jinja")
    elif "{" not in chosen:
        raise ModelError(
            f"template {chosen[:60]!r} is neither a Jinja source nor one of {', '.join(FALLBACKS)}"
        )
    return ChatTemplate(chosen, bos=bos, eos=eos)


def packaged_prompt(name: str) -> str:
    """Text of a file of agentspec.prompts, installed or in the source tree.

    Raises ModelError when the installation lacks it.
    """
    try:
        return resources.files("agentspec.prompts").joinpath(name).read_text("utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        pass
    try:
        return (Path(__file__).parents[2] / "prompts" / name).read_text("utf-8")
    except FileNotFoundError as error:
        raise ModelError(f"agentspec.prompts lacks {name}; install agentspec again") from error


def _schema(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.function.description is not None:
        function["description"] = tool.function.description
    function["parameters"] = tool.function.parameters
    return {"type": "function", "function": function}


def _arguments(text: str) -> dict[str, Any] | str:
    """The object that JSON text stands for; the text itself when it is anything else."""
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            return text
        check_json(value, "arguments")
    except (ValueError, RecursionError):
        return text
    return value


def _marked(message: dict[str, Any], mark: Callable[[Any], Any]) -> dict[str, Any]:
    # Roles come from a fixed list and templates compare them.
    return {key: value if key == "role" else mark(value) for key, value in message.items()}


def _strings(value: object) -> Iterator[str]:
    stack: list[object] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)


def _with_tools(chat: list[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools described in the system message, for templates that know none."""
    lines = (json.dumps(_schema(tool), ensure_ascii=False) for tool in tools)
    text = packaged_prompt("hermes_tools.txt").strip().replace("{tools}", "\n".join(lines))
    if chat and chat[0]["role"] in ("system", "developer"):
        first = {**chat[0], "content": f"{chat[0]['content']}\n\n{text}".lstrip()}
        return [first, *chat[1:]]
    return [{"role": "system", "content": text}, *chat]


def _folded(chat: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """System and tool messages as text of user messages, and neighbours of one role joined."""
    out: list[dict[str, Any]] = []
    for message in chat:
        role, content = message["role"], message["content"]
        if role == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
        role = "assistant" if role == "assistant" else "user"
        if out and out[-1]["role"] == role and "tool_calls" not in {*message, *out[-1]}:
            out[-1] = {**out[-1], "content": f"{out[-1]['content']}\n\n{content}"}
        else:
            out.append({**message, "role": role, "content": content})
    return out
