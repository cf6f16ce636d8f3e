"""Other engines' ways to draft, measured live: on this engine, or in a server beside it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentspec.api import Engine
from agentspec.bench.live import Way
from agentspec.bench.llama_server import LlamaServer, command_of, knows
from agentspec.bench.peers import Peer, peer
from agentspec.bench.sessions import BenchSession
from agentspec.bench.surroundings import innermost
from agentspec.control.controller import Controller
from agentspec.drafting import Seat
from agentspec.errors import BackendError
from agentspec.types import Proposer

RULES: Mapping[str, str] = {
    "prompt-lookup": "transformers' prompt lookup: n ≤ 3, always 10 tokens",
    "ngram-simple": "llama.cpp's ngram-simple at its defaults: n 12, up to 48 tokens",
    "suffix-1": "SuffixDecoding at vLLM's defaults: factor 1, depth 24; this conversation only",
}
"""The peers that run in this engine's own loop, and the rule that each follows."""

_SERVER, _SERVER_NGRAM = "llama-server", "llama-server ngram-simple"
_SERVER_RULE = "llama.cpp's server on the same file, without drafts"
_SERVER_NGRAM_RULE = "llama.cpp's server on the same file, --spec-type ngram-simple"
_LIBRARIES = ("transformers", "vLLM")
_NO_LIBRARY = "it runs no GGUF file as it is, and this bench runs no other engine's libraries"


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """The ways that can be measured here with what each is, and why the others cannot."""

    ways: Sequence[Way]
    rules: Mapping[str, str]
    unmeasured: Mapping[str, str]


@contextmanager
def peer_ways(engine: Engine, llama_server: Path | None = None) -> Iterator[PeerPlan]:
    """Every peer that can be measured beside this engine; servers run until the block ends.

    `llama_server` is its program, else the one on PATH is taken.
    """
    eos_ids = engine.target.tokenizer.eos_ids
    ways = [Way(name, seat=_as_peer(peer(name), eos_ids)) for name in RULES]
    rules, unmeasured = dict(RULES), {}
    with ExitStack() as stack:
        for name, rule in ((_SERVER, _SERVER_RULE), (_SERVER_NGRAM, _SERVER_NGRAM_RULE)):
            rules[name] = rule
            try:
                command = _command(engine, llama_server, ngram=name == _SERVER_NGRAM)
                server = stack.enter_context(LlamaServer(command))
            except BackendError as error:
                unmeasured[name] = str(error)
            else:
                ways.append(Way(name, ask=server.ask))
        for name in _LIBRARIES:
            rules[name] = f"the library {name} itself"
            unmeasured[name] = _NO_LIBRARY
        yield PeerPlan(ways, rules, unmeasured)


def _command(engine: Engine, named: Path | None, *, ngram: bool) -> list[str]:
    """How the server is started. Raises BackendError saying why it cannot be."""
    program = str(named) if named is not None else shutil.which("llama-server")
    if program is None:
        raise BackendError("there is no llama-server on PATH; --llama-server names one")
    target = innermost(engine.target)
    path: Path | None = getattr(target, "path", None)
    settings: Any = getattr(target, "settings", None)
    if path is None or not hasattr(settings, "type_k"):
        raise BackendError("the target is no GGUF file")
    if ngram and not knows(program, "ngram-simple"):
        raise BackendError("this llama-server has no --spec-type ngram-simple")
    return command_of(program, path, settings, engine.target.n_ctx, ngram=ngram)


def _as_peer(
    make: Peer, eos_ids: frozenset[int]
) -> Callable[[BenchSession], Callable[[Seat], Seat]]:
    """Seats that draft as the peer does, one that has seen nothing for each session."""

    def of_session(session: BenchSession) -> Callable[[Seat], Seat]:
        proposers, controller = make(eos_ids)
        return lambda seat: _PeerSeat(seat, proposers, controller)

    return of_session


class _PeerSeat:
    """A peer's proposers and controller in the place of the engine's own."""

    def __init__(self, seat: Seat, proposers: list[Proposer], controller: Controller) -> None:
        self._seat = seat
        self._proposers = proposers
        self._controller = controller

    def proposers(self, *, lookup: bool = True, draft_model: bool = True) -> list[Proposer]:
        return list(self._proposers)

    def controller(self, proposers: Sequence[Proposer] = (), k: int | None = None) -> Controller:
        return self._controller

    def prompt_read(self, seconds: float) -> None:
        pass

    def warnings(self) -> list[str]:
        return []

    def drop_draft(self) -> None:
        self._seat.drop_draft()
