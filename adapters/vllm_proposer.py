"""agentspec's lookup as a proposer of vLLM, which verifies its drafts.

    vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 8,
        "model": "agentspec.adapters.vllm_proposer.AgentSpecProposer"}'

Only drafting is done here; accepting is vLLM's own. With a custom class vLLM takes its V1 runner
and turns asynchronous scheduling off.
"""

from __future__ import annotations

import ast
import inspect
import json
import logging
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from agentspec.adapters.vllm_price import RowPrice
from agentspec.adapters.vllm_texts import Row, Text, Texts
from agentspec.backends.base import Tokenizer
from agentspec.chat.tools.formats import detect
from agentspec.context.habits import habit_index
from agentspec.context.shapes import Shapes
from agentspec.context.skeleton import Skeleton
from agentspec.control.prior import Prior
from agentspec.control.survival import Survival
from agentspec.errors import AgentspecError, ConfigError, line_of
from agentspec.propose.lookup import Lookup
from agentspec.types import EMPTY_DRAFT

_log = logging.getLogger(__name__)

TRIED = "0.32.0"
"""The version of vLLM whose interface this is."""

_CALL = (
    "sampled_token_ids",
    "self.input_batch.num_tokens_no_spec",
    "self.input_batch.token_ids_cpu",
    "slot_mappings=slot_mappings",
)
_UNSAID: Any = object()
_TOOL = re.compile(r'\{\s*"(?:type|name|function)"\s*:')
_MOST_TRIED = 512
_MOST_READ = 1 << 16


class AgentSpecProposer:
    """Drafts what the request's own text suggests, for each row of a batch.

    Candidates are all earlier places of the text, what tools returned in the shape a call quotes
    it in, and the fixed parts of the calls that the tools in the prompt allow. Drafts are at most
    `num_speculative_tokens` long, shorter where their tokens would cost more than they give
    (`RowPrice`), and deterministic.

    State is kept by what a row says (`Texts`), since rows have no names. A row for which anything
    fails is left without a draft, said once; an answer is never ended by it.

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
        self._k = int(vllm_config.speculative_config.num_speculative_tokens)
        self._most = int(model.max_model_len)
        self._vocab = int(model.get_vocab_size())
        self._clock = clock
        self._left = clock()
        self._warned = False
        self._price = RowPrice()
        prior = prior or Prior.shipped("plain")
        self._survival = Survival(prior)
        template = None
        if tokenizer is _UNSAID:
            tokenizer, template = _tokenizer(model)
        self._tokenizer = tokenizer
        habits = habit_index(prior.habits, tokenizer) if tokenizer is not None else None
        shape = detect(template or "").shape
        ends = tokenizer.eos_ids if tokenizer is not None else _ends(model)

        def look() -> Lookup:
            return Lookup(
                self._survival.chance,
                least=lambda: min(1.0, self._price.least()),
                ends=ends,
                shapes=Shapes(tokenizer) if tokenizer is not None else None,
                skeleton=Skeleton(tokenizer, shape) if tokenizer is not None else None,
                habits=habits,
            )

        self.texts = Texts(look, self._tools)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There is none; what is made on first use is made now."""
        self._tools((0,))

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
        seconds = self._clock() - self._left
        rows: dict[int, Row] = {}
        for i, sampled in enumerate(sampled_token_ids):
            n = int(num_tokens_no_spec[i])
            if sampled and len(sampled) < n < self._most and token_ids_cpu[i, n - 1] == sampled[-1]:
                rows[i] = Row(token_ids_cpu[i, :n], len(sampled))
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        texts = self.texts.known(rows)
        if len(texts) == len(sampled_token_ids):
            self._learn_price(texts, rows, seconds)
        for i, row in rows.items():
            text = texts.get(i)
            try:
                drafts[i] = self._draft(i, text, row)
            except Exception as error:  # it can only cost speed
                self._warn(error)
                if text is not None:
                    self.texts.drop(text)
        self.texts.trim()
        self._left = self._clock()
        return drafts

    def _draft(self, i: int, text: Text | None, row: Row) -> list[int]:
        if text is None:
            text = self.texts.begin(i, row)
            if text is None:
                return []
        else:
            drafted = text.drafted
            verdict = text.follow(row)
            self._survival.observe(drafted, verdict.accepted, verdict.judged)
        text.drafted, text.verified = EMPTY_DRAFT, 0
        draft = text.lookup.propose(min(self._k, self._most - len(text)))
        if not draft.tokens:
            return []
        text.drafted = draft
        if self._survival.of(draft, 0) < self._price.least():
            return []
        tokens = list(draft.tokens)
        alien = next((j for j, t in enumerate(tokens) if not 0 <= t < self._vocab), len(tokens))
        del tokens[alien:]
        text.verified = len(tokens)
        return tokens

    def _learn_price(
        self, texts: Mapping[int, Text], rows: Mapping[int, Row], seconds: float
    ) -> None:
        """What the pass took, when it held just the rows that the last drafts made."""
        made = tokens = 0
        for i, text in texts.items():
            new = len(rows[i].tokens) - len(text)
            if new > text.verified + 1 or not text.steady:
                return
            made += 1 + text.verified
            tokens += new
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


def tools_in(text: str) -> Iterator[Mapping[str, Any]]:
    """The tools' schemas, as templates show them to a model: JSON objects with a name."""
    decoder = json.JSONDecoder()
    at, tried = 0, 0
    while tried < _MOST_TRIED and (found := _TOOL.search(text, at)):
        at, tried = found.start() + 1, tried + 1
        try:
            value, end = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            continue
        function = value.get("function", value)
        if isinstance(function, Mapping) and isinstance(function.get("parameters"), Mapping):
            yield value
            at = end


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


def _tokenizer(model: Any) -> tuple[Tokenizer | None, str | None]:
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
        made = TorchTokenizer(given, vocab_size=model.get_vocab_size(), eos_ids=_ends(model))
    except (ImportError, AttributeError, AgentspecError) as error:
        _log.warning("drafts come from earlier text alone: %s", line_of(error))
        return None, None
    template = getattr(given, "chat_template", None)
    return made, template if isinstance(template, str) else None


def _ends(model: Any) -> Set[int]:
    told = getattr(getattr(model, "hf_config", None), "eos_token_id", None)
    ids = told if isinstance(told, list) else [told]
    return frozenset(token for token in ids if isinstance(token, int))
