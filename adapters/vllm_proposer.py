"""agentspec's lookup as a proposer of vLLM, which verifies its drafts.

    vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 8,
        "model": "agentspec.adapters.vllm_proposer.AgentSpecProposer"}'

Only drafting is done here; accepting is vLLM's own. With a custom class vLLM takes its V1 runner
and turns asynchronous scheduling off.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from agentspec.adapters.vllm_interface import (
    MOST_VERIFIED,
    check_interface,
    ends_of,
    tokenizer_of,
)
from agentspec.adapters.vllm_price import RowPrice
from agentspec.adapters.vllm_texts import Row, Text, Texts
from agentspec.adapters.vllm_tools import tools_in
from agentspec.backends.base import Tokenizer
from agentspec.chat.tools.formats import detect
from agentspec.context.habits import habit_index
from agentspec.context.index import TokenIndex
from agentspec.context.shapes import Shapes
from agentspec.context.skeleton import Skeleton
from agentspec.control.prior import Prior
from agentspec.control.survival import Survival
from agentspec.errors import line_of
from agentspec.propose.lookup import Lookup
from agentspec.types import Draft

_log = logging.getLogger(__name__)

_UNSAID: Any = object()
_MOST_READ = 1 << 16
_TOOK_RATE = 0.05
_ASK_FIRST, _ASK_EVERY = 4, 16
_OUTLIER = 4.0
_MOST_FAULTS = 8


class AgentSpecProposer:
    """Drafts what the request's own text suggests, for each row of a batch.

    Candidates are all earlier places of the text, what tools returned in the shape a call quotes
    it in, and the fixed parts of the calls that the tools in the prompt allow. Drafts are at most
    `num_speculative_tokens` long, shorter where their tokens would cost more than they give
    (`RowPrice`), and deterministic. A row whose drafts give less than the whole batch does in the
    time that one takes is asked for one now and then.

    State is kept by what a row says (`Texts`), since rows have no names. A row for which anything
    fails is left without a draft, said once; an answer is never ended by it. Where whole steps
    fail, drafting ends.

    Raises ConfigError where the installed vLLM calls a proposer in another way than 0.32.
    """

    def __init__(
        self,
        vllm_config: Any,
        *,
        tokenizer: Tokenizer | None = _UNSAID,
        prior: Prior | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        check_interface()
        model = vllm_config.model_config
        self._k = min(int(vllm_config.speculative_config.num_speculative_tokens), MOST_VERIFIED)
        self._most = int(model.max_model_len)
        self._vocab = int(model.get_vocab_size())
        self._clock = clock
        self._left = clock()
        self._took = 0.0  # seconds that a draft takes
        self._warned = False
        self._faults = 0
        self._price = RowPrice()
        prior = prior or Prior.shipped("plain")
        self._survival = Survival(prior)
        template = None
        if tokenizer is _UNSAID:
            tokenizer, template = tokenizer_of(model)
        self._tokenizer = tokenizer
        ends = tokenizer.eos_ids if tokenizer is not None else ends_of(model)
        shape = detect(template or "").shape
        habits: TokenIndex | None = None

        def look() -> Lookup:
            known = self._tokenizer
            return Lookup(
                self._survival.chance,
                least=lambda: min(1.0, self._price.least()),
                ends=ends,
                shapes=Shapes(known) if known is not None else None,
                skeleton=Skeleton(known, shape) if known is not None else None,
                habits=habits,
            )

        if tokenizer is not None:
            try:
                habits = habit_index(prior.habits, tokenizer)
                look()
                self._tools((0,))
            except Exception as error:  # vLLM would not start for it
                _log.warning("drafts come from earlier text alone: %s", line_of(error))
                self._tokenizer = habits = None
        self.texts = Texts(look, self._tools)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There is none."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: np.ndarray[Any, Any],
        token_ids_cpu: np.ndarray[Any, Any],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """A draft for each row, [len(sampled_token_ids)], empty where nothing pays.

        `sampled_token_ids[i]` are the tokens that the last pass gave row i, none while its prompt
        is read; `num_tokens_no_spec` [rows] counts all its tokens, the sampled ones included, and
        `token_ids_cpu` [rows, max_model_len] holds them.
        """
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if self._faults == _MOST_FAULTS:
            return drafts
        entered = self._clock()
        try:
            self._fill(
                drafts, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, entered - self._left
            )
        except Exception as error:  # what is drafted already stands
            self._warn(error)
            self.texts.clear()
            self._faults += 1
            if self._faults == _MOST_FAULTS:
                _log.warning("there are no more drafts: %d steps failed", _MOST_FAULTS)
        self._left = self._clock()
        self._price.spent(self._left - entered)
        return drafts

    def _fill(
        self,
        drafts: list[list[int]],
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: np.ndarray[Any, Any],
        token_ids_cpu: np.ndarray[Any, Any],
        seconds: float,
    ) -> None:
        rows: dict[int, Row] = {}
        for i, sampled in enumerate(sampled_token_ids):
            n = int(num_tokens_no_spec[i])
            if sampled and len(sampled) < n < self._most and token_ids_cpu[i, n - 1] == sampled[-1]:
                rows[i] = Row(token_ids_cpu[i, :n], len(sampled))
        texts = self.texts.known(rows)
        if len(texts) == len(sampled_token_ids):
            self._learn_price(texts, rows, seconds)
        for i, row in rows.items():
            try:
                drafts[i] = self._draft(i, texts.get(i), row)
            except Exception as error:  # it can only cost speed
                self._warn(error)
                self.texts.mute(i, row)
        self.texts.trim()

    def _draft(self, i: int, text: Text | None, row: Row) -> list[int]:
        if text is None:
            text = self.texts.begin(i, row)
            if text is None:
                return []
        elif text.muted:
            text.mute(row)
            return []
        elif text.asked:
            drafted = text.drafted
            verdict = text.follow(row)
            self._survival.observe(drafted, verdict.accepted, verdict.judged)
        else:
            text.hold(row)
        poor = text.asks >= _ASK_FIRST and text.gain < self._price.worth(self._took)
        if poor and (self.texts.step + i) % _ASK_EVERY:
            return []
        draft = self._asked(text)
        tokens: list[int] = []
        if draft.tokens and self._survival.of(draft, 0) >= self._price.least():
            known = (0 <= token < self._vocab for token in draft.tokens)
            tokens = list(draft.tokens[: sum(takewhile(bool, known))])
        text.drafted, text.verified, text.asked = draft, len(tokens), True
        return tokens

    def _asked(self, text: Text) -> Draft:
        begun = self._clock()
        text.catch_up()
        draft = text.lookup.propose(min(self._k, self._most - len(text)))
        took = self._clock() - begun
        if self._took:
            # a pause of the machine is no cost of a draft
            took = min(took, _OUTLIER * self._took)
        self._took += (_TOOK_RATE if self._took else 1.0) * (took - self._took)
        return draft

    def _learn_price(
        self, texts: Mapping[int, Text], rows: Mapping[int, Row], seconds: float
    ) -> None:
        """What the pass took, when it held just the rows that the last drafts made."""
        made = tokens = 0
        for i, text in texts.items():
            if not text.steady:
                return
            made += 1 + text.verified
            tokens += rows[i].sampled
        self._price.observe(made, seconds, tokens)

    def _tools(self, tokens: Sequence[int]) -> Sequence[Mapping[str, Any]]:
        if self._tokenizer is None:
            return ()
        text = self._tokenizer.decode(tokens[:_MOST_READ]).decode("utf-8", "replace")
        return list(tools_in(text))

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            _log.warning("a request is answered without drafts: %s", line_of(error), exc_info=True)
        self._warned = True
