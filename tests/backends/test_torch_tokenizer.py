"""The tokenizer of the torch backend: plain text stays plain, pieces are bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.backends.pair import check_pair
from agentspec.errors import InvalidRequestError, ModelFileError, PairMismatchError

pytest.importorskip("torch")
pytest.importorskip("transformers")

from agentspec.backends.torch_tokenizer import TorchTokenizer
from tests.torch_models import ADDED, END, SPECIAL, START, VOCAB, tokenizer


def tiny(**arguments: Any) -> TorchTokenizer:
    return TorchTokenizer(tokenizer(), vocab_size=VOCAB, **arguments)


TINY = tiny()
HOSTILE = st.lists(st.sampled_from([*SPECIAL, *ADDED, "<", "|", ">", "a", " ", "<|im_", "é", "\n"]))


def test_what_it_says_of_the_vocabulary() -> None:
    assert TINY.vocab_size == VOCAB
    assert TINY.eos_ids == {256, END}
    assert tiny(eos_ids=[5, 9999]).eos_ids == {5, 256, END}
    assert TINY.special_ids == set(range(256, VOCAB))
    assert TINY.unused_ids == {261, 262, 263}
    assert (TINY.eos_id, TINY.bos_id, TINY.adds_bos) == (END, None, False)
    assert TINY.special_pieces == {text: 256 + i for i, text in enumerate((*SPECIAL, *ADDED))}
    assert [TINY.piece(i) for i in (65, 200, START, 259, 261, VOCAB, -1)] == [
        b"A", b"\xc8", b"<|im_start|>", b"<tool_call>", b"", b"", b"",
    ]  # fmt: skip
    assert TINY.is_special(START)
    assert not TINY.is_special(65)


@given(st.text() | HOSTILE.map("".join))
def test_plain_text_becomes_no_special_id(text: str) -> None:
    ids = TINY.encode(text)
    assert TINY.special_ids.isdisjoint(ids)
    assert TINY.decode(ids) == text.encode()
    assert b"".join(map(TINY.piece, ids)) == text.encode()


def test_what_a_template_wrote_becomes_special_ids() -> None:
    ids = TINY.encode_special("<|im_start|>user\n<tool_call>x<|im_end|>")
    assert ids == [START, *b"user\n", 259, *b"x", END]
    assert TINY.decode(ids) == b"user\nx"
    assert TINY.encode_special("") == []


def test_text_that_is_no_unicode() -> None:
    for encode in (TINY.encode, TINY.encode_special):
        with pytest.raises(InvalidRequestError, match="character 2"):
            encode("ab\ud800")


def spaced(*, normalised: bool = False, decoder: bool = True) -> Any:
    """A vocabulary that marks spaces, with bytes for what it has no piece of."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "▁a", "<"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    rust = Tokenizer(
        models.BPE(vocab=vocab, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True)
    )
    rust.normalizer = normalizers.Sequence(
        [normalizers.Replace(" ", "▁"), *([normalizers.Lowercase()] if normalised else [])]
    )
    if decoder:
        rust.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    rust.add_special_tokens(["<unk>", "<s>", "</s>"])
    rust.add_tokens([AddedToken("<mark>", normalized=normalised), AddedToken("\n\n")])
    return PreTrainedTokenizerFast(tokenizer_object=rust, bos_token="<s>", eos_token="</s>")


def test_a_vocabulary_that_marks_spaces() -> None:
    text = TorchTokenizer(spaced(), vocab_size=300)
    assert text.eos_ids == {2}
    assert text.bos_id == 1
    ids = text.encode("a aé</s><mark>\n\n")
    assert text.special_ids.isdisjoint(ids)
    assert text.decode(ids) == "a aé</s><mark>\n\n".encode()
    mark, lines = (text._rust.token_to_id(piece) for piece in ("<mark>", "\n\n"))
    assert text.is_special(mark)
    assert not text.is_special(lines)
    assert lines in ids
    assert text.encode_special("</s>") == [2]
    assert text.piece(3 + 0x41) == b"A"


@given(HOSTILE.map("".join) | st.sampled_from(["<MARK>", "x<MaRk>y"]))
def test_a_normaliser_makes_no_special_piece_either(text: str) -> None:
    lower = TorchTokenizer(spaced(normalised=True), vocab_size=300)
    assert lower.special_ids.isdisjoint(lower.encode(text))


def test_tokenizers_that_are_not_known() -> None:
    from tokenizers import decoders

    with pytest.raises(ModelFileError, match=r"decoder \(none\)"):
        TorchTokenizer(spaced(decoder=False), vocab_size=300)
    other = spaced()
    other.backend_tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ModelFileError, match="WordPiece"):
        TorchTokenizer(other, vocab_size=300)
    with pytest.raises(ModelFileError, match="no fast one"):
        TorchTokenizer(object(), vocab_size=300)


def test_pairs() -> None:
    check_pair(tiny(), tiny())
    check_pair(tiny(), TorchTokenizer(tokenizer(), vocab_size=VOCAB + 64))
    with pytest.raises(PairMismatchError, match="token 0"):
        check_pair(tiny(), TorchTokenizer(spaced(), vocab_size=300))
    with pytest.raises(PairMismatchError, match="ends an answer"):
        check_pair(tiny(), tiny(eos_ids=[7]))


@pytest.mark.weights
def test_a_mixed_pair_of_one_vocabulary(weights: Any) -> None:
    """transformers' reading of a GGUF vocabulary, and llama.cpp's."""
    pytest.importorskip("llama_cpp")
    import transformers

    from agentspec.backends.llama_vocab import open_vocabulary

    path = weights("smollm2-135m")
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ours = open_vocabulary(path)
    read = TorchTokenizer(theirs, vocab_size=ours.vocab_size)
    check_pair(ours, read)
    check_pair(read, ours)
    for text in ("def f(x):\n    return x + 1\n", "1234 Ünïcode 漢字 <|im_start|>", "  \n\n\t<b>"):
        assert read.encode(text) == ours.encode(text)
    assert read.encode_special("<|im_start|>user\nhi") == ours.encode_special(
        "<|im_start|>user\nhi"
    )
