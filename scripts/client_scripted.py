"""A server whose model writes what a function of the prompt says, for clients to be driven by.

Prompts are ChatML; a token is a byte or one of the marks. The loop, the parsers of calls, the
sessions and the server are those of every other model.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentspec.api import Engine
from agentspec.server.options import ServerOptions
from agentspec.testing.scripted import Law, ScriptedBackend, ScriptedTokenizer

_MARKS = {256: "<|im_start|>", 257: "<|im_end|>", 258: "<tool_call>", 259: "</tool_call>"}
_START, _END, _CALL = 256, 257, 258
_VOCAB = 260
_SESSIONS = 4  # as `agentspec serve`

Reply = Callable[[str, int], str]
"""The answer to a prompt's text with so many calls of the model in it."""


def call(name: str, arguments: Mapping[str, Any]) -> str:
    """A tool call as the scripted model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def law_of(reply: Reply, tokenizer: ScriptedTokenizer) -> Law:
    """A law that writes `reply`, whatever of it is in the cache already."""
    import numpy as np

    known: dict[tuple[int, int], list[int]] = {}

    def law(cached: Sequence[int]) -> Any:
        begun = len(cached) - 1 - list(reversed(cached)).index(_START)
        # the end of a prompt is as good as all of it, and quick to hash
        key = begun, hash(tuple(cached[max(0, begun - 500) : begun]))
        if key not in known:
            prompt = cached[:begun]
            text = bytes(t for t in prompt if t < 256).decode("utf-8", "replace")
            # the first message says how a call is written
            second = prompt.index(_START, 1) if prompt.count(_START) > 1 else begun
            made = prompt[second:].count(_CALL)
            known[key] = tokenizer.encode_special(reply(text, made))
        at = len(cached) - begun - 1 - len("assistant\n")
        logits = np.zeros(_VOCAB, dtype=np.float32)
        tokens = known[key]
        logits[tokens[at] if 0 <= at < len(tokens) else _END] = 50.0
        return logits

    return law


def scripted_engine(reply: Reply, *, n_ctx: int = 1 << 20) -> Engine:
    """An engine over the scripted model, speculation on."""
    from agentspec.chat.template import load_template
    from agentspec.control.cost import CostCurve

    tokenizer = ScriptedTokenizer(_VOCAB, special=_MARKS, eos_ids=frozenset({_END}))
    backend = ScriptedBackend(law_of(reply, tokenizer), _VOCAB, n_ctx=n_ctx, tokenizer=tokenizer)
    template = load_template(None, bos="", eos=_MARKS[_END], template="chatml")
    cost = CostCurve.from_points({1: 1.0, 64: 1.1})
    return Engine(backend, template=template, cost=cost, max_sessions=_SESSIONS, max_tokens=n_ctx)


class ScriptedServer:
    """The server over a scripted engine on a free loopback port, in a thread; close it."""

    def __init__(self, reply: Reply, *, n_ctx: int = 1 << 20, **options: Any) -> None:
        from agentspec.server.app import create_app
        from agentspec.server.run import Server, address, bind

        self.engine = scripted_engine(reply, n_ctx=n_ctx)
        given = ServerOptions(port=0, parallel=_SESSIONS, **options)
        self._server = Server(create_app(self.engine, given), given)
        sock = bind(given.host, given.port)
        self.port = int(sock.getsockname()[1])
        self.url = address(sock, given.host)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._server.serve([sock])), daemon=True
        )
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the scripted server did not start; its error is above")
            time.sleep(0.01)

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *error: object) -> None:
        for _ in range(2):  # drain, then at once
            self._server.handle_exit(15, None)
        self._thread.join(20)
        self.engine.close()
