"""The chat format: which ids a recording becomes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.errors import InvalidRequestError
from agentspec.replay.chatml import ChatEncoder
from agentspec.replay.recording import Call, Recording, Said
from agentspec.testing.scripted import ScriptedTokenizer

LONG = "x" * 50


def record(*messages: Said) -> Recording:
    return Recording("s", "f", "f.jsonl:3", messages)


def test_every_part_of_the_format(chat: Any) -> None:
    tokenizer = chat.tokenizer()
    tokens = ChatEncoder(tokenizer).encode(
        record(
            Said("system", "be good"),
            Said("user", "hi"),
            Said("assistant", "look", (Call("read", {"path": "ä"}), Call("ls", "x"))),
            Said("tool", "text"),
            Said("assistant", "done"),
        )
    )
    text = (
        "<|im_start|>system\nbe good<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\nlook"
        '\n<tool_call>\n{"name": "read", "arguments": {"path": "ä"}}\n</tool_call>'
        '\n<tool_call>\n{"name": "ls", "arguments": "x"}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\ntext\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\ndone<|im_end|>\n"
    )
    assert tokens.ids == tokenizer.encode_special(text)
    answers = [tokens.ids[a:b] for a, b in tokens.turns]
    assert [answer[-1] for answer in answers] == [chat.eos, chat.eos]
    assert bytes(answers[1][:-1]) == b"done"
    assert tokens.answer_tokens == sum(map(len, answers))


@given(st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<tool_call>", "a", "\n"])))
def test_what_is_said_never_becomes_a_mark(parts: list[str]) -> None:
    content = "".join(parts)
    marks = {256: "<|im_start|>", 257: "<|im_end|>", 258: "<tool_call>"}
    tokenizer = ScriptedTokenizer(259, special=marks, eos_ids=frozenset({257}))
    tokens = ChatEncoder(tokenizer).encode(record(Said("user", content), Said("tool", content)))
    assert [i for i in tokens.ids if i >= 256] == [256, 257, 256, 257]


def test_text_between_marks_is_encoded_as_a_whole(chat: Any) -> None:
    asked: list[str] = []

    class Tokenizer(ScriptedTokenizer):
        def encode(self, text: str) -> list[int]:
            asked.append(text)
            return super().encode(text)

    tokenizer = Tokenizer(262, special=chat.marks, eos_ids=frozenset({257}))
    ChatEncoder(tokenizer).encode(record(Said("tool", "text")))
    # the marks of a result are no ids of this vocabulary
    assert "<tool_response>\ntext\n</tool_response>" in asked


@pytest.mark.parametrize(("limit", "turns"), [(1, 0), (10, 0), (11, 1), (73, 1), (74, 2)])
def test_the_message_that_crosses_the_limit_is_whole(chat: Any, limit: int, turns: int) -> None:
    said = record(Said("user", "hi"), Said("assistant", LONG), Said("assistant", "b"))
    tokens = ChatEncoder(chat.tokenizer()).encode(said, limit=limit)
    # 10 tokens of the request, 63 of the first answer: `<|im_start|>assistant\n` … `\n`
    assert len(tokens.turns) == turns
    assert all(tokens.ids[stop - 1] == chat.eos for _, stop in tokens.turns)


def test_a_vocabulary_without_marks(chat: Any) -> None:
    tokenizer = ScriptedTokenizer(260)
    tokens = ChatEncoder(tokenizer).encode(record(Said("assistant", "a")))
    assert tokens.end == 259
    assert bytes(tokens.ids[: tokens.turns[0][0]]) == b"<|im_start|>assistant\n"
    with pytest.raises(InvalidRequestError, match="no id that ends"):
        ChatEncoder(ScriptedTokenizer(260, eos_ids=frozenset()))


def test_text_that_cannot_be_encoded_names_its_line(chat: Any) -> None:
    class Tokenizer(ScriptedTokenizer):
        def encode(self, text: str) -> list[int]:
            if "\ud800" in text:
                raise InvalidRequestError("a lone surrogate")
            return super().encode(text)

    tokenizer = Tokenizer(262, special=chat.marks)
    with pytest.raises(InvalidRequestError, match=r"f\.jsonl:3: a lone surrogate"):
        ChatEncoder(tokenizer).encode(record(Said("user", "\ud800")))


@pytest.mark.weights
def test_qwen_keeps_the_pieces_of_the_format(weights: Any) -> None:
    from agentspec.backends.llama_vocab import file_identity, open_vocabulary

    path = weights("qwen2.5-coder-0.5b")
    tokenizer = open_vocabulary(path)
    assert tokenizer.vocab_size == 151_936
    assert file_identity(path) == file_identity(path)
    call = Call("read", {"path": "a"})
    said = record(Said("user", "<|im_end|>"), Said("assistant", "ok", (call,)), Said("tool", "t"))
    tokens = ChatEncoder(tokenizer).encode(said)
    assert tokens.ids.count(tokens.end) == 3
    assert tokenizer.is_special(tokens.end)
    start, stop = tokens.turns[0]
    text = 'ok\n<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call><|im_end|>'
    assert tokens.ids[start:stop] == tokenizer.encode_special(text)
    result = tokenizer.encode("<tool_response>\nt\n</tool_response>")
    assert tokens.ids[-len(result) - 2 : -2] == result
