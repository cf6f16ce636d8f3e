"""What the proposer knows of vLLM: how it is called, and what vLLM reads texts with."""

from __future__ import annotations

import ast
import inspect
import logging
import sys
import textwrap
from collections.abc import Set
from typing import Any

from agentspec.backends.base import Tokenizer
from agentspec.errors import ConfigError, line_of

_log = logging.getLogger(__name__)

TRIED = "0.32.0"
"""The version of vLLM whose interface this is."""
MOST_VERIFIED = 128
"""Tokens of a draft that its runner verifies; it ends at one that is longer."""

_CALL = (
    "sampled_token_ids",
    "self.input_batch.num_tokens_no_spec",
    "self.input_batch.token_ids_cpu",
    "slot_mappings=slot_mappings",
)


def check_interface() -> None:
    """Raises ConfigError, naming the versions, where vLLM calls a proposer in another way.

    Nothing is asked where vLLM is not running.
    """
    vllm = sys.modules.get("vllm")
    runner = sys.modules.get("vllm.v1.worker.gpu_model_runner")
    if vllm is None:
        return
    version = str(getattr(vllm, "__version__", "unknown"))
    try:
        source = inspect.getsource(runner.GPUModelRunner.propose_draft_token_ids)  # type: ignore[union-attr]
        call = _call_in(source)
    except (AttributeError, OSError, TypeError, SyntaxError):
        call = None
    if call != _CALL:
        how = f"with ({', '.join(call)})" if call else "nowhere that could be found"
        raise ConfigError(
            f"this proposer is made for vLLM {TRIED}; vLLM {version} calls one {how}: "
            f"install vllm=={TRIED}, or an agentspec that knows vLLM {version}"
        )
    if version.split(".")[:2] != TRIED.split(".")[:2]:
        _log.warning("vLLM %s calls proposers as %s does, but was not tried", version, TRIED)


def _call_in(source: str) -> tuple[str, ...] | None:
    """The arguments with which a custom class is asked for drafts."""
    for branch in ast.walk(ast.parse(textwrap.dedent(source))):
        if not isinstance(branch, ast.If) or "'custom_class'" not in ast.unparse(branch.test):
            continue
        for node in (inner for statement in branch.body for inner in ast.walk(statement)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "propose"
            ):
                return tuple(map(ast.unparse, (*node.args, *node.keywords)))
    return None


def tokenizer_of(model: Any) -> tuple[Tokenizer | None, str | None]:
    """What vLLM reads texts with and the chat template, None where it is not of the Rust library.

    Without it drafts come from earlier text alone.
    """
    if "vllm" not in sys.modules:
        return None, None
    from agentspec.backends.torch_tokenizer import TorchTokenizer

    try:
        from vllm.tokenizers import cached_tokenizer_from_config

        given = cached_tokenizer_from_config(model)
        if given is None:
            return None, None
        made = TorchTokenizer(given, vocab_size=model.get_vocab_size(), eos_ids=ends_of(model))
    except Exception as error:  # whatever such tokenizers raise: drafts can do without one
        _log.warning("drafts come from earlier text alone: %s", line_of(error))
        return None, None
    template = getattr(given, "chat_template", None)
    return made, template if isinstance(template, str) else None


def ends_of(model: Any) -> Set[int]:
    """The ids that end an answer, as the model's configuration says."""
    told = getattr(getattr(model, "hf_config", None), "eos_token_id", None)
    ids = told if isinstance(told, list) else [told]
    return frozenset(token for token in ids if isinstance(token, int))
