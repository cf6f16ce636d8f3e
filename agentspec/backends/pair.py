"""Whether a draft model speaks the target's vocabulary."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentspec.backends.base import Tokenizer
from agentspec.backends.llama_tokenizer import LlamaTokenizer
from agentspec.errors import ModelError, PairMismatchError

_PADDING = re.compile(rb"|\[PAD_?\d+\]|<\|?(unused|pad|extra|reserved)[\w ]*\d+\|?>", re.IGNORECASE)
_SHOWN = 40
_SAMPLE = "Def f(x):\n    return 'é'"


def check_pair(target: Tokenizer, draft: Tokenizer) -> None:
    """Raise PairMismatchError, naming the first token that differs, unless ids mean the same.

    Compared are the texts of all ids, which of them are special or end an answer, and the BOS
    ids. Padding is passed over: unused ids of either side, and ids beyond the shorter vocabulary
    that are padding in the longer one (151,936 against 152,064 in the Qwen family).
    """
    # as the vocabulary writes them where both do, byte-level letters not undone: in bulk
    raw = isinstance(target, LlamaTokenizer) and isinstance(draft, LlamaTokenizer)
    ours, theirs = _texts(target, raw), _texts(draft, raw)
    for name, texts, others in (("target", ours, theirs), ("draft model", theirs, ours)):
        if any(others) and not any(texts):
            raise _mismatch(f"the file of the {name} has none")
    shared = min(len(ours), len(theirs))
    if ours[:shared] != theirs[:shared]:
        for token in range(shared):
            a, b = ours[token], theirs[token]
            if a != b and not _is_padding(target, token, a) and not _is_padding(draft, token, b):
                raise _mismatch(f"token {token} is {_show(a)} in the target, {_show(b)} in it")
    for name, tokenizer, texts in (("target", target, ours), ("draft model", draft, theirs)):
        for token in range(shared, len(texts)):
            if not _is_padding(tokenizer, token, texts[token]):
                raise _mismatch(f"token {token}, {_show(texts[token])}, is in the {name} only")
    ends = _first(target.eos_ids ^ draft.eos_ids)
    if ends is not None:
        name = "target" if ends in target.eos_ids else "draft model"
        raise _mismatch(
            f"token {ends}, {_show(_at(ours, ends))}, ends an answer of the {name} only"
        )
    for token in sorted(_special(target, ours) ^ _special(draft, theirs)):
        if token < shared and not (
            _is_padding(target, token, ours[token]) or _is_padding(draft, token, theirs[token])
        ):
            name = "target" if target.is_special(token) else "draft model"
            raise _mismatch(f"token {token}, {_show(ours[token])}, is special in the {name} only")
    first, second = getattr(target, "bos_id", None), getattr(draft, "bos_id", None)
    if first != second and None not in (first, second):
        raise _mismatch(f"the first token of a text is {first} in the target, {second} in it")


def must_reencode(target: Tokenizer, draft: Tokenizer, *, allowed: bool) -> bool:
    """Whether a draft model can draft only by its text, since its vocabulary is another.

    Raises PairMismatchError where that is not allowed, and what `check_texts` does.
    """
    try:
        check_pair(target, draft)
    except PairMismatchError as error:
        if not allowed:
            raise PairMismatchError(
                f"{error}, or set draft_reencode to draft by its text"
            ) from None
        check_texts(target, draft)
        return True
    return False


def check_texts(target: Tokenizer, draft: Tokenizer) -> None:
    """Raise PairMismatchError, naming the one it is, unless both take text and give it back."""
    for name, tokenizer in (("target", target), ("draft model", draft)):
        try:
            told = tokenizer.decode(tokenizer.encode(_SAMPLE))
        except ModelError:
            told = b""
        # some put a space before every text
        if told not in (_SAMPLE.encode(), b" " + _SAMPLE.encode()):
            raise PairMismatchError(
                f"the draft model cannot draft by its text: the vocabulary of the {name} gives "
                f"{_show(told)} for {_SAMPLE!r}; use a smaller model of the target's family"
            )


def _mismatch(what: str) -> PairMismatchError:
    return PairMismatchError(
        f"the draft model does not share the target's vocabulary: {what}; "
        "use a smaller model of the target's family"
    )


def _texts(tokenizer: Tokenizer, raw: bool) -> Sequence[bytes]:
    # piece by piece the largest vocabularies take a second, in bulk a tenth of it
    if raw and isinstance(tokenizer, LlamaTokenizer):
        return tokenizer.texts()
    return [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]


def _special(tokenizer: Tokenizer, texts: Sequence[bytes]) -> frozenset[int]:
    known: frozenset[int] | None = getattr(tokenizer, "special_ids", None)
    if known is not None:
        return known
    return frozenset(token for token in range(len(texts)) if tokenizer.is_special(token))


def _is_padding(tokenizer: Tokenizer, token: int, text: bytes) -> bool:
    if token in getattr(tokenizer, "unused_ids", ()):
        return True
    return _PADDING.fullmatch(text) is not None


def _first(tokens: frozenset[int]) -> int | None:
    return min(tokens, default=None)


def _at(texts: Sequence[bytes], token: int) -> bytes:
    return texts[token] if token < len(texts) else b""


def _show(text: bytes) -> str:
    shown = text.decode("utf-8", "replace")
    return repr(shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…")
