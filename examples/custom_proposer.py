"""A proposer of one's own, plugged into an engine: python examples/custom_proposer.py [MODEL]

It knows texts that are in no prompt, here the MIT licence, and proposes how one of them goes on.
Wrong guesses cost a little time and never change the answer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from agentspec import Draft, Engine
from agentspec.backends.base import Tokenizer
from agentspec.types import EMPTY_DRAFT, Evidence, TurnContext, Verdict

LICENCE = """\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and \
associated documentation files (the "Software"), to deal in the Software without restriction, \
including without limitation the rights to use, copy, modify, merge, publish, distribute, \
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is \
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or \
substantial portions of the Software.
"""


class Snippets:
    name = "snippets"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.known = tokenizer.encode(LICENCE)
        self.written: list[int] = []

    def begin(self, turn: TurnContext) -> None:
        self.written = list(turn.tokens[-8:])

    def propose(self, max_tokens: int) -> Draft:
        for length in range(min(8, len(self.written)), 3, -1):
            tail = self.written[-length:]
            for at in range(len(self.known) - length):
                if self.known[at : at + length] == tail:
                    run = self.known[at + length : at + length + max_tokens]
                    sure = Evidence(length, confidence=(0.9,) * len(run))
                    return Draft.chain(run, self.name, sure)
        return EMPTY_DRAFT

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        self.written = [*self.written, *accepted][-8:]

    def end(self) -> None: ...


def main(model: str = "qwen2.5-coder-1.5b") -> None:
    task = "Quote the MIT License word for word, beginning with 'Permission is hereby granted'."
    with Engine.load(model, proposers=[Snippets]) as engine:
        answer = engine.complete([{"role": "user", "content": task}], max_tokens=200)
    print(answer.text)
    stats = answer.speculation
    assert stats is not None
    own = stats.sources.get(Snippets.name)
    print(f"{stats.acceptance_length:.2f} tokens per target pass; of {Snippets.name}: ", end="")
    print(f"{own.accepted} of {own.drafted} tokens stood" if own else "nothing was verified")


if __name__ == "__main__":
    print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(*sys.argv[1:])
