"""One answer followed through a grammar that llguidance compiled."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agentspec.backends.base import Tokenizer
from agentspec.errors import InvalidRequestError, MissingExtraError, UnsupportedError

_LIMITS = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 5_000,
    # symbols are numbered in 16 bits, and more of them end in a panic
    "max_grammar_size": 50_000,
    # up to 2 kB each: a hostile pattern may not take more than 100 MB
    "max_lexer_states": 50_000,
    # the verbose ones quote the schema and the answer so far, and messages end in logs
    "verbose_errors": False,
}


class GrammarConstraint:
    """Follows one answer through a grammar; a `Constraint` of agentspec.types.

    `mask` is bool [vocab_size]; ids beyond the tokenizer's vocabulary (padding) are never
    allowed. Where the grammar forces bytes that the tokenizer writes one way only, the mask
    leaves that one token. Once the grammar is complete only the end of the answer is allowed.
    `notes` say which parts of a schema hold nothing.
    """

    def __init__(
        self, matcher: Any, tokenizer: Tokenizer, vocab_size: int, notes: tuple[str, ...] = ()
    ) -> None:
        self._matcher = matcher
        # The matcher encodes forced text with it, so it must live as long.
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._ends = tokenizer.eos_ids
        self._ended = False
        self._packed: npt.NDArray[np.uint8] | None = None  # of this state, once asked for
        self.notes = notes

    def fork(self) -> GrammarConstraint:
        copy = GrammarConstraint(
            self._matcher.deep_copy(), self._tokenizer, self._vocab_size, self.notes
        )
        copy._ended = self._ended
        copy._packed = self._packed
        return copy

    @property
    def finished(self) -> bool:
        # a matcher that failed is stopped too, and has not come to the end of anything
        return self._ended or (self._matcher.is_stopped() and not self._matcher.is_error())

    def mask(self) -> npt.NDArray[np.bool_]:
        if self.finished:
            allowed = np.zeros(self._vocab_size, dtype=np.bool_)
            allowed[self._last()] = True
            return allowed
        bits = np.unpackbits(self._bits(), count=None, bitorder="little")[: self._vocab_size]
        if len(bits) < self._vocab_size:
            bits = np.concatenate([bits, np.zeros(self._vocab_size - len(bits), dtype=np.uint8)])
        return bits.view(np.bool_)

    def only(self) -> int | None:
        if self.finished:
            last = self._last()
            return last[0] if len(last) == 1 else None
        packed = self._bits()
        wide = packed[: len(packed) // 4 * 4].view(np.uint32)
        if np.count_nonzero(wide) > 1:  # a tenth of the time that all bytes take
            return None
        places = np.flatnonzero(packed)
        if len(places) != 1:
            return None
        byte = int(packed[places[0]])
        token = int(places[0]) * 8 + byte.bit_length() - 1
        return token if byte & (byte - 1) == 0 and token < self._vocab_size else None

    def forced(self, most: int) -> tuple[int, ...]:
        if most < 1 or self._ended:
            return ()
        run: list[int] = []
        probe = self
        if not self.finished:
            run = [t for t in self._matcher.compute_ff_tokens() if t < self._vocab_size][:most]
            self._check()
            if not run:
                # a mask may leave one token where the text goes several ways
                only = self.only()
                run = [] if only is None else [only]
            probe = self.fork()
            for i, token in enumerate(run):
                if probe.only() != token:
                    return tuple(run[:i])
                probe.advance(token)
        if len(run) < most and probe.finished and not probe._ended:
            last = probe.only()
            run += [] if last is None else [last]
        return tuple(run)

    def advance(self, token: int) -> None:
        if self._ended:
            raise InvalidRequestError(f"token {token} comes after the end of the grammar")
        if token in self._ends and (self.finished or self._matcher.is_accepting()):
            self._ended = True
            return
        if self.finished:
            raise InvalidRequestError(f"token {token} comes after the end of the grammar")
        # Asked first: a matcher that was fed a wrong token stays broken.
        valid = self._matcher.validate_tokens([token]) == 1
        self._packed = None
        if not valid or not self._matcher.consume_token(token):
            if valid or self._matcher.is_error():
                self._check()
            raise InvalidRequestError(f"token {token} is not allowed by the grammar here")

    def valid_prefix(self, tokens: Sequence[int]) -> int:
        if not tokens:
            return 0
        if self.finished:
            return int(not self._ended and tokens[0] in self._ends)
        valid = max(0, int(self._matcher.validate_tokens(list(tokens))))
        end = next((i for i, t in enumerate(tokens) if t in self._ends), None)
        # Nothing follows the end of an answer.
        return valid if end is None else min(valid, end + 1)

    def _last(self) -> list[int]:
        """The ids that end an answer, the vocabulary's own one alone where it names one."""
        own = getattr(self._tokenizer, "eos_id", None)
        ends = [own] if own in self._ends else sorted(self._ends)
        return [i for i in ends if i < self._vocab_size]

    def _bits(self) -> npt.NDArray[np.uint8]:
        if self._packed is None:
            packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            self._check()
            if not packed.any():
                raise UnsupportedError("the grammar allows no token of this vocabulary here")
            self._packed = packed
        return self._packed

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UnsupportedError(
                f"the grammar is too complex to follow: {first_line(self._matcher.get_error())}"
            )


class Vocabulary:
    """What is kept per tokenizer: llguidance's trie and the special pieces by text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        llguidance = library()
        size = tokenizer.vocab_size
        pieces = [tokenizer.piece(i) for i in range(size)]
        special = [i for i in range(size) if tokenizer.is_special(i)]
        self.specials = {pieces[i]: i for i in special if pieces[i]}
        eos = sorted(tokenizer.eos_ids)
        if not eos:
            raise UnsupportedError("the vocabulary names no token that ends an answer")
        wrapper = _Wrapper(pieces, special, eos[0], weakref.ref(tokenizer))
        self.tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(wrapper), n_vocab=size, eos_token=eos
        )

    def special(self, text: str) -> int | None:
        """The id of a special piece, None when the vocabulary has none of this text."""
        return self.specials.get(text.encode())


class _Wrapper:
    """The attributes that llguidance reads.

    Text is encoded by the engine's own tokenizer: llama.cpp's turns a spelled-out `<tool_call>`
    into the one special token even in plain text, and llguidance then offers a token that its
    own grammar refuses.
    """

    bos_token_id = None

    def __init__(
        self,
        pieces: list[bytes],
        special: list[int],
        eos_id: int,
        tokenizer: weakref.ref[Tokenizer],
    ) -> None:
        self.tokens = pieces
        self.special_token_ids = special
        self.eos_token_id = eos_id
        # Weak: the trie is cached under the tokenizer and must not keep it alive.
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        tokenizer = self._tokenizer()
        assert tokenizer is not None
        return tokenizer.encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))


_vocabularies: weakref.WeakKeyDictionary[Tokenizer, Vocabulary] = weakref.WeakKeyDictionary()
_building = threading.Lock()


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """The tokenizer's vocabulary for llguidance, built once (about a second for 150k ids)."""
    with _building:
        known = _vocabularies.get(tokenizer)
        if known is None:
            known = _vocabularies[tokenizer] = Vocabulary(tokenizer)
        return known


def library() -> Any:
    """llguidance. Raises MissingExtraError."""
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtraError("llguidance", "llama") from error
    return llguidance


def compile_lark(
    lark: str,
    tokenizer: Tokenizer,
    vocab_size: int | None,
    param: str,
    notes: tuple[str, ...] = (),
) -> GrammarConstraint:
    """The constraint of a Lark grammar, its first mask computed. Raises InvalidRequestError."""
    llguidance = library()
    matcher_of = llguidance.LLMatcher
    matcher = matcher_of(
        vocabulary(tokenizer).tokenizer,
        matcher_of.grammar_from_lark(lark),
        log_level=0,
        limits=llguidance.LLParserLimits(**_LIMITS),
    )
    if not matcher.is_error() and not matcher.is_stopped():
        # much of what is wrong or too large shows only now, and after the first token it is late
        matcher.compute_bitmask()
    if matcher.is_error():
        raise InvalidRequestError(
            f"{param} cannot be compiled: {first_line(matcher.get_error())}", param=param
        )
    size = tokenizer.vocab_size if vocab_size is None else vocab_size
    return GrammarConstraint(matcher, tokenizer, size, notes)


def problems(grammar: str) -> tuple[bool, list[str]]:
    """Whether llguidance refuses a grammar, and its messages, without a vocabulary."""
    llguidance = library()
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(
        grammar, limits=llguidance.LLParserLimits(**_LIMITS)
    )
    return bool(failed), [first_line(message) for message in messages]


def first_line(text: str) -> str:
    """llguidance's message in one line of at most 300 characters."""
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    if not lines:
        return "unknown problem"
    # A regex error spans several lines, the last of which says what is wrong.
    last = next((line for line in lines if line.startswith("error:")), "")
    first = "nothing can follow" if lines[0].startswith("NoExtension") else lines[0]
    return f"{first} {last}".strip()[:300]
