"""Whether a draft model fits its target: vocabulary, family, template, size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agentspec.doctor import Check, ok, warn
from agentspec.doctor.model_file import find

if TYPE_CHECKING:
    from agentspec.config import Settings

LARGEST_SHARE = 1 / 3
"""Of the target's weights; a draft model beyond that costs more than it can save."""


def find_draft(chosen: Settings) -> Path | None:
    """The draft model that the settings choose, or the catalog's pair has on disk.

    Raises ModelNotFoundError.
    """
    from agentspec.loading import NO_DRAFT
    from agentspec.models import catalog

    if chosen.draft == NO_DRAFT:
        return None
    if chosen.draft is not None:
        return catalog.resolve(chosen.draft, chosen.models_dir).path
    return find(chosen).draft


def pair(chosen: Settings) -> Iterator[Check]:
    from agentspec.backends.llama_vocab import open_vocabulary
    from agentspec.backends.pair import must_reencode
    from agentspec.loading import gpu_in_use
    from agentspec.models.gguf import read_header

    target, path = find(chosen), find_draft(chosen)
    if path is None:
        yield ok("draft", "none: drafts come from the text and the workspace")
        return
    if chosen.draft is None and not gpu_in_use(chosen):
        yield ok("draft", f"{path.name} is left unloaded: without a GPU it cannot pay")
        return
    ours, theirs = read_header(target.path), read_header(path)
    # vocabularies alone are read, no weights; a difference is an error of its own
    mine, its = open_vocabulary(target.path), open_vocabulary(path)
    if must_reencode(mine, its, allowed=chosen.draft_reencode):
        yield ok("draft", f"{path.name} has another vocabulary: its text is encoded again")
    else:
        yield ok("draft", f"{path.name} shares the target's vocabulary, token by token")
    share = sum(t.n_bytes or 0 for t in theirs.tensors) / max(
        sum(t.n_bytes or 0 for t in ours.tensors), 1
    )
    if share > LARGEST_SHARE:
        yield warn(
            "draft size",
            f"it has {share:.0%} of the target's weights: drafting costs more than it can save",
            "take a smaller one, or set draft to none",
        )
    if ours.architecture != theirs.architecture:
        yield warn(
            "draft family",
            "its architecture is not the target's: it may agree less often",
            "prefer a smaller model of the target's family",
        )
    elif ours.chat_template != theirs.chat_template:
        # prompts are made with the target's, so this costs acceptance at most
        yield ok("draft family", "the target's, though it was trained with another chat template")
    else:
        yield ok("draft family", "the target's, chat template included")
