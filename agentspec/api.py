"""`Engine`: a loaded model that answers many requests."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentspec.aio import in_thread
from agentspec.answer import Answer, TokenEvent
from agentspec.backends.base import Backend, Tokenizer
from agentspec.chat import constraint as grammars
from agentspec.chat.normalise import check_names, normalised
from agentspec.chat.splice import Prompt, TurnMemory
from agentspec.chat.stream import AnswerStream
from agentspec.chat.template import ChatTemplate, encode_prompt
from agentspec.chat.tools.base import CallFormat
from agentspec.chat.tools.formats import detect
from agentspec.closing import Closing
from agentspec.control.cost import CostCurve
from agentspec.control.rows import ANY_ROWS, RowClass
from agentspec.drafting import Drafting, Inner, MakeProposer, Seat, draft_model
from agentspec.engine.kept import SessionStore
from agentspec.engine.kept import session_key as named_key
from agentspec.engine.sampling import SeededChance
from agentspec.engine.session import LiveSequence
from agentspec.engine.sessions import SessionPool, Slot, SlotState
from agentspec.engine.stats import TurnStats
from agentspec.engine.typical import Typical, lossy_rule
from agentspec.errors import (
    AgentspecError,
    BackendError,
    ConfigError,
    ContextOverflowError,
    EngineClosedError,
    InvalidRequestError,
)
from agentspec.generation import Generation
from agentspec.propose.draft_model import DraftModel
from agentspec.propose.reencoded import ReencodedModel
from agentspec.request import Request, parse_request
from agentspec.scheduler import Scheduler
from agentspec.types import Constraint, Proposer, TurnContext
from agentspec.wire import Chunk, Completion, Tool

if TYPE_CHECKING:
    from agentspec.context.library import Library
    from agentspec.remote.engine import RemoteEngine

_log = logging.getLogger(__name__)

_LEAST_CHUNK = 32
_MARKS = 4
_LAST_TOKENS = 64


class Engine(Closing):
    """A loaded target, its proposers and the live sequences that successive turns share.

    Thread-safe: up to `max_sessions` requests take passes in turn, others queue; in exact mode one
    at a time, since rounding depends on what else is in the cache. Use it as a context manager, or
    call `close`. `chunk` is the most prompt tokens per pass. With a `cost` curve the draft length
    follows cost and learned acceptance, else it is fixed. `speculation` is what requests do that
    do not say. A `draft` model of another vocabulary needs `draft_reencode`: its text is encoded
    again for the target. `inner` are drafts from the inside of the target, the cheapest first;
    `proposers` make further proposers of the caller's, one for each live sequence. `lossy` gives
    up the model's own distribution where an answer is sampled; its statistics say so.
    """

    def __init__(
        self,
        target: Backend,
        *,
        template: ChatTemplate,
        model: str = "local",
        draft: Backend | None = None,
        draft_reencode: bool = False,
        call_format: CallFormat | None = None,
        cost: CostCurve | None = None,
        max_tokens: int = 1024,
        rows: RowClass = ANY_ROWS,
        exact: bool = False,
        lossy: Typical | Literal["typical"] | None = None,
        speculation: bool = True,
        chunk: int = 512,
        max_sessions: int = 1,
        normalise: Sequence[str] = (),
        sessions: SessionStore | None = None,
        session_key: str = "",
        library: Library | None = None,
        inner: Sequence[Inner] = (),
        proposers: Sequence[MakeProposer] = (),
    ) -> None:
        self.target = target
        self.draft = draft
        self.draft_reencode = draft_reencode
        """Whether the draft model has another vocabulary and drafts by its text."""
        self.model = model
        self.rows = rows
        self.exact = exact
        self.lossy = lossy_rule(lossy, exact=exact)
        self.speculation = speculation
        self.last_stats: TurnStats | None = None
        self._template = template
        self._format = call_format or detect(template.source)
        self.cost = cost
        self._max_tokens = max_tokens
        self._chunk = chunk
        pool = SessionPool(target, 1 if exact else max_sessions, chunk=chunk, marks=_MARKS)
        self._scheduler = Scheduler(pool)
        self._memory = TurnMemory(target.tokenizer)
        self._normalise = check_names(normalise)
        self._session_key = session_key or named_key(model, template.source)
        self._store = sessions
        self.restored = pool.restore(sessions) if sessions is not None else 0
        """How many kept conversations are in the cache again since it was loaded."""
        if sessions is not None:
            with suppress(ValueError):
                self._memory.load(sessions.note() or "[]")
        self._seats: list[Seat] = self._seated(library, inner, proposers)
        self._library = library
        self._encode_file = lru_cache(maxsize=256)(target.tokenizer.encode)

    def _seated(
        self, library: Library | None, inner: Sequence[Inner], proposers: Sequence[MakeProposer]
    ) -> list[Seat]:
        """The proposers of each slot; a draft model with fewer sequences serves the first ones."""
        slots, draft, target = self._scheduler.pool.slots, self.draft, self.target
        models: list[DraftModel | ReencodedModel | None] = [None] * len(slots)
        for slot in slots[: draft.capabilities.max_seqs if draft is not None else 0]:
            assert draft is not None
            model = models[slot.id] = draft_model(draft, target, reencode=self.draft_reencode)
            slot.follower = model.sequence
        within = [[one.make(partial(_live, slot)) for one in inner] for slot in slots]
        first = Drafting(
            target.tokenizer,
            cost=self.cost,
            draft=models[0],
            inner=[(made, one.account) for made, one in zip(within[0], inner, strict=True)],
            rows=self.rows,
            # rows of a tree pass differ by rounding from those of a chain: not in exact mode
            leaves=1 if self.exact else target.capabilities.max_leaves,
            shape=self._format.shape,
            more=[library.corpus] if library is not None else [],
            outside=proposers,
        )
        others = zip(models[1:], within[1:], strict=True)
        return [first, *(first.seat(model, made) for model, made in others)]

    @property
    def chat_template(self) -> str:
        """The source of the chat template."""
        return self._template.source

    @property
    def tokens(self) -> list[int]:
        """The committed tokens of the live sequence that was used last: a prompt, its answer."""
        return list(self._scheduler.pool.latest.sequence.tokens)

    @property
    def plain_per_second(self) -> float | None:
        """Tokens per second of plain decoding as far as the cost curve knows: an estimate.

        One token per pass, at the time that a pass of one row takes on this device as measured so
        far; None where nothing was measured.
        """
        seconds = self.cost.row_seconds() if self.cost is not None else 0.0
        # a curve that was given instead of measured says exactly 1
        return 1 / seconds if seconds > 0 and seconds != 1.0 else None

    def slots(self) -> list[SlotState]:
        """What each live sequence holds and does at this moment; may be asked while they run."""
        return self._scheduler.slots()

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

    @staticmethod
    def remote(
        base_url: str, model: str | os.PathLike[str] | None = None, **settings: Any
    ) -> RemoteEngine:
        """The same API over a server such as vLLM; see `agentspec.remote.engine.RemoteEngine`."""
        from agentspec.remote.engine import RemoteEngine

        return RemoteEngine(base_url, model, **settings)

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

        The request is checked at once; it holds a live sequence from the first chunk with text
        until the stream ends or is closed. Raises as `complete` does, and EngineClosedError when
        the engine is closed before the stream has ended.
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
        if self._scheduler.closed:
            raise EngineClosedError("the engine was closed; load it again")
        with self._scheduler.alone() as backend:
            yield backend

    @contextmanager
    def drafting_as(self, change: Callable[[Seat], Seat]) -> Iterator[None]:
        """Answers that begin in the block draft as `change` makes of each live sequence's seat.

        To watch every pass, or to draft as another engine does; texts stay the target's own.
        """
        seats = self._seats
        self._seats = [change(seat) for seat in seats]
        try:
            yield
        finally:
            self._seats = seats

    def cancel(self) -> None:
        """Stop all running requests within their pass; each raises CancelledError."""
        self._scheduler.cancel_all()

    def close(self) -> None:
        """Free the models. Safe to call twice.

        Requests that run, wait or were begun end with CancelledError or EngineClosedError.
        """
        with self._scheduler.ending():
            self._keep()
            self._scheduler.pool.close()
            for backend in (self.draft, self.target):
                if backend is not None:
                    backend.close()

    def _keep(self) -> None:
        """Write what was learned about this device and this workspace; failing costs speed."""
        if self.cost is not None:
            self.cost.save()
            self.cost = None
        if self._library is not None:
            for slot in sorted(self._scheduler.pool.slots, key=lambda slot: slot.used):
                if slot.used:
                    self._library.keep(slot.sequence.tokens)
            self._library.keep([])  # what was indexed, also without a session
            self._library = None
        store, self._store = self._store, None
        if store is not None:
            try:
                self._scheduler.pool.save(store)
                store.save_note(self._memory.dump())
            except BackendError as error:
                _log.warning("conversations are read again after the next start: %s", error)

    def save_sessions(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Write the live sequences to a folder, or to that of the setting `sessions_dir`.

        An engine that is loaded with it, for the same model, template and salt, goes on from them.
        Raises BackendError when one could not be written, ConfigError without a folder, and
        EngineClosedError.
        """
        store = self._store
        if folder is not None:
            store = SessionStore(Path(folder), self._session_key)
        if store is None:
            raise ConfigError("no folder for sessions: name one, or set sessions_dir")
        with self._scheduler.between():
            self._scheduler.pool.save(store)
            store.save_note(self._memory.dump())

    def release_draft(self) -> None:
        """Free the draft model while no request runs; answers go on without it.

        For one that does not pay: `speculation.notes` says when. Raises EngineClosedError.
        """
        with self.borrowed():
            for seat, slot in zip(self._seats, self._scheduler.pool.slots, strict=True):
                seat.drop_draft()
                slot.follower = None
            if self.draft is not None:
                self.draft.close()
                self.draft = None

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
        `stop`, in any thread, ends the generator before its next pass with CancelledError, and
        within a pass if it is an `agentspec.aio.Stop`. Raises EngineClosedError,
        InvalidRequestError, ContextOverflowError, and CancelledError when `stop` is set before
        the prompt is made.
        """
        if self._scheduler.closed:
            raise EngineClosedError("the engine was closed; load it again")
        if request.speculation.exact and not self.exact:
            raise InvalidRequestError(
                "speculation.exact needs an engine that was loaded with exact=True",
                param="speculation.exact",
            )
        tools = request.tools if request.tool_choice != "none" else []
        prompt, notes = self._prompt(request, tools, stop)
        # padding rows need room behind the last token
        n_ctx, n_prompt = self.target.n_ctx - ((self.rows.largest or 1) - 1), len(prompt.tokens)
        if n_prompt >= n_ctx:
            raise ContextOverflowError(n_prompt, n_ctx)
        answer = Answer(self.model, TurnStats(prompt_tokens=n_prompt))
        thinking = self._thinking(request, prompt.text)
        constraint = self._constraint(request, thinking)
        answer.stats.notes += (*notes, *getattr(constraint, "notes", ()))
        # without tools too: some families mark channels, whatever they write in them
        parser = self._format.parser(tools) if request.prompt is None else None

        def finished(tokens: Sequence[int]) -> None:
            self.last_stats = answer.stats
            if request.prompt is None:
                self._memory.remember(prompt, tokens)

        generation = Generation(
            request,
            prompt.tokens,
            answer,
            AnswerStream(request.stop, parser=parser, thinking=thinking),
            scheduler=self._scheduler,
            seats=self._seats,
            proposers=self._proposers,
            context=self._turn_context,
            refresh=self._refresh,
            constraint=constraint,
            max_tokens=min(request.max_tokens or self._max_tokens, n_ctx - n_prompt),
            rows=self.rows,
            lossy=self.lossy,
            chunk=self._chunk,
            shared_chunk=self._chunk if self.exact else max(_LEAST_CHUNK, self._chunk // 4),
            marks=self._boundaries(prompt.tokens),
            finished=finished,
        )
        return answer, generation.start(stop)

    def _prompt(
        self, request: Request, tools: Sequence[Tool], stop: threading.Event | None = None
    ) -> tuple[Prompt, list[str]]:
        """The prompt of a request's messages, or as it was given, and what was changed for it."""
        tokenizer = self.target.tokenizer
        bos = getattr(tokenizer, "bos_id", None) if _adds_bos(tokenizer) else None
        if request.prompt is not None:
            ids = encode_prompt(
                request.prompt, tokenizer, vocab_size=self.target.vocab_size, bos_id=bos
            )
            return Prompt(ids, ""), []
        messages, notes = normalised(request.messages, (*self._normalise, *request.normalise))
        segments = self._template.render(
            messages, tools, special_pieces=list(getattr(tokenizer, "special_pieces", ()))
        )

        def read(end: str) -> AnswerStream:
            parser = self._format.parser(request.tools)
            return AnswerStream(parser=parser, thinking=self._thinking(request, end))

        cancelled = stop.is_set if stop is not None else lambda: False
        return self._memory.encode(segments, read, bos_id=bos, cancelled=cancelled), notes

    def _boundaries(self, prompt: Sequence[int]) -> list[int]:
        """Where the next turn's prompt may part from this one, for caches that cannot be cut.

        That is its end, and where the template begins the answer: some write other things there
        once it is an old one.
        """
        if not self._scheduler.pool.slots[0].sequence.keeps_marks:
            return []
        n, special = len(prompt), self.target.tokenizer.is_special
        begun = (at for at in range(n - 1, max(0, n - _LAST_TOKENS), -1) if special(prompt[at]))
        return [*[at for at in [next(begun, 0)] if at], n - 1]

    def _proposers(self, request: Request, seat: Seat) -> list[Proposer]:
        wanted = request.speculation
        enabled = self.speculation if wanted.enabled is None else wanted.enabled
        if not enabled or wanted.k == 0:
            return []
        return seat.proposers(lookup=wanted.lookup, draft_model=wanted.draft_model)

    def _refresh(self) -> None:
        if self._library is not None:
            self._library.refresh()

    def _turn_context(
        self, request: Request, prompt: Sequence[int], chance: SeededChance
    ) -> TurnContext:
        runs = [(source, self._encode_file(text)) for source, text in request.context]
        tools = [tool.model_dump() for tool in request.tools]
        return TurnContext(prompt, request.sampling, chance, runs, tools)

    def _thinking(self, request: Request, prompt: str) -> bool | Literal["open"]:
        """Whether the answer may begin with thinking, "open" where the prompt began it."""
        if request.prompt is not None or "<think>" not in self._template.source:
            return False
        return "open" if prompt.rstrip().endswith("<think>") else True

    def _constraint(self, request: Request, thinking: bool | Literal["open"]) -> Constraint | None:
        return grammars.constraint_of(
            self.target.tokenizer,
            vocab_size=self.target.vocab_size,
            tools=request.tools,
            tool_choice=request.tool_choice,
            parallel=request.parallel_tool_calls,
            response_format=request.response_format,
            grammar=request.grammar,
            # what continues a raw prompt begins no message, in whatever channel
            shape=self._format.shape if request.prompt is None else grammars.HERMES,
            thinking=thinking,
        )


def _live(slot: Slot) -> LiveSequence:
    return slot.sequence


def _adds_bos(tokenizer: Tokenizer) -> bool:
    return bool(getattr(tokenizer, "adds_bos", False))
