"""Recorded sessions in the ids of a model's vocabulary, from files on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentspec.backends.base import Tokenizer
from agentspec.replay.chatml import ChatEncoder, Tokens
from agentspec.replay.logs import FORMS, detect, read_logs
from agentspec.replay.recording import Recording, read_recordings, read_sample, trace_files
from agentspec.replay.store import ArrayStore
from agentspec.replay.tokenised import tokenise


@dataclass(frozen=True)
class Vocabulary:
    """Opens the tokenizer of a model file, here or in another process."""

    path: Path

    def __call__(self) -> Tokenizer:
        from agentspec.backends.llama_vocab import open_vocabulary

        return open_vocabulary(self.path)

    def identity(self) -> str:
        from agentspec.backends.llama_vocab import file_identity

        return file_identity(self.path)


def vocabulary_of(model: str | None) -> Vocabulary:
    """The vocabulary of a catalog entry or GGUF file.

    By default that of the catalog's pair, else that of the largest target on disk. Raises
    ModelNotFoundError.
    """
    from agentspec.models import catalog

    if model is not None:
        return Vocabulary(catalog.resolve(model).path)
    # any size of the family has the same vocabulary
    on_disk = (catalog.locate(catalog.entry(f"qwen2.5-coder-{n}b")) for n in ("1.5", "0.5"))
    path = next((p for p in on_disk if p is not None), None)
    return Vocabulary(path or catalog.default_target().path)


def read_sessions(
    files: Sequence[Path],
    vocabulary: Vocabulary,
    store: ArrayStore,
    *,
    sample: Path | None = None,
    leave: Path | None = None,
    form: str | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> list[Tokens]:
    """The sessions of these files in ids; of `sample` only, or all but those of `leave`.

    Without files, those that lie beside the sample file and that it names. Files and folders may
    be logs of the format `form`, else it is told by looking; `note` hears what was left out of
    them. Raises InvalidRequestError naming file and line.
    """
    chosen = read_sample(sample) if sample is not None else None
    if chosen is not None and sample is not None and not files:
        files = [sample.parent / name for name in dict.fromkeys(name for name, _ in chosen)]
    recordings: list[Recording] = []
    logs: dict[str, list[Path]] = {}
    for path in files if chosen is None else ():
        known = FORMS[form] if form is not None else detect(path)
        if known is not None:
            logs.setdefault(known.name, []).append(path)
    for name, paths in logs.items():
        found = read_logs(paths, FORMS[name])
        recordings += found.recordings
        for line in found.notes:
            note(line)
    read = {path for paths in logs.values() for path in paths}
    traces = [path for path in files if path not in read]
    if traces or not recordings:
        recordings += read_recordings(trace_files(traces), chosen)
    left = set(read_sample(leave)) if leave is not None else set()
    recordings = [r for r in recordings if (r.where.rpartition(":")[0], r.id) not in left]
    return tokenise(recordings, lambda: ChatEncoder(vocabulary()), vocabulary.identity(), store)
