"""A LangChain agent loop with one tool: python examples/langchain_agent.py [MODEL] [TASK]"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from agentspec.adapters.langchain import ChatAgentSpec
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.tools import tool


@tool  # type: ignore[untyped-decorator]
def read(path: str) -> str:
    """Read a text file."""
    try:
        return Path(path).read_text(encoding="utf-8")[:4000]
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def main(model: str = "qwen2.5-coder-1.5b", task: str = "What does README.md say?") -> None:
    with closing(ChatAgentSpec(model=model, max_tokens=512)) as chat:
        messages: list[BaseMessage] = [HumanMessage(task)]
        for _ in range(6):
            message = answer(chat, messages)
            messages.append(message)
            for call in message.tool_calls:
                print(f"read {call['args']}")
                messages.append(read.invoke(call))
            if not message.tool_calls:
                break
        stats = message.response_metadata["speculation"]
        print(f"\n{stats['generated_tokens']} tokens in {stats['passes']} target passes")


def answer(chat: ChatAgentSpec, messages: list[BaseMessage]) -> AIMessageChunk:
    pieces = []
    for piece in chat.bind_tools([read]).stream(messages):
        print(piece.content, end="", flush=True)
        pieces.append(piece)
    return pieces[0] + pieces[1:]


if __name__ == "__main__":
    print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(*sys.argv[1:])
