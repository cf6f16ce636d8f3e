"""The committed text in the tokens of another vocabulary, wherever it changes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.propose._transcript import Transcript, encoded, unfinished
from tests.vocabularies import Vocabulary

LETTERS = [bytes([n]) for n in b"abc \n(="]
ODD = [*"é€😀".encode()]
BYTES = [*LETTERS, *(bytes([n]) for n in sorted(set(ODD)))]
TARGET = Vocabulary(
    [*BYTES, b"ab", b" a", b"abc", "é".encode(), b"\xf0\x9f", b"  "],
    special={len(BYTES) + 6: b"<end>", len(BYTES) + 7: b"<start>"},
    eos_ids=frozenset({len(BYTES) + 6}),
)
WORDS = [*BYTES, *(bytes([n]) for n in b"<>endstr"), b"bc", b" ab", b" abc", "😀".encode()]
OWN = Vocabulary(WORDS, special={len(WORDS): b"<s>"}, bos=len(WORDS))
TOKENS = st.lists(st.integers(0, TARGET.vocab_size - 1), max_size=60)


def told(transcript: Transcript) -> bytes:
    """The text of `own`, after checking that it is all of it and begins with the BOS alone."""
    transcript.follow()
    assert transcript.own[0] == OWN.bos_id
    assert not any(OWN.is_special(token) for token in transcript.own[1:])
    return OWN.text(transcript.own)


def shown(text: bytes) -> bytes:
    """What the draft model may see of a text: whole characters."""
    return text[: len(text) - unfinished(text)]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_it_tells_the_text_whatever_is_committed_and_taken_back(data: st.DataObject) -> None:
    transcript = Transcript(TARGET, OWN)
    tokens: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        if data.draw(st.booleans()):
            tokens = tokens[: data.draw(st.integers(0, len(tokens)))] + data.draw(TOKENS)
            transcript.become(tokens)
        else:
            more = data.draw(TOKENS)
            tokens = tokens + more
            transcript.add(more)
        if data.draw(st.booleans()):
            continue
        text = b"".join(map(TARGET.piece, tokens))
        assert transcript.length == len(text)
        try:
            shown(text).decode()
        except UnicodeDecodeError:
            told(transcript)  # bytes that are no text: something near it
            continue
        assert told(transcript) == shown(text)
        assert transcript.own_length == len(shown(text))


def test_only_the_tail_is_encoded_again() -> None:
    seen: list[int] = []

    class Counted(Vocabulary):
        def encode(self, text: str) -> list[int]:
            seen.append(len(text))
            return super().encode(text)

    own = Counted(WORDS)
    transcript = Transcript(TARGET, own)
    transcript.become(TARGET.encode("abc a(" * 500))
    assert not seen
    transcript.follow()
    assert seen == [3000]
    for _ in range(50):
        transcript.add(TARGET.encode("abc a"))
        transcript.follow()
    assert max(seen[1:]) < 40
    seen.clear()
    transcript.follow()
    assert not seen
    # the next turn goes on from a beginning of it
    transcript.become([*transcript.tokens[:-7], *TARGET.encode("(=(")])
    transcript.follow()
    assert max(seen) < 60
    assert own.text(transcript.own) == b"".join(map(TARGET.piece, transcript.tokens))


def test_letters_that_follow_join_those_before_them() -> None:
    transcript = Transcript(TARGET, OWN)
    transcript.become(TARGET.encode("a a"))
    transcript.follow()
    transcript.add(TARGET.encode("b"))
    transcript.add(TARGET.encode("c"))
    transcript.follow()
    assert transcript.own[1:] == OWN.encode("a abc")
    assert OWN.piece(transcript.own[-1]) == b" abc"


def test_special_tokens_are_what_they_spell() -> None:
    transcript = Transcript(TARGET, OWN)
    transcript.become(TARGET.encode_special("<start>ab<end>"))
    assert len(transcript.tokens) == 3
    assert told(transcript) == b"<start>ab<end>"


def test_words_come_out_as_in_one_piece() -> None:
    """Pieces of a word are never encoded as if a text began there."""
    text = " ab abc a(b abc ab" * 5
    whole = OWN.encode(text)
    transcript = Transcript(TARGET, OWN)
    for token in TARGET.encode(text):
        transcript.add([token])
        transcript.follow()
    assert transcript.own[1:] == whole


def test_a_space_before_every_text_is_taken_off_behind_its_beginning() -> None:
    words = [b" ", b"a", b"b", b" a", b"ab", b" ab"]
    spaced = Vocabulary(words, space=True)

    def pieces(text: bytes, start: int) -> list[bytes]:
        ids, ends = encoded(spaced.encode, spaced.piece, text, start)
        assert ends == sorted(ends)
        assert ends[-1] == start + len(text)
        return [spaced.piece(token) for token in ids]

    assert pieces(b"ab ab", 0) == [b" ab", b" ab"]
    assert pieces(b" ab", 7) == [b" ab"]
    assert pieces(b"ba", 7) == [b"b", b"a"]


def test_what_a_vocabulary_cannot_tell_is_left_out() -> None:
    poor = Vocabulary([b"a", b"b", b" "])
    text = b"ab " * 40 + b"\x07" + b"ab " * 40
    ids, ends = encoded(poor.encode, poor.piece, text, 10)
    assert poor.text(ids) == text.replace(b"\x07", b"")
    assert ends[-1] == 10 + len(text)
    assert ends == sorted(ends)
    # and the places are right again soon behind it
    assert ends[-30:] == list(range(10 + len(text) - 29, 10 + len(text) + 1))
    assert encoded(poor.encode, poor.piece, b"\x07", 3) == ([], [])


@pytest.mark.parametrize(
    ("raw", "n"),
    [(b"", 0), (b"a", 0), (b"\xc3", 1), ("é".encode(), 0), (b"a\xe2\x82", 2), (b"\xf0\x9f\x98", 3),
     ("😀".encode(), 0), (b"\x80\x80\x80\x80", 0), (b"\xff", 1)],
)  # fmt: skip
def test_characters_that_are_not_whole(raw: bytes, n: int) -> None:
    assert unfinished(raw) == n


# back into the target's tokens


def in_target(committed: str, written: bytes, ahead: str = "") -> list[bytes]:
    transcript = Transcript(TARGET, OWN)
    transcript.become(TARGET.encode_special(committed))
    found = transcript.in_target(TARGET.encode(ahead), written)
    assert [end for _, end in found] == sorted(end for _, end in found)
    return [TARGET.piece(token) for token, _ in found]


def test_what_is_written_becomes_tokens_behind_what_is_committed() -> None:
    assert in_target("c a", b"bc abc") == [b"b", b"c", b" a", b"b", b"c"]
    assert in_target("c (", b"abc ab") == [b"abc", b" a", b"b"]
    assert in_target("<start>", b"ab<end>") == [b"ab", b"<end>"]
    assert in_target("c ", b"ab", ahead="(=") == [b"ab"]
    assert in_target("", b"ab") == [b"ab"]


def test_where_the_tokens_would_join_the_written_text_is_encoded_alone() -> None:
    # "ab" + "c" is one token: the committed ones cannot be undone
    assert in_target("(ab", b"c(") == [b"c", b"("]


def test_a_character_begun_by_a_committed_token_is_ended_by_a_drafted_one() -> None:
    transcript = Transcript(TARGET, OWN)
    first = [*TARGET.encode("a"), TARGET.encode("😀")[0]]
    transcript.become(first)
    assert TARGET.piece(first[-1]) == b"\xf0\x9f"
    found = transcript.in_target([], "😀".encode()[2:] + b"ab")
    assert [TARGET.piece(token) for token, _ in found] == [b"\x98", b"\x80", b"ab"]


def test_bytes_that_are_no_text_are_not_drafted() -> None:
    assert in_target("a", b"\x80") == []
