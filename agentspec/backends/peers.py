"""Draft policies of other libraries, called as they are, for comparison only."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

import numpy as np
import numpy.typing as npt

from agentspec.errors import MissingExtraError

Policy = Callable[[npt.NDArray[np.int32]], Sequence[int]]
"""All tokens so far to the drafted ones."""


def llama_cpp_prompt_lookup(*, max_ngram: int = 2, draft_tokens: int = 10) -> Policy:
    """llama-cpp-python's `LlamaPromptLookupDecoding`. Raises MissingExtraError."""
    try:
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
    except ImportError as error:
        raise MissingExtraError("llama-cpp-python", "llama") from error
    policy = LlamaPromptLookupDecoding(max_ngram_size=max_ngram, num_pred_tokens=draft_tokens)

    def ask(tokens: npt.NDArray[np.int32]) -> list[int]:
        drafted: list[int] = policy(tokens).tolist()
        return drafted

    return ask


def transformers_prompt_lookup(
    *, max_ngram: int = 3, draft_tokens: int = 10, eos_ids: Set[int] = frozenset()
) -> Policy:
    """transformers' `PromptLookupCandidateGenerator`. Raises MissingExtraError."""
    try:
        import torch
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator
    except ImportError as error:
        raise MissingExtraError("transformers with torch", "torch") from error
    policy = PromptLookupCandidateGenerator(
        eos_token_id=torch.tensor(sorted(eos_ids)) if eos_ids else None,
        num_output_tokens=draft_tokens,
        max_matching_ngram_size=max_ngram,
        max_length=2**31 - 1,
    )

    def ask(tokens: npt.NDArray[np.int32]) -> list[int]:
        ids = torch.from_numpy(tokens.astype(np.int64))[None]
        drafted: list[int] = policy.get_candidates(ids)[0][0, len(tokens) :].tolist()
        return drafted

    return ask
