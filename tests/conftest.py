"""What every test stands on: settings of the machine stay out, models are found or skipped."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings

# Two busy cores make single examples slow at random; pytest-timeout bounds whole tests.
settings.register_profile("agentspec", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# `make test` draws the same examples each time: it judges a change, `make check` searches.
settings.register_profile("fixed", settings.get_profile("agentspec"), derandomize=True)
settings.load_profile("agentspec")


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for variable in list(os.environ):
        # Where the models are is the one thing that tests take from outside.
        if variable.startswith("AGENTSPEC_") and variable != "AGENTSPEC_MODELS":
            monkeypatch.delenv(variable)
    empty = tmp_path_factory.getbasetemp() / "no-settings.toml"
    empty.touch()
    monkeypatch.setenv("AGENTSPEC_CONFIG", str(empty))


@pytest.fixture(scope="session", autouse=True)
def _what_engines_share_is_made_once() -> Iterator[None]:
    """Else each of thousands reads the shipped weights and sorts the phrases that come with them.

    Nothing is added to either, and the live sequences of one engine share them too.
    """
    import agentspec.drafting
    from agentspec.context.habits import habit_index
    from agentspec.context.index import TokenIndex
    from agentspec.control.prior import Prior
    from agentspec.testing.scripted import ScriptedTokenizer

    known: dict[tuple[str, ...], TokenIndex] = {}

    def once(phrases: Sequence[str], tokenizer: Any) -> TokenIndex:
        if type(tokenizer) is not ScriptedTokenizer or "encode" in vars(tokenizer):
            return habit_index(phrases, tokenizer)
        key = tuple(phrases)
        if key not in known:
            known[key] = habit_index(phrases, tokenizer)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agentspec.drafting, "habit_index", once)
        patch.setattr(Prior, "shipped", staticmethod(cache(Prior.shipped)))
        yield


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    # a job that a script put in the background ignores it, and so would every test's child
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def loads(chat: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Makes what commands load an engine that writes a text; `loaded` are its arguments."""

    def start(text: str, **options: Any) -> list[Any]:
        from agentspec import loading

        made: list[Any] = []

        def load_engine(model: Any = None, **settings: Any) -> Any:
            engine = chat.engine(chat.writing(text), **options)
            engine.loaded = (model, {k: v for k, v in settings.items() if v is not None})
            made.append(engine)
            return engine

        monkeypatch.setattr(loading, "load_engine", load_engine)
        return made

    return start


@pytest.fixture(scope="session")
def weights() -> Callable[[str], Path]:
    """The path of a catalog entry's model file; skips the test where it is absent."""

    def find(name: str) -> Path:
        from agentspec.models import catalog

        path = catalog.locate(catalog.entry(name))
        if path is None:
            pytest.skip(f"{name} is not on disk; fetch it with: agentspec models pull {name}")
        return path

    return find


class Chat:
    """Engines over scripted backends: ids below 256 are bytes, ChatML's marks are special ids."""

    vocab, start, eos = 262, 256, 257
    marks: ClassVar[dict[int, str]] = {
        256: "<|im_start|>",
        257: "<|im_end|>",
        258: "<tool_call>",
        259: "</tool_call>",
    }

    def tokenizer(self) -> Any:
        from agentspec.testing.scripted import ScriptedTokenizer

        words = {260: b" the", 261: b"\xc3"}
        return ScriptedTokenizer(
            self.vocab, special=self.marks, words=words, eos_ids=frozenset({self.eos})
        )

    def hashed(self, seed: int = 0) -> Any:
        """A law whose text depends on every cached token."""
        from agentspec.testing.scripted import hashed_law

        return hashed_law(self.vocab, seed)

    def writing(self, reply: str | Sequence[int], *, ends: bool = True) -> Any:
        """A law that answers every prompt with this, its logits still a hash of the cache."""
        tokens = self.tokenizer().encode_special(reply) if isinstance(reply, str) else list(reply)
        noise = self.hashed()

        def law(cached: Sequence[int]) -> Any:
            logits = noise(cached).copy()
            begun = len(cached) - 1 - list(reversed(cached)).index(self.start)
            at = len(cached) - begun - 1 - len("assistant\n")
            if at < len(tokens):
                logits[tokens[at]] = 50.0
            elif ends:
                logits[self.eos] = 50.0
            return logits

        return law

    def backend(self, law: Any, kind: Any = None, **options: Any) -> Any:
        from agentspec.testing.scripted import ScriptedBackend

        options.setdefault("tokenizer", self.tokenizer())
        return (kind or ScriptedBackend)(law, self.vocab, **options)

    def engine(self, law: Any, *, kind: Any = None, n_ctx: int = 1 << 20, **options: Any) -> Any:
        """An engine over a backend of this law, or over the given backend."""
        from agentspec.api import Engine

        target = self.backend(law, kind, n_ctx=n_ctx) if callable(law) else law
        # compiled once; a copy, since tests change what it says
        return Engine(target, template=copy(_chatml(self.marks[self.eos])), **options)


@cache
def _chatml(eos: str) -> Any:
    from agentspec.chat.template import load_template

    return load_template(None, bos="", eos=eos, template="chatml")


@pytest.fixture(scope="session")
def chat() -> Chat:
    return Chat()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Small model files over a vocabulary of bytes, made once per module: `tiny(kind)`."""
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    from agentspec.testing.gguf import write_tiny

    folder = tmp_path_factory.mktemp("tiny")
    made: dict[str, Path] = {}

    def make(kind: Any) -> Path:
        if kind not in made:
            made[kind] = write_tiny(folder / f"{kind}.gguf", kind, vocab="bytes")
        return made[kind]

    return make


@pytest.fixture(scope="session")
def torch_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a tiny torch model of a kind, by default called tiny-KIND, written once."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.torch_models import write_tiny

    root = tmp_path_factory.mktemp("torch")

    def find(kind: str = "llama", *, name: str | None = None, **arguments: Any) -> Path:
        key = "-".join([kind, *(f"{k}{v}" for k, v in arguments.items())])
        folder = root / key / (name or f"tiny-{kind}")
        return folder if folder.exists() else write_tiny(folder, kind, **arguments)

    return find
