"""An edit whose answer is mostly known: python examples/predicted_edit.py [MODEL]

The old file is given as OpenAI's `prediction`. The same edit is made plainly too: the speeds and
the share of the predicted tokens that stood are printed.
"""

from __future__ import annotations

import sys

from agentspec import Engine
from agentspec.wire import Completion

CODE = """\
class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()

    def peek(self):
        return self.items[-1] if self.items else None

    def __len__(self):
        return len(self.items)
"""
TASK = f"Rename the class to Pile. Answer with the code alone.\n\n{CODE}"


def main(model: str = "qwen2.5-coder-1.5b") -> None:
    messages = [{"role": "user", "content": TASK}]
    with Engine.load(model) as engine:
        plain = engine.complete(messages, max_tokens=300, speculation=False)
        prediction = {"type": "content", "content": CODE}
        answer = engine.complete(messages, max_tokens=300, prediction=prediction)
    print(answer.text)
    for name, one in (("plain", plain), ("predicted", answer)):
        print(f"{name}: {line(one)}")
    stats = answer.speculation
    assert stats is not None
    print(
        f"{stats.accepted} of {stats.drafted} drafted tokens stood; "
        f"the texts {'are equal' if answer.text == plain.text else 'differ, at a near tie'}"
    )


def line(answer: Completion) -> str:
    stats = answer.speculation
    assert stats is not None
    return (
        f"{stats.generated_tokens} tokens, {stats.acceptance_length:.2f} per target pass, "
        f"{stats.tokens_per_second:.1f} tok/s"
    )


if __name__ == "__main__":
    print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(*sys.argv[1:])
