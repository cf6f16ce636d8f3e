"""Values that travel through the engine: drafts, verdicts, sampling settings, protocols.

The OpenAI-shaped request and response models are in `agentspec.wire`.
p is the target's distribution, q the draft's, everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from agentspec.errors import InvalidRequestError

FloatArray = npt.NDArray[np.float32] | npt.NDArray[np.float64]
_T = TypeVar("_T")
FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a proposer knew about its draft *before* any of its tokens was sampled.

    `match_length` is in tokens, `occurrences` counts the places that matched, `confidence[j]` is
    max(q) at position j: a function of committed and earlier drafted tokens only, so a controller
    may truncate by it without changing the law of the output.

    Of deterministic drafts, per token: `features` are slots of the learned acceptance
    (`control.survival`), `classes` names of the token's syntax class.

    The first `taken` tokens are from the draft this one goes on behind. `passes` are the rows of
    each pass that drafting cost.
    """

    match_length: int = 0
    occurrences: int = 0
    confidence: tuple[float, ...] = ()
    features: tuple[tuple[int, ...], ...] = ()
    classes: tuple[str, ...] = ()
    taken: int = 0
    passes: tuple[int, ...] = ()

    def select(self, nodes: Sequence[int]) -> Evidence:
        """The same about a draft of which only these tokens are left."""

        def of(known: tuple[_T, ...]) -> tuple[_T, ...]:
            return tuple(known[j] for j in nodes) if nodes and nodes[-1] < len(known) else ()

        return replace(
            self,
            confidence=of(self.confidence),
            features=of(self.features),
            classes=of(self.classes),
            taken=sum(j < self.taken for j in nodes),
        )


NO_EVIDENCE = Evidence()


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposed run of tokens: a chain, or a tree when `parents` is given.

    `sources[j]` names the proposer of token j; `q[j]` is the distribution [vocab] it was sampled
    from, or None when it was chosen deterministically (q is one-hot). `parents[j]` < j is the
    token that token j follows, -1 the committed text; a tree that does not branch is a chain and
    has `parents` None. Only deterministic drafts are verified as trees.
    """

    tokens: tuple[int, ...]
    sources: tuple[str, ...]
    q: tuple[FloatArray | None, ...]
    parents: tuple[int, ...] | None = None
    evidence: Evidence = NO_EVIDENCE

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.sources) == len(self.q)
        if self.parents is not None:
            assert len(self.parents) == len(self.tokens)
            assert all(-1 <= parent < j for j, parent in enumerate(self.parents))
            if all(parent == j - 1 for j, parent in enumerate(self.parents)):
                object.__setattr__(self, "parents", None)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def deterministic(self) -> bool:
        """True when no token was sampled, so any rule may truncate or drop the draft."""
        return all(row is None for row in self.q)

    @property
    def depths(self) -> Sequence[int]:
        """How many draft tokens each token follows, [len]."""
        if self.parents is None:
            return range(len(self.tokens))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return depths

    @property
    def children(self) -> Sequence[Sequence[int]]:
        """`children[j + 1]` are the tokens that follow token j, `children[0]` the first ones."""
        if self.parents is None:
            n = len(self.tokens)
            return [*((j,) for j in range(n)), ()]
        found: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for j, parent in enumerate(self.parents):
            found[parent + 1].append(j)
        return found

    @classmethod
    def chain(cls, tokens: Sequence[int], source: str, evidence: Evidence = NO_EVIDENCE) -> Draft:
        """A deterministic chain from one proposer."""
        n = len(tokens)
        return cls(tuple(tokens), (source,) * n, (None,) * n, evidence=evidence)

    def truncate(self, k: int) -> Draft:
        """The first k tokens; of a tree too, whose parents come before their children.

        The caller must not choose k by the value of a sampled token that is cut off
        (q not None): that would change the law of the output.
        """
        if k >= len(self.tokens):
            return self
        if self.parents is not None:
            return self.select(range(k))
        return Draft(self.tokens[:k], self.sources[:k], self.q[:k], evidence=self.evidence)

    def select(self, nodes: Iterable[int]) -> Draft:
        """The tree of these tokens, in their order; whatever stands behind another is left out.

        The draft must be deterministic: tokens are dropped by any rule.
        """
        assert self.deterministic
        place = {-1: -1}
        kept: list[int] = []
        parents = self.parents or range(-1, len(self.tokens) - 1)
        for j in sorted(nodes):
            if parents[j] in place:
                place[j] = len(kept)
                kept.append(j)
        return Draft(
            tuple(self.tokens[j] for j in kept),
            tuple(self.sources[j] for j in kept),
            (None,) * len(kept),
            tuple(place[parents[j]] for j in kept),
            self.evidence.select(kept),
        )

    def with_leaves(self, most: int) -> Draft:
        """The tree without the tokens, in their order, that would give it more leaves."""
        if self.parents is None:
            return self
        inner: set[int] = set()  # what a kept token follows
        known, kept, leaves = {-1}, [], 0
        for j, parent in enumerate(self.parents):
            branches = parent in inner
            if parent in known and leaves + branches <= most:
                leaves += branches or parent < 0
                inner.add(parent)
                known.add(j)
                kept.append(j)
        return self.select(kept)

    def as_chain(self) -> Draft:
        """The first chain from the committed text to a leaf: what a backend without trees takes."""
        return self.with_leaves(1)


EMPTY_DRAFT = Draft((), (), ())

SKIP = Draft((), (), ())
"""Sent in the place of a draft: the next proposer is not asked."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one target pass decided.

    `tokens` are the tokens committed by the step: the accepted draft tokens, then the recovered
    or bonus token unless generation ended inside the accepted run. `accepted` counts draft tokens
    that were committed, `path` are their indices in text order; a chain's are filled in. `judged`
    counts the draft tokens that were compared with the target, `compared` in a tree: those behind
    a rejection or behind the end of the text say nothing.
    """

    draft: Draft
    tokens: tuple[int, ...]
    accepted: int
    judged: int
    finish: FinishReason | None = None
    path: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.path and self.accepted:
            assert self.draft.parents is None
            object.__setattr__(self, "path", tuple(range(self.accepted)))
        assert len(self.path) == self.accepted

    @classmethod
    def of(
        cls, draft: Draft, tokens: Sequence[int], path: Sequence[int], finish: FinishReason | None
    ) -> Verdict:
        """The verdict of a step that committed `tokens`, the first of them the draft's `path`."""
        judged = len(_compared(draft, tokens, path))
        return cls(draft, tuple(tokens), len(path), judged, finish, tuple(path))

    @property
    def compared(self) -> Sequence[int]:
        """Indices of the draft tokens that the target was asked about: all that follow the
        committed text or an accepted token behind which another one was drawn."""
        return _compared(self.draft, self.tokens, self.path)

    @property
    def sources(self) -> tuple[str, ...]:
        """The proposer of each accepted token, in text order."""
        return tuple(self.draft.sources[j] for j in self.path)


def _compared(draft: Draft, tokens: Sequence[int], path: Sequence[int]) -> Sequence[int]:
    if draft.parents is None:
        return range(min(len(tokens), len(draft)))
    drawn_behind = {-1, *path[: len(tokens) - 1]} if tokens else set()
    return [j for j, parent in enumerate(draft.parents) if parent in drawn_behind]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn from the target's logits.

    Applied in this order: logit bias, repetition / frequency / presence penalties, constraint
    mask, temperature, top-k, top-p, min-p. temperature 0 is greedy. top_k 0, top_p 1 and min_p 0
    are off. Raises InvalidRequestError for values that have no meaning.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    """None: off. n >= 0: log-probability of each token and of the n best alternatives."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 1e-3, 1e3),
            ("presence_penalty", -100.0, 100.0),
            ("frequency_penalty", -100.0, 100.0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InvalidRequestError(f"{name} must be a number, not {value!r}", param=name)
            # a whole number too large for a float is finite too
            if value != value or not low <= value <= high:
                raise InvalidRequestError(
                    f"{name} must be a finite number between {low:g} and {high:g}, not {value!r}",
                    param=name,
                )
        if self.top_p == 0.0:
            raise InvalidRequestError(
                "top_p must be above 0; use temperature=0 for greedy decoding", param="top_p"
            )
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise InvalidRequestError(
                f"top_k must be a whole number >= 0 (0 = off), not {self.top_k!r}", param="top_k"
            )
        if self.seed is not None and (
            isinstance(self.seed, bool) or not isinstance(self.seed, int)
        ):
            raise InvalidRequestError(
                f"seed must be a whole number, not {self.seed!r}", param="seed"
            )
        if self.logprobs is not None and (
            isinstance(self.logprobs, bool)
            or not isinstance(self.logprobs, int)
            or not 0 <= self.logprobs <= 100
        ):
            raise InvalidRequestError(
                f"logprobs must be between 0 and 100, not {self.logprobs!r}", param="logprobs"
            )
        for token, bias in self.logit_bias.items():
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise InvalidRequestError(
                    f"logit_bias keys must be token ids, not {token!r}", param="logit_bias"
                )
            if isinstance(bias, bool) or not isinstance(bias, (int, float)) or bias != bias:
                raise InvalidRequestError(
                    f"logit_bias of token {token} must be a number, not {bias!r}",
                    param="logit_bias",
                )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def reshapes(self) -> bool:
        """True when logits change before the arg-max is taken (penalties or bias)."""
        return bool(
            self.logit_bias
            or self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
        )


@dataclass(frozen=True, slots=True)
class CallShape:
    """How a family of models writes tool calls, as text.

    An answer with calls is `before`, then calls joined by `between`, then `after`; a call is
    `opening` NAME `middle` ARGUMENTS `closing`. The arguments are a JSON object in style "json".
    In the styles "xml" and "pythonic" they are `argument_between`-joined arguments, each
    `argument[0]` KEY `argument[1]` VALUE `argument[2]`: in "xml" the value of a string is its
    text as it is and any other value is JSON, in "pythonic" the value is a Python literal.
    """

    opening: str
    middle: str
    closing: str
    between: str = ""
    before: str = ""
    after: str = ""
    style: Literal["json", "xml", "pythonic"] = "json"
    argument: tuple[str, str, str] = ("", "", "")
    argument_between: str = ""


HERMES = CallShape('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", between="\n")
"""The calls of Qwen 2.5, Hermes and kin, and of models that have no format of their own."""


class Chance(Protocol):
    """Where the engine's random decisions come from.

    Production draws uniforms; tests enumerate every outcome with its weight, so the law of a
    whole step can be computed exactly.
    """

    def categorical(self, weights: FloatArray, position: int) -> int:
        """Index drawn with probability weights[i] / sum(weights), for the text position."""
        ...

    def bernoulli(self, probability: float, position: int) -> bool:
        """True with the given probability, independent of `categorical` at that position."""
        ...

    def draft(self, weights: FloatArray) -> int:
        """Index drawn with probability weights[i] / sum(weights), for a draft token."""
        ...


class Constraint(Protocol):
    """A grammar that says which tokens may come next; one object follows one answer."""

    def fork(self) -> Constraint: ...

    def mask(self) -> npt.NDArray[np.bool_]:
        """True where the token is allowed next, [vocab]."""
        ...

    def only(self) -> int | None:
        """The token that the mask leaves alone, None where it leaves several."""
        ...

    def forced(self, most: int) -> tuple[int, ...]:
        """At most `most` tokens, each the only one that is allowed when those before it came."""
        ...

    def advance(self, token: int) -> None:
        """Follow a committed token. Raises InvalidRequestError when it was not allowed."""
        ...

    def valid_prefix(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` the grammar allows from here, in order."""
        ...

    @property
    def finished(self) -> bool:
        """True when the grammar allows nothing but the end of the text."""
        ...


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What proposers may see when a turn begins: nothing of the answer itself.

    `tokens` is the prompt; `context` are token runs that the answer may repeat (files, an
    expected output), each with the source name it is to be reported under.
    """

    tokens: Sequence[int]
    sampling: SamplingParams
    chance: Chance
    context: Sequence[tuple[str, Sequence[int]]] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    """The tools' schemas in OpenAI shape."""
    cancelled: Callable[[], bool] = lambda: False
    """Whether nobody wants the answer any more; who works for long asks between its passes."""


class Proposer(Protocol):
    """Proposes drafts; never decides whether they are used.

    `observe` is called after every step, also when another's draft was used.
    """

    @property
    def name(self) -> str: ...

    def begin(self, turn: TurnContext) -> None: ...

    def propose(self, max_tokens: int) -> Draft: ...

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None: ...

    def end(self) -> None: ...


@runtime_checkable
class Continuing(Protocol):
    """A proposer that can go on behind the draft of another."""

    def go_on(self, behind: Draft, max_tokens: int) -> Draft:
        """A draft that begins with as much of `behind`, a deterministic chain, as it trusts."""
        ...
