"""A real engine over a scripted target that speaks ChatML and says what a test wrote down."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from agentspec.testing.scripted import ScriptedBackend, ScriptedTokenizer  # noqa: E402

START, END, VOCAB = 256, 257, 260
_HEAD = np.asarray([START, *b"assistant\n"], dtype=np.uint16).tobytes()


class Speaker(ScriptedBackend):
    """Says `answers[n]` as its n-th answer of a conversation, byte by byte, then ends.

    Every logit row also depends on all that is cached, so that a wrong cache shows in a replay.
    """

    def __init__(self, answers: Sequence[str | BaseException]) -> None:
        tokenizer = ScriptedTokenizer(
            VOCAB, special={START: "<|im_start|>", END: "<|im_end|>"}, eos_ids=frozenset({END})
        )
        super().__init__(self._say, VOCAB, tokenizer=tokenizer)
        self.answers = answers

    def _say(self, cached: Sequence[int]) -> npt.NDArray[np.float32]:
        packed = np.asarray(cached, dtype=np.uint16).tobytes()
        logits = np.zeros(VOCAB, dtype=np.float32)
        logits[0] = zlib.crc32(packed) / 2**32
        number, at = packed.count(_HEAD), packed.rfind(_HEAD)
        if number:
            answer = self.answers[min(number, len(self.answers)) - 1]
            if isinstance(answer, BaseException):
                raise answer
            said = len(cached) - (at + len(_HEAD)) // 2
            text = answer.encode()
            logits[text[said] if said < len(text) else END] = 50.0
        return logits


class Leaking(Speaker):
    """A cache that keeps a trace of what was rejected."""

    def rollback(self, seq: int, length: int) -> None:
        rejected = self.caches[seq][length:]
        super().rollback(seq, length)
        if rejected and length > 400:
            self.caches[seq][length // 2] ^= rejected[-1] & 1


@pytest.fixture
def speaking(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """An engine whose target gives these answers: `speaking(answers, wrap=…, kind=…)`."""
    pytest.importorskip("llguidance")
    # a token of the scripted vocabulary is one byte
    monkeypatch.setattr("examples.coding_agent.loop.MAX_TOKENS", 4000)
    from agentspec.api import Engine
    from agentspec.chat.template import load_template

    def make(
        answers: Sequence[str | BaseException],
        *,
        wrap: Callable[[Any], Any] = lambda backend: backend,
        kind: type[Speaker] = Speaker,
    ) -> Engine:
        template = load_template(None, bos="", eos="<|im_end|>", template="chatml")
        return Engine(wrap(kind(answers)), template=template, model="scripted")

    return make
