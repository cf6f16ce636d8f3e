"""Requests and answers in OpenAI's shape, and the checks that raw input must pass.

Importing this package imports pydantic; the package root imports it only on first use.
"""

from __future__ import annotations

from agentspec.wire.answers import (
    Choice,
    ChoiceDelta,
    Chunk,
    ChunkChoice,
    Completion,
    FunctionCallDelta,
    Headed,
    Logprobs,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
)
from agentspec.wire.checks import (
    MAX_DEPTH,
    check_json,
    check_unicode,
    parse_messages,
    parse_tool_choice,
    parse_tools,
)
from agentspec.wire.messages import (
    ROLES,
    Function,
    FunctionCall,
    Message,
    Role,
    Tool,
    ToolCall,
)
from agentspec.wire.model import (
    WireModel,
)
from agentspec.wire.statistics import (
    CompletionTokensDetails,
    PromptTokensDetails,
    SourceStats,
    SpeculationStats,
    Usage,
)

__all__ = [
    "MAX_DEPTH",
    "ROLES",
    "Choice",
    "ChoiceDelta",
    "Chunk",
    "ChunkChoice",
    "Completion",
    "CompletionTokensDetails",
    "Function",
    "FunctionCall",
    "FunctionCallDelta",
    "Headed",
    "Logprobs",
    "Message",
    "PromptTokensDetails",
    "Role",
    "SourceStats",
    "SpeculationStats",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "TopLogprob",
    "Usage",
    "WireModel",
    "check_json",
    "check_unicode",
    "parse_messages",
    "parse_tool_choice",
    "parse_tools",
]
