"""LangChain's structured output: a chat model asked for an object, and what reads it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from operator import itemgetter
from typing import Any, Literal

from agentspec.errors import MissingExtraError

try:
    from langchain_core.exceptions import OutputParserException
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
    from langchain_core.output_parsers.openai_tools import (
        JsonOutputKeyToolsParser,
        PydanticToolsParser,
    )
    from langchain_core.runnables import (
        Runnable,
        RunnableGenerator,
        RunnableMap,
        RunnablePassthrough,
    )
    from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
    from langchain_core.utils.json import parse_json_markdown
    from langchain_core.utils.pydantic import is_basemodel_subclass
except ModuleNotFoundError as error:
    raise MissingExtraError("langchain-core", "langchain") from error

Method = Literal["json_schema", "function_calling", "json_mode"]


def structured(
    model: BaseChatModel, schema: Any, *, method: Method, strict: bool | None, include_raw: bool
) -> Runnable:
    """The model that answers with an object, as of `ChatAgentSpec.with_structured_output`."""
    if schema is None and method != "json_mode":
        raise ValueError(f"with_structured_output needs a schema for method {method!r}")
    of_class = isinstance(schema, type) and is_basemodel_subclass(schema)
    parser: Runnable = JsonOutputParser()
    if of_class:
        parser = PydanticOutputParser(pydantic_object=schema)
    # the object's end is known; a stop text of the model could only cut it
    whole: dict[str, Any] = {"stop": []}
    if schema is not None:
        asked = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
        whole["ls_structured_output_format"] = asked
    if method == "function_calling":
        name = convert_to_openai_tool(schema)["function"]["name"]
        parser = JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
        if of_class:
            parser = PydanticToolsParser(tools=[schema], first_tool_only=True)
        asking: Runnable = model.bind_tools(
            [schema], tool_choice=name, strict=strict, parallel_tool_calls=False, **whole
        )
    elif method == "json_schema":
        described = convert_to_json_schema(schema, strict=strict)
        form = {"name": described["title"], "schema": described, "strict": strict}
        asking = model.bind(response_format={"type": method, "json_schema": form}, **whole)
    elif method == "json_mode":
        asking = model.bind(response_format={"type": "json_object"}, **whole)
    else:
        raise ValueError(f"with_structured_output knows no method {method!r}")
    parser = RunnableGenerator(*_checks(as_text=method != "function_calling")) | parser
    if not include_raw:
        return asking | parser
    read = RunnablePassthrough.assign(
        parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
    )
    unread = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=asking) | read.with_fallbacks([unread], exception_key="parsing_error")


def _checks(*, as_text: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Hand messages on as they come, and raise OutputParserException for an object cut short.

    LangChain's parsers complete half an object to one that nobody wrote. An object that is the
    text of the answer may have been cut by a stop text too.
    """

    def whole(parts: Iterator[AIMessage]) -> Iterator[AIMessage]:
        texts: list[str] = []
        for part in parts:
            yield part
            _check_length(part)
            texts.append(part.text)
        if as_text:
            _check_object("".join(texts))

    async def awhole(parts: AsyncIterator[AIMessage]) -> AsyncIterator[AIMessage]:
        texts: list[str] = []
        async for part in parts:
            yield part
            _check_length(part)
            texts.append(part.text)
        if as_text:
            _check_object("".join(texts))

    return whole, awhole


def _check_length(part: AIMessage) -> None:
    if part.response_metadata.get("finish_reason") == "length":
        raise OutputParserException(
            "the answer reached max_tokens before its object was complete; raise max_tokens",
            llm_output=part.text if isinstance(part.text, str) else None,
        )


def _check_object(text: str) -> None:
    try:
        parse_json_markdown(text, parser=json.loads)
    except ValueError as error:
        raise OutputParserException(
            "the answer ends before its object is complete; is a stop text part of it?",
            llm_output=text,
        ) from error
