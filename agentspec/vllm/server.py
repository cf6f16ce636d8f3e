"""A server of vLLM to be: its models, how it drafts, and what was said of it."""

from __future__ import annotations

from dataclasses import dataclass

from agentspec.vllm.facts import ModelFacts
from agentspec.vllm.speculation import OLD_RUNNER, Speculation


@dataclass(frozen=True, slots=True)
class Server:
    """A server to be, as far as the rules look. Sizes are the numbers of GPUs.

    `flags` are those that were given, by name; `overridden` says that config.json is not the last
    word on the length of the context.
    """

    target: ModelFacts | None
    draft: ModelFacts | None
    speculation: Speculation
    tp: int = 1
    pp: int = 1
    dp: int = 1
    gpus: int | None = None
    context: int | None = None
    batch: int | None = None
    requests: int | None = None
    asynchronous: bool = False
    lora: bool = False
    flags: frozenset[str] = frozenset()
    overridden: bool = False
    dtype: str = "auto"
    kv_dtype: str = "auto"

    @property
    def old_runner(self) -> bool:
        more = self.speculation.more
        return self.speculation.method in OLD_RUNNER or bool(more.get("use_heterogeneous_vocab"))

    @property
    def expert_parts(self) -> int:
        """Into how many parts each expert is divided."""
        return 1 if "enable-expert-parallel" in self.flags else self.tp * self.dp
