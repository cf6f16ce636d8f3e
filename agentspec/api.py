"""`Engine`: a loaded model that answers many requests."""

from __future__ import annotations

import inspect
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager, suppress
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from agentspec.aio import in_thread
from agentspec.answer import Answer, TokenEvent
from agentspec.backends.base import Backend, Tokenizer
from agentspec.chat import constraint as grammars
from agentspec.chat.first_call import FirstCall
from agentspec.chat.stream import AnswerDelta, AnswerStream
from agentspec.chat.template import ChatTemplate, encode_chat, encode_prompt
from agentspec.chat.tools.base import CallFormat
from agentspec.chat.tools.hermes_json import HermesJson
from agentspec.control.cost import CostCurve
from agentspec.control.rows import ANY_ROWS, RowClass
from agentspec.drafting import Drafting
from agentspec.engine.decode import decode
from agentspec.engine.panel import Panel
from agentspec.engine.sampling import Sampler, SeededChance
from agentspec.engine.session import LiveSequence
from agentspec.engine.sessions import SlotState
from agentspec.engine.stats import TurnStats
from agentspec.engine.stop import StopRule
from agentspec.errors import (
    AgentspecError,
    ContextOverflowError,
    EngineClosedError,
    InvalidRequestError,
)
from agentspec.propose.draft_model import DraftModel
from agentspec.request import Request, parse_request
from agentspec.turns import Ticket, Turnstile
from agentspec.types import Constraint, Proposer, TurnContext
from agentspec.wire import Chunk, Completion, TokenLogprob, Tool, TopLogprob

if TYPE_CHECKING:
    from agentspec.context.library import Library


class Engine:
    """A loaded target, its proposers and one live sequence that successive turns share.

    Thread-safe: concurrent requests queue. Use it as a context manager, or call `close`.
    `chunk` is the most prompt tokens per pass: a cancel is heard between chunks. With a `cost`
    curve the draft length follows cost and learned acceptance, else it is fixed. `speculation`
    is what requests do that do not say.
    """

    def __init__(
        self,
        target: Backend,
        *,
        template: ChatTemplate,
        model: str = "local",
        draft: Backend | None = None,
        call_format: CallFormat | None = None,
        cost: CostCurve | None = None,
        max_tokens: int = 1024,
        rows: RowClass = ANY_ROWS,
        exact: bool = False,
        speculation: bool = True,
        chunk: int = 512,
        max_sessions: int = 1,
        library: Library | None = None,
    ) -> None:
        self.target = target
        self.draft = draft
        self.model = model
        self.rows = rows
        self.exact = exact
        self.speculation = speculation
        self.last_stats: TurnStats | None = None
        self._template = template
        self._format = call_format or HermesJson()
        self.cost = cost
        self._max_tokens = max_tokens
        self._chunk = chunk
        self._sequence = LiveSequence(target, chunk=chunk)
        self._drafting = Drafting(
            target.tokenizer,
            cost=cost,
            draft=DraftModel(draft, target_vocab=target.vocab_size) if draft else None,
            rows=rows,
            # rows of a tree pass differ by rounding from those of a chain: not in exact mode
            leaves=1 if exact else target.capabilities.max_leaves,
            more=[library.corpus] if library is not None else [],
        )
        self._library = library
        self._turn = Turnstile()
        self._cancelled = False  # no threading.Event: Ctrl-C inside of one leaves its lock taken
        self._closed = False
        self._running: Answer | None = None
        self.max_sessions = max_sessions
        self._encode_file = lru_cache(maxsize=256)(target.tokenizer.encode)

    @property
    def tokens(self) -> list[int]:
        """The committed tokens of the live sequence: the last prompt and its answer."""
        return list(self._sequence.tokens)

    def slots(self) -> list[SlotState]:
        """What each live sequence holds and does at this moment; may be asked while it runs."""
        answer = self._running
        held = len(self._sequence.tokens)
        if answer is None:
            return [SlotState(0, held)]
        stats = answer.stats
        read = min(self._sequence.cached, stats.prompt_tokens)
        return [
            SlotState(0, held, True, answer.id, stats.prompt_tokens, read, stats.tokens),
        ]

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str] | None = None,
        *,
        draft: str | os.PathLike[str] | None = None,
        template: str | None = None,
        **settings: Any,
    ) -> Engine:
        """Load a GGUF file or catalog entry; see `agentspec.load`."""
        from agentspec.loading import load_engine

        return load_engine(model, draft=draft, template=template, **settings)

    def complete(self, messages: object, **options: Any) -> Completion:
        """One whole answer; options as of `agentspec.complete`.

        Raises InvalidRequestError and ContextOverflowError for the request, EngineClosedError,
        CancelledError, and BackendError when a pass fails; `partial` of the error is the text
        so far.
        """
        answer, events = self.begin(parse_request(messages, **options))
        # closed by name: a traceback that is kept after Ctrl-C must not keep the engine
        with closing(events):
            for event in events:
                answer.add(event)
        return answer.completion()

    def stream(self, messages: object, **options: Any) -> Iterator[Chunk]:
        """The same answer in chunks, one per token that shows something.

        The request is checked at once; the engine is held from the first chunk with text until
        the stream ends or is closed. Raises as `complete` does, and EngineClosedError when the
        engine is closed before the stream has ended.
        """
        answer, events = self.begin(parse_request(messages, **options))
        return answer.chunks(events)

    async def acomplete(self, messages: object, **options: Any) -> Completion:
        """`complete` in a thread; cancelling the task stops the generation."""
        answer: Answer | None = None
        try:
            async with aclosing(self.astream_events(messages, **options)) as parts:
                async for answer, event in parts:
                    if event is not None:
                        answer.add(event)
        except AgentspecError as error:
            # the thread that raised it did not wait for the tokens to be added here
            error.partial = answer.text if answer is not None else ""
            raise
        assert answer is not None
        return answer.completion()

    async def astream(self, messages: object, **options: Any) -> AsyncGenerator[Chunk, None]:
        """`stream` for asyncio; leaving the loop stops the generation."""
        chunks = in_thread(lambda stop: self._chunks(messages, options, stop))
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def astream_events(
        self, messages: object, **options: Any
    ) -> AsyncGenerator[tuple[Answer, TokenEvent | None], None]:
        """Tokens with who proposed them, for programs that show it; the first has no event."""

        def produce(stop: threading.Event) -> Iterator[tuple[Answer, TokenEvent | None]]:
            answer, events = self.begin(parse_request(messages, **options), stop)
            with closing(events):
                yield answer, None
                for event in events:
                    yield answer, event

        async with aclosing(in_thread(produce)) as items:
            async for item in items:
                yield item

    @contextmanager
    def borrowed(self) -> Iterator[Backend]:
        """The target with none of its sequences in use, while no request runs.

        The borrower drops the sequences it opens. Raises EngineClosedError.
        """
        ticket = Ticket()
        try:
            self._turn.acquire(ticket)
            if self._closed:
                raise EngineClosedError("the engine was closed; load it again")
            self._sequence.close()
            try:
                yield self.target
            finally:
                self._sequence = LiveSequence(self.target, chunk=self._chunk)
        finally:
            self._turn.release(ticket)

    def cancel(self) -> None:
        """Stop the running request within one pass; it raises CancelledError."""
        self._cancelled = True

    def close(self) -> None:
        """Free the models. Safe to call twice.

        The running request ends with CancelledError, those that wait and streams that were begun
        with EngineClosedError.
        """
        self._closed = True
        self._cancelled = True
        ticket = Ticket()
        self._close_idle_stream()
        try:
            self._turn.acquire(ticket, nudge=self._close_idle_stream)
            self._keep()
            for backend in (self.draft, self.target):
                if backend is not None:
                    backend.close()
        finally:
            self._turn.release(ticket)

    def _keep(self) -> None:
        """Write what was learned about this device and this workspace; failing costs speed."""
        if self.cost is not None:
            self.cost.save()
            self.cost = None
        if self._library is not None:
            self._library.keep(self._sequence.tokens)
            self._library = None

    def release_draft(self) -> None:
        """Free the draft model while no request runs; answers go on without it.

        For one that does not pay: `speculation.notes` says when. Raises EngineClosedError.
        """
        with self.borrowed():
            self._drafting.drop_draft()
            if self.draft is not None:
                self.draft.close()
                self.draft = None

    def _close_idle_stream(self) -> None:
        """Take the turn from a stream that is not being read: it would never hear the cancel."""
        holder = self._turn.holder()
        events = holder.stream() if holder is not None and holder.stream is not None else None
        if events is not None and inspect.getgeneratorstate(events) == inspect.GEN_SUSPENDED:
            with suppress(ValueError):  # its reader came back at this moment
                events.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _chunks(
        self, messages: object, options: dict[str, Any], stop: threading.Event
    ) -> Iterator[Chunk]:
        answer, events = self.begin(parse_request(messages, **options), stop)
        return answer.chunks(events)

    def begin(
        self, request: Request, stop: threading.Event | None = None
    ) -> tuple[Answer, Generator[TokenEvent, None, None]]:
        """The answer to a parsed request, still empty, and its tokens, computed as they are read.

        Everything that can be refused is refused here. `Answer.add` takes a token in; setting
        `stop`, in any thread, ends the generator within one pass with CancelledError. Raises
        EngineClosedError, InvalidRequestError and ContextOverflowError.
        """
        if self._closed:
            raise EngineClosedError("the engine was closed; load it again")
        if request.speculation.exact and not self.exact:
            raise InvalidRequestError(
                "speculation.exact needs an engine that was loaded with exact=True",
                param="speculation.exact",
            )
        tools = request.tools if request.tool_choice != "none" else []
        prompt = self._prompt(request, tools)
        # padding rows need room behind the last token
        n_ctx = self.target.n_ctx - ((self.rows.largest or 1) - 1)
        if len(prompt) >= n_ctx:
            raise ContextOverflowError(len(prompt), n_ctx)
        answer = Answer(self.model, TurnStats(prompt_tokens=len(prompt)))
        most = min(request.max_tokens or self._max_tokens, n_ctx - len(prompt))
        thinking = self._thinking(request, prompt)
        constraint = self._constraint(request, thinking)
        answer.stats.notes += getattr(constraint, "notes", ())
        parser = self._format.parser(request.tools) if tools else None
        text = AnswerStream(request.stop, parser=parser, thinking=thinking)
        ticket = Ticket()
        steps = self._steps(request, prompt, most, constraint, text, answer, stop)
        events = self._run(ticket, steps, answer)
        ticket.stream = weakref.ref(events)
        return answer, self._whole(events, answer)

    def _prompt(self, request: Request, tools: Sequence[Tool]) -> list[int]:
        """The token ids of a request's messages or of its raw prompt."""
        tokenizer = self.target.tokenizer
        bos = getattr(tokenizer, "bos_id", None) if _adds_bos(tokenizer) else None
        if request.prompt is not None:
            return encode_prompt(
                request.prompt, tokenizer, vocab_size=self.target.vocab_size, bos_id=bos
            )
        return encode_chat(
            self._template,
            tokenizer,
            request.messages,
            tools,
            list(getattr(tokenizer, "special_pieces", ())),
            bos_id=bos,
        )

    def _whole(
        self, events: Generator[TokenEvent, None, None], answer: Answer
    ) -> Generator[TokenEvent, None, None]:
        """The events to the answer's end: one closed underneath never passes for a whole one."""
        problem = "the engine was closed before the answer was complete; the text so far stands"
        try:
            with closing(events):
                yield from events
            if answer.ended is None:
                raise EngineClosedError(problem)
        except AgentspecError as error:
            error.partial = answer.text
            raise
        except ValueError as error:
            if self._closed:  # "generator already executing": by `close` in another thread
                raise EngineClosedError(problem) from error
            raise

    def _run(
        self, ticket: Ticket, steps: Generator[TokenEvent, None, None], answer: Answer
    ) -> Generator[TokenEvent, None, None]:
        """The steps of one answer while its ticket holds the turn."""
        try:
            self._turn.acquire(ticket)
            self._cancelled = False
            if self._closed:  # looked at last: `close` sets both
                raise EngineClosedError("the engine was closed while the request waited")
            self._running = answer
            with closing(steps):
                yield from steps
        finally:
            if self._running is answer:
                self._running = None
            self._turn.release(ticket)

    def _steps(
        self,
        request: Request,
        prompt: Sequence[int],
        max_tokens: int,
        constraint: Constraint | None,
        text: AnswerStream,
        answer: Answer,
        stop: threading.Event | None,
    ) -> Generator[TokenEvent, None, None]:
        tokenizer, stats = self.target.tokenizer, answer.stats
        deltas: list[list[AnswerDelta]] = []

        first = FirstCall() if request.tools and not request.parallel_tool_calls else None

        def watch(token: int) -> bool:
            deltas.append(shown(text.feed(tokenizer.piece(token))))
            return text.stopped is not None or (first is not None and first.done)

        def shown(found: list[AnswerDelta]) -> list[AnswerDelta]:
            return found if first is None else first.cut(found)

        def cancelled() -> bool:
            return self._cancelled or (stop is not None and stop.is_set())

        started = time.perf_counter()
        rule = StopRule(
            max_tokens=max_tokens,
            eos_ids=tokenizer.eos_ids,
            stop_token_ids=request.stop_token_ids,
            watch=watch,
        )
        chance = SeededChance(request.sampling.seed)
        sampler = Sampler(request.sampling, chance, prompt=prompt, constraint=constraint)
        stats.explaining = request.speculation.explain
        proposers = self._proposers(request)
        panel = Panel(
            proposers,
            stats,
            constraint=constraint,
            forced=request.speculation.k if proposers else 0,
        )
        steps = decode(
            self._sequence,
            panel,
            self._drafting.controller(proposers, request.speculation.k),
            sampler,
            rule,
            stats,
            rows=self.rows,
            cancelled=cancelled,
        )
        try:
            with stats.timing("prefill"):
                stats.cached_tokens = self._sequence.start(prompt, cancelled=cancelled)
            if proposers:
                with stats.timing("draft"):
                    if self._library is not None:
                        self._library.refresh()
                    panel.begin(self._turn_context(request, prompt, chance))
            at = 0
            for verdict in steps:
                if verdict.finish is not None:
                    # an end-of-text token has no text of its own, what was held back is its part
                    deltas += [[] for _ in range(len(verdict.tokens) - len(deltas))]
                    deltas[-1] += shown(text.finish())
                sources = verdict.sources
                for i, token in enumerate(verdict.tokens):
                    source = sources[i] if i < len(sources) else None
                    logprob = self._logprob(token, sampler, at)
                    at += 1
                    stats.total_seconds = time.perf_counter() - started
                    yield TokenEvent(token, tuple(deltas[i]), source, logprob)
                deltas.clear()
                if verdict.finish is not None:
                    answer.ended = verdict.finish
        finally:
            stats.total_seconds = time.perf_counter() - started
            stats.notes += self._drafting.warnings()
            self.last_stats = stats
            try:
                steps.close()
            finally:
                self._sequence.settle()

    def _proposers(self, request: Request) -> list[Proposer]:
        wanted = request.speculation
        enabled = self.speculation if wanted.enabled is None else wanted.enabled
        if not enabled or wanted.k == 0:
            return []
        return self._drafting.proposers(lookup=wanted.lookup, draft_model=wanted.draft_model)

    def _turn_context(
        self, request: Request, prompt: Sequence[int], chance: SeededChance
    ) -> TurnContext:
        runs = [(source, self._encode_file(text)) for source, text in request.context]
        tools = [tool.model_dump() for tool in request.tools]
        return TurnContext(prompt, request.sampling, chance, runs, tools)

    def _thinking(self, request: Request, prompt: Sequence[int]) -> bool | Literal["open"]:
        """Whether the answer may begin with thinking, "open" where the prompt began it."""
        if request.prompt is not None or "<think>" not in self._template.source:
            return False
        end = b"".join(map(self.target.tokenizer.piece, prompt[-16:]))
        return "open" if end.rstrip().endswith(b"<think>") else True

    def _constraint(self, request: Request, thinking: bool | Literal["open"]) -> Constraint | None:
        return grammars.constraint_of(
            self.target.tokenizer,
            vocab_size=self.target.vocab_size,
            tools=request.tools,
            tool_choice=request.tool_choice,
            parallel=request.parallel_tool_calls,
            response_format=request.response_format,
            grammar=request.grammar,
            shape=self._format.shape,
            thinking=thinking,
        )

    def _logprob(self, token: int, sampler: Sampler, at: int) -> TokenLogprob | None:
        if sampler.params.logprobs is None:
            return None
        own, best = sampler.logprobs[at]
        top = [TopLogprob(**self._named(t), logprob=lp) for t, lp in best]
        return TokenLogprob(**self._named(token), logprob=own, top_logprobs=top)

    def _named(self, token: int) -> dict[str, Any]:
        piece = self.target.tokenizer.piece(token)
        return {"token": piece.decode("utf-8", "replace"), "bytes": list(piece)}


def _adds_bos(tokenizer: Tokenizer) -> bool:
    return bool(getattr(tokenizer, "adds_bos", False))
