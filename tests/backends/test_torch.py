"""The torch backend: early exits, hidden states, what breaks off a pass, what is refused."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Rows
from agentspec.errors import (
    BackendError,
    CancelledError,
    ConfigError,
    DecodeError,
    ModelFileError,
    ModelNotFoundError,
    SequenceLostError,
    UnsupportedError,
)

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

CLOSE = 1e-3
EXITS = ("llama", "qwen2", "mistral", "gemma2", "gemma3", "gpt2")


def near(left: Any, right: Any) -> bool:
    return bool(np.abs(np.asarray(left) - np.asarray(right)).max() < CLOSE)


def chunks(count: int) -> list[int]:
    return [60] * (count // 60) + [count % 60] * bool(count % 60)


# what is computed


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral", "gemma2", "gemma3", "gpt2", "lfm2"])
def test_the_rows_are_those_of_transformers(
    torch_folder: Any, open_torch: Any, feed: Any, words: Any, kind: str
) -> None:
    import transformers

    backend = open_torch(torch_folder(kind))
    text = words(50)
    rows = feed(backend, backend.open(), text, (30, 1, 12, 7))
    plain = transformers.AutoModelForCausalLM.from_pretrained(torch_folder(kind)).eval()
    with torch.no_grad():
        expected = plain(torch.tensor([text])).logits[0].numpy()
    assert near(np.stack(rows), expected)


def test_the_number_format_is_the_one_asked_for(
    torch_folder: Any, open_torch: Any, words: Any
) -> None:
    rows = {}
    for dtype in ("auto", "float32", "bfloat16", "float16"):
        backend = open_torch(torch_folder(), dtype=dtype)
        rows[dtype] = backend.forward([Rows(backend.open(), words(9))]).logits(0)
        wanted = "float32" if dtype == "auto" else dtype
        assert str(backend.dtype) == f"torch.{wanted}"
        assert backend.description().startswith("llama ")
    assert np.array_equal(rows["auto"], rows["float32"])
    assert not near(rows["bfloat16"], rows["float32"])
    assert np.corrcoef(rows["bfloat16"], rows["float32"])[0, 1] > 0.99


def test_rows_stay_on_the_device_until_they_are_asked_for(
    torch_folder: Any, open_torch: Any, words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_torch(torch_folder())
    moved: list[str] = []
    real = torch.Tensor.numpy

    def numpy(tensor: Any) -> Any:
        moved.append("")
        return real(tensor)

    monkeypatch.setattr(torch.Tensor, "numpy", numpy)
    output = backend.forward([Rows(backend.open(), words(9), logits_from=0)])
    assert [output.argmax(i) for i in range(9)]
    assert not moved
    output.logits(3)
    assert len(moved) == 1
    backend.forward([Rows(backend.open(), [1])])
    with pytest.raises(BackendError, match="earlier pass"):
        output.logits(3)


# weights and attention for passes of few rows


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma3", "gpt2", "mamba"])
def test_packed_weights_change_nothing(
    torch_folder: Any, open_torch: Any, feed: Any, words: Any, kind: str
) -> None:
    from agentspec.backends.torch_linear import Packed

    packed, plain = open_torch(torch_folder(kind)), open_torch(torch_folder(kind), packed=False)
    found = [isinstance(module, Packed) for module in packed.inner.modules()]
    # mamba reads the weights of its layers itself, and gpt2 has layers of another kind
    assert sum(found) == {"llama": 15, "gemma2": 15, "gemma3": 15, "gpt2": 1, "mamba": 0}[kind]
    assert not any(isinstance(module, Packed) for module in plain.inner.modules())
    rows = [feed(b, b.open(), words(30), (20, 1, 2, 7)) for b in (packed, plain)]
    assert near(*rows)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3"])
def test_attention_row_by_row_gives_equal_bits(
    torch_folder: Any, open_torch: Any, feed: Any, words: Any, kind: str
) -> None:
    """Behind contexts shorter and longer than the windows, and than attention's blocks."""
    backend = open_torch(torch_folder(kind), apart=True)
    together = open_torch(torch_folder(kind))
    text, more = words(500), words(16, seed=3)
    for context in (1, 14, 40, 480):
        rows: dict[int, Any] = {}
        for count in (2, 3, 4, 5, 8, 16):
            seq = backend.open()
            feed(backend, seq, text[:context], chunks(context))
            parts = [count] * (16 // count) + [16 % count] * bool(16 % count)
            found = feed(backend, seq, more, parts)
            rows[count] = found[: count * (16 // count)]
            backend.drop(seq)
        for count, found in rows.items():
            assert np.array_equal(found, rows[16][: len(found)]), (context, count)
        seq = together.open()
        feed(together, seq, text[:context], chunks(context))
        assert near(feed(together, seq, more), rows[16])
        together.drop(seq)


# early exits


@pytest.mark.parametrize("kind", EXITS)
def test_an_exit_is_the_model_with_fewer_layers(
    torch_folder: Any, open_torch: Any, feed: Any, words: Any, kind: str, tmp_path: Path
) -> None:
    """Its rows behind a prompt of the whole model, whose keys and values it shares."""
    backend = open_torch(torch_folder(kind, layers=4))
    assert backend.capabilities.exit_layers == (1, 2, 3)
    small = open_torch(cut_to(torch_folder(kind, layers=4), tmp_path / "small", 2))
    prompt, text = words(30), words(12, seed=3)
    seq, clean = backend.open(), small.open()
    feed(backend, seq, prompt)
    expected = feed(small, clean, [*prompt, *text])[30:]
    rows = []
    for at, n in ((0, 5), (5, 1), (6, 6)):
        output = backend.forward([Rows(seq, text[at : at + n], logits_from=0, exit_layer=2)])
        rows += [output.logits(i).copy() for i in range(n)]
        assert backend.length(seq) == 30
        assert backend.ahead(seq) == at + n
    assert near(rows, expected)
    # the whole model goes on as if no exit had been
    fresh = open_torch(torch_folder(kind, layers=4))
    other = fresh.open()
    feed(fresh, other, prompt)
    assert near(feed(backend, seq, text), feed(fresh, other, text))
    assert backend.ahead(seq) == 0


def cut_to(source: Path, folder: Path, layers: int) -> Path:
    """The same weights with the first layers only."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    config = transformers.AutoConfig.from_pretrained(source)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    small = transformers.AutoModelForCausalLM.from_config(config)
    missing, _ = small.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    small.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder)
    return folder


def test_exit_rows_are_cut_and_dropped(
    torch_folder: Any, open_torch: Any, feed: Any, words: Any
) -> None:
    backend, fresh = open_torch(torch_folder(layers=4)), open_torch(torch_folder(layers=4))
    seq, clean = backend.open(), fresh.open()
    feed(backend, seq, words(10))
    feed(fresh, clean, words(10))

    def exits(b: Any, s: int, tokens: list[int]) -> Any:
        return b.forward([Rows(s, tokens, exit_layer=2)]).logits(0).copy()

    exits(backend, seq, [1, 2, 3, 4, 5])
    backend.rollback(seq, 12)
    assert (backend.length(seq), backend.ahead(seq)) == (10, 2)
    exits(fresh, clean, [1, 2])
    assert near(exits(backend, seq, [9]), exits(fresh, clean, [9]))
    # behind another layer it begins anew
    exits(backend, seq, [1])
    backend.rollback(seq, 10)
    assert backend.ahead(seq) == 0
    exits(backend, seq, [1, 2])
    output = backend.forward([Rows(seq, [7], exit_layer=3)])
    assert backend.ahead(seq) == 1
    backend.rollback(clean_seq := seq, 8)
    assert (backend.length(clean_seq), backend.ahead(seq)) == (8, 0)
    assert len(output) == 1
    for wrong in (0, 4, 9):
        with pytest.raises(UnsupportedError, match=f"layer {wrong}"):
            backend.forward([Rows(seq, [1], exit_layer=wrong)])
    with pytest.raises(UnsupportedError):
        backend.forward([Rows(seq, [1, 2], parents=[-1, -1], exit_layer=2)])


def test_a_tree_behind_exit_rows(torch_folder: Any, open_torch: Any, feed: Any, words: Any) -> None:
    backend, fresh = open_torch(torch_folder(layers=4)), open_torch(torch_folder(layers=4))
    seq, clean = backend.open(), fresh.open()
    feed(backend, seq, words(10))
    feed(fresh, clean, words(10))
    backend.forward([Rows(seq, [1, 2, 3], exit_layer=1)])
    backend.forward([Rows(seq, [4, 5, 6], parents=[-1, 0, 0])])
    backend.forward([Rows(seq, [1], exit_layer=1)])
    with pytest.raises(BackendError, match="no tree"):
        backend.commit_path(seq, [0, 2])
    backend.forward([Rows(seq, [4, 5, 6], parents=[-1, 0, 0])])
    backend.commit_path(seq, [0, 2])
    feed(fresh, clean, [4, 6])
    assert near(feed(backend, seq, [9]), feed(fresh, clean, [9]))


# hidden states


@pytest.mark.parametrize("kind", [*EXITS, "lfm2"])
def test_hidden_states_are_those_of_transformers(
    torch_folder: Any, open_torch: Any, words: Any, kind: str
) -> None:
    import transformers

    backend = open_torch(torch_folder(kind, layers=4))
    seq, text = backend.open(), words(20)
    backend.forward([Rows(seq, text[:8])])
    backend.tap([0, 2, 3])
    assert backend.taps == (0, 2, 3)
    output = backend.forward([Rows(seq, text[8:], logits_from=9, hidden=True)])
    found = output.features()
    plain = transformers.AutoModelForCausalLM.from_pretrained(torch_folder(kind, layers=4)).eval()
    with torch.no_grad():
        expected = plain(torch.tensor([text]), output_hidden_states=True)
    assert near(found.last, expected.hidden_states[-1][0, 8:])
    for states, n in zip(found.taps, (0, 2, 3), strict=True):
        assert near(states, expected.hidden_states[n][0, 8:])
    assert near(output.hidden(1), expected.hidden_states[-1][0, 18])
    assert near(backend.head(found.last), expected.logits[0, 8:])
    ids = plain.get_input_embeddings()(torch.tensor(text[:3]))
    assert near(backend.embed(text[:3]), ids.detach())
    with pytest.raises(UnsupportedError, match="not asked"):
        backend.forward([Rows(seq, [1])]).features()
    backend.tap([])
    assert backend.forward([Rows(seq, [1], logits_from=1, hidden=True)]).features().taps == ()


def test_hidden_states_of_an_exit(torch_folder: Any, open_torch: Any, words: Any) -> None:
    """What an adapter behind the exit reads: the state before the norm, and behind it."""
    backend = open_torch(torch_folder(layers=4))
    seq = backend.open()
    backend.tap([2])
    output = backend.forward([Rows(seq, words(5), logits_from=0, hidden=True, exit_layer=2)])
    states = output.features()
    assert near(backend.head(states.last), output.rows)
    assert near(backend.inner.model.norm(states.taps[0]), states.last)
    with pytest.raises(UnsupportedError, match="behind layer 5 of 4"):
        backend.tap([5])


def test_a_listener_hears_every_pass_of_the_whole_model(
    torch_folder: Any, open_torch: Any, words: Any
) -> None:
    backend = open_torch(torch_folder(layers=4))
    backend.tap([1])
    heard: list[Any] = []
    stop = backend.listen(heard.append)
    a, b = backend.open(), backend.open()
    backend.forward([Rows(a, words(5), logits_from=5), Rows(b, [1, 2])])
    backend.forward([Rows(a, [3], exit_layer=2)])
    backend.forward([Rows(a, [4, 5, 6], parents=[-1, 0, 0], logits_from=0)])
    with pytest.raises(DecodeError):
        backend.forward([Rows(a, [9999])])
    assert [(each.start, each.rows.seq, list(each.rows.tokens)) for each in heard] == [
        (0, a, words(5)), (0, b, [1, 2]), (5, a, [4, 5, 6]),
    ]  # fmt: skip
    assert [len(each.features.last) for each in heard] == [5, 2, 3]
    assert [len(each.features.taps[0]) for each in heard] == [5, 2, 3]
    backend.commit_path(a, [0, 2])
    stop()
    stop()
    backend.forward([Rows(a, [1])])
    assert len(heard) == 3
    fresh = backend.open()
    text = [*words(5), 4, 6]
    again = backend.forward([Rows(fresh, text, hidden=True)]).features()
    assert near(heard[2].features.last[2], again.last[6])


# what breaks off a pass


def test_a_cancel_ends_a_pass(torch_folder: Any, open_torch: Any, feed: Any, words: Any) -> None:
    backend, fresh = open_torch(torch_folder(layers=4)), open_torch(torch_folder(layers=4))
    seq, clean = backend.open(), fresh.open()
    feed(backend, seq, words(10))
    feed(fresh, clean, words(10))
    block = backend.inner.model.layers[2]
    hook = block.register_forward_hook(lambda *_: backend.cancel())
    with pytest.raises(CancelledError):
        backend.forward([Rows(seq, words(5))])
    hook.remove()
    assert backend.length(seq) == 10
    assert near(feed(backend, seq, [3]), feed(fresh, clean, [3]))


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2", "mamba"])
@pytest.mark.parametrize("error", [RuntimeError("no memory\nleft"), KeyboardInterrupt()])
def test_a_pass_that_fails_leaves_everything_as_it_was(
    torch_folder: Any, open_torch: Any, feed: Any, words: Any, kind: str, error: BaseException
) -> None:
    backend, fresh = (
        open_torch(torch_folder(kind, layers=4)),
        open_torch(torch_folder(kind, layers=4)),
    )
    a, b, clean = backend.open(), backend.open(), fresh.open()
    feed(backend, a, words(10))
    feed(backend, b, words(7))
    feed(fresh, clean, words(10))
    points = [backend.checkpoint(seq) for seq in (a, b)]
    blocks = backend._model._exits[4]

    def fail(*_: Any) -> None:
        raise error

    for block in blocks:
        hook = block.register_forward_hook(fail)
        wanted = DecodeError if isinstance(error, RuntimeError) else KeyboardInterrupt
        with pytest.raises(wanted) as caught:
            backend.forward([Rows(a, words(5)), Rows(b, words(5))])
        assert "\n" not in str(caught.value)
        hook.remove()
        assert (backend.length(a), backend.length(b)) == (10, 7)
    assert near(feed(backend, a, [3, 4]), feed(fresh, clean, [3, 4]))
    assert [point.length for point in points] == [10, 7]


def test_a_recurrent_state_without_a_checkpoint_is_lost(
    torch_folder: Any, open_torch: Any, feed: Any, words: Any
) -> None:
    backend = open_torch(torch_folder("lfm2"))
    seq = backend.open()
    feed(backend, seq, words(10))

    def fail(*_: Any) -> None:
        raise RuntimeError("no memory")

    hook = backend.inner.lm_head.register_forward_hook(fail)
    with pytest.raises(SequenceLostError, match="no checkpoint was made there"):
        backend.forward([Rows(seq, [1, 2])])
    hook.remove()
    assert backend.length(seq) == 0


def test_close_waits_for_the_pass_and_ends_it(
    torch_folder: Any, open_torch: Any, words: Any
) -> None:
    backend = open_torch(torch_folder(layers=4))
    seq, begun, ended = backend.open(), threading.Event(), []

    def slow(*_: Any) -> None:
        begun.set()
        import time

        time.sleep(0.02)

    for block in backend.inner.model.layers:
        block.register_forward_hook(slow)

    def run() -> None:
        try:
            while True:
                backend.forward([Rows(seq, words(1))])
        except (CancelledError, BackendError):
            ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(60)
    backend.close()
    thread.join(60)
    assert ended


# what is refused


def test_pickled_weights_are_refused_by_name(
    torch_folder: Any, open_torch: Any, tmp_path: Path
) -> None:
    bad = tmp_path / "model"
    shutil.copytree(torch_folder(), bad)
    (bad / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match="holds no weights"):
        open_torch(bad)
    (bad / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ModelFileError, match=r"pytorch_model\.bin, a pickle"):
        open_torch(bad)


def test_files_that_are_no_model(torch_folder: Any, open_torch: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no file or folder"):
        open_torch(tmp_path / "absent")
    with pytest.raises(ModelFileError, match=r"no config\.json"):
        open_torch(tmp_path)
    for name, content in (
        ("config.json", b"{"),
        ("config.json", b'{"model_type": "no such"}'),
        ("model.safetensors", b"\xff" * 64),
        ("tokenizer.json", b"{}"),
    ):
        bad = tmp_path / "bad"
        shutil.copytree(torch_folder(), bad)
        (bad / name).write_bytes(content)
        with pytest.raises(ModelFileError) as caught:
            open_torch(bad)
        assert str(bad) in str(caught.value)
        assert "\n" not in str(caught.value)
        shutil.rmtree(bad)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError):
        open_torch(tmp_path / "x.gguf")


def test_code_of_a_checkpoint_is_not_run(
    torch_folder: Any, open_torch: Any, tmp_path: Path
) -> None:
    bad = tmp_path / "model"
    shutil.copytree(torch_folder(), bad)
    marker = tmp_path / "ran"
    (bad / "code.py").write_text(f"open({str(marker)!r}, 'w')\nclass Config: pass\n")
    told = json.loads((bad / "config.json").read_text())
    told |= {"model_type": "own", "auto_map": {"AutoConfig": "code.Config"}}
    (bad / "config.json").write_text(json.dumps(told))
    with pytest.raises(ModelFileError):
        open_torch(bad)
    assert not marker.exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"n_ctx": 2}, {"n_threads": 0}, {"chunk": 0}, {"max_seqs": 1000}, {"tree_leaves": -1},
        {"dtype": "int4"}, {"device": "tpu"}, {"device": "cuda:x"}, {"packed": "yes"},
        {"n_ctx": True},
    ],
)  # fmt: skip
def test_settings_that_are_wrong(settings: dict[str, Any]) -> None:
    from agentspec.backends.torch import TorchSettings

    with pytest.raises(ConfigError, match=next(iter(settings))):
        TorchSettings(**settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", "map"])
def test_a_device_that_is_not_there(torch_folder: Any, open_torch: Any, device: str) -> None:
    with pytest.raises(ConfigError, match="no CUDA device"):
        open_torch(torch_folder(), device=device)


def test_without_trees(torch_folder: Any, open_torch: Any) -> None:
    backend = open_torch(torch_folder(), tree_leaves=0)
    assert (backend.capabilities.tree, backend.capabilities.max_leaves) == (False, 1)
    with pytest.raises(UnsupportedError, match="chains only"):
        backend.forward([Rows(backend.open(), [1, 2], parents=[-1, -1])])


def test_a_model_has_no_more_positions_than_it_learned(torch_folder: Any, open_torch: Any) -> None:
    assert open_torch(torch_folder("gpt2"), n_ctx=100_000).n_ctx == 2048


def test_a_gguf_file_that_scales_its_positions_is_refused(
    tiny: Any, open_torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither our reader nor transformers' knows all ways: the text would be another model's."""
    from dataclasses import replace

    from agentspec.backends import torch_gguf
    from agentspec.models.gguf import read_header

    for key, value in (("rope.scaling.type", "yarn"), ("rope.scaling.factor", 8.0)):

        def read(path: Any, key: str = key, value: Any = value) -> Any:
            header = read_header(path)
            return replace(header, metadata={**header.metadata, f"llama.{key}": value})

        monkeypatch.setattr(torch_gguf, "read_header", read)
        with pytest.raises(ModelFileError, match="scales its positions"):
            open_torch(tiny("dense"))
