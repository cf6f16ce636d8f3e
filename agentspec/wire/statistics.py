"""What an answer took: tokens, and what speculation did for it."""

from __future__ import annotations

from pydantic import Field

from agentspec.wire.model import WireModel


class PromptTokensDetails(WireModel):
    cached_tokens: int = 0


class CompletionTokensDetails(WireModel):
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    reasoning_tokens: int = 0


class Usage(WireModel):
    """Token counts; the details count reuse and speculation as OpenAI's clients read them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails = Field(default_factory=PromptTokensDetails)
    completion_tokens_details: CompletionTokensDetails = Field(
        default_factory=CompletionTokensDetails
    )


class SourceStats(WireModel):
    """Draft tokens of one proposer."""

    drafted: int = 0
    accepted: int = 0


class SpeculationStats(WireModel):
    """What speculation did for one answer; times in seconds.

    `acceptance_rate` is accepted / drafted, `acceptance_length` is tokens gained per target
    pass, the bonus token included, `accepted_per_position[j]` counts passes that accepted draft
    token j. `cached_tokens` are prompt tokens that were not read again. `tokens_per_second`
    counts generation without the prefill. `notes` say what was left out, and why;
    `explained` is a line per pass, where the request asked for it. `lossy` names the rule under
    which drafts were accepted when the text is not of the model's own distribution.
    """

    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    acceptance_rate: float = 0.0
    acceptance_length: float = 0.0
    accepted_per_position: list[int] = Field(default_factory=list)
    sources: dict[str, SourceStats] = Field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0
    tokens_per_second: float = 0.0
    notes: list[str] = Field(default_factory=list)
    explained: list[str] = Field(default_factory=list)
    lossy: str | None = None
