"""Which family's format a model writes its calls in, by name or by its chat template."""

from __future__ import annotations

from types import MappingProxyType

from agentspec.chat.tools.base import CallFormat
from agentspec.chat.tools.deepseek import DeepSeek, DeepSeekV31
from agentspec.chat.tools.glm import Glm
from agentspec.chat.tools.harmony import Harmony
from agentspec.chat.tools.hermes_json import HermesJson
from agentspec.chat.tools.llama_json import LlamaJson
from agentspec.chat.tools.machine import Family
from agentspec.chat.tools.mistral import Mistral, MistralArgs
from agentspec.chat.tools.plain_json import PlainJson
from agentspec.chat.tools.pythonic import Lfm2, Pythonic
from agentspec.chat.tools.qwen_xml import QwenXml
from agentspec.errors import InvalidRequestError

_FAMILIES: tuple[type[Family], ...] = (
    HermesJson,
    QwenXml,
    LlamaJson,
    Pythonic,
    Lfm2,
    Mistral,
    MistralArgs,
    Harmony,
    DeepSeek,
    DeepSeekV31,
    Glm,
    PlainJson,
)
FORMATS = MappingProxyType({family.name: family for family in _FAMILIES})

# Texts of which a template holds all, the most telling first. A template spells the calls of the
# history, and often shows the model an example.
_SIGNS: tuple[tuple[type[Family], tuple[str, ...]], ...] = (
    (Harmony, ("<|channel|>", "<|message|>")),
    (MistralArgs, ("[TOOL_CALLS]", "[ARGS]")),
    (Mistral, ("[TOOL_CALLS]",)),
    (DeepSeek, ("<｜tool▁call▁begin｜>", "```json")),
    (DeepSeekV31, ("<｜tool▁call▁begin｜>",)),
    (Glm, ("<tool_call>", "<arg_key>")),
    (QwenXml, ("<function=", "<parameter=")),
    (HermesJson, ("<tool_call>",)),
    (Lfm2, ("<|tool_call_start|>",)),
    (Pythonic, ("[func_name1(",)),
    (Pythonic, ("[func1(",)),
    (LlamaJson, ("<|python_tag|>",)),
    (LlamaJson, ("<|python_start|>", '"parameters"')),
    (Pythonic, ("<|python_start|>",)),
    (LlamaJson, ("<|start_header_id|>", '"parameters"')),
)
_ARCHITECTURES: dict[str, type[Family]] = {"gpt-oss": Harmony, "gpt_oss": Harmony}


def by_name(name: str) -> CallFormat:
    """The format of that name. Raises InvalidRequestError, saying which there are."""
    family = FORMATS.get(name)
    if family is None:
        raise InvalidRequestError(
            f"there is no call format {name!r}; the formats are {', '.join(sorted(FORMATS))}",
            param="call_format",
        )
    return family()


def detect(template_source: str, architecture: str | None = None) -> CallFormat:
    """The format that a model's chat template spells; Hermes' where it spells none.

    `architecture` is the model file's, for templates that leave calls out. Models without a
    format of their own are shown Hermes', and its parser reads plain JSON too.
    """
    for family, signs in _SIGNS:
        if all(sign in template_source for sign in signs):
            return family()
    return _ARCHITECTURES.get((architecture or "").lower(), HermesJson)()
