"""LangChain's structured output: a chat model asked for an object, and what reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
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
    told: dict[str, Any] = {}
    if schema is not None:
        asked = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
        told["ls_structured_output_format"] = asked
    if method == "function_calling":
        name = convert_to_openai_tool(schema)["function"]["name"]
        parser = JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
        if of_class:
            parser = PydanticToolsParser(tools=[schema], first_tool_only=True)
        asking: Runnable = model.bind_tools(
            [schema], tool_choice=name, strict=strict, parallel_tool_calls=False, **told
        )
    elif method == "json_schema":
        described = convert_to_json_schema(schema, strict=strict)
        form = {"name": described["title"], "schema": described, "strict": strict}
        asking = model.bind(response_format={"type": method, "json_schema": form}, **told)
    elif method == "json_mode":
        asking = model.bind(response_format={"type": "json_object"}, **told)
    else:
        raise ValueError(f"with_structured_output knows no method {method!r}")
    parser = RunnableGenerator(_whole, _awhole) | parser
    if not include_raw:
        return asking | parser
    read = RunnablePassthrough.assign(
        parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
    )
    unread = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=asking) | read.with_fallbacks([unread], exception_key="parsing_error")


def _whole(parts: Iterator[AIMessage]) -> Iterator[AIMessage]:
    """Messages as they come. Raises OutputParserException for one that max_tokens cut short.

    LangChain's parsers complete half an object to one that nobody wrote.
    """
    for part in parts:
        yield part
        _check_whole(part)


async def _awhole(parts: AsyncIterator[AIMessage]) -> AsyncIterator[AIMessage]:
    """`_whole` for asyncio."""
    async for part in parts:
        yield part
        _check_whole(part)


def _check_whole(part: AIMessage) -> None:
    if part.response_metadata.get("finish_reason") == "length":
        raise OutputParserException(
            "the answer reached max_tokens before its object was complete; raise max_tokens",
            llm_output=part.text if isinstance(part.text, str) else None,
        )
