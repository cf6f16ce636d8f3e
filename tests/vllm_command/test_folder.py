"""Facts of model folders: shapes, bytes out of headers, and files that make no sense."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentspec.errors import ModelFileError
from agentspec.vllm.find import find
from agentspec.vllm.folder import read_config, read_folder, tokens_of, weight_bytes
from tests.vllm_command.folders import SMALL, Make, write_tensors


def test_a_shape(folder: Make) -> None:
    facts = read_folder(folder("m", tensors={"w": ("BF16", [8, 4], 64), "n": ("F32", [4], 16)}))
    assert (facts.architecture, facts.layers, facts.heads, facts.kv_heads) == (
        "LlamaForCausalLM", 2, 4, 2,
    )  # fmt: skip
    assert (facts.hidden, facts.head_dim, facts.ff, facts.vocab) == (256, 64, 512, 512)
    assert facts.longest == 2048
    # the 32-bit values are loaded as 16-bit ones
    assert facts.loaded == 64 + 8
    assert facts.plain
    assert not facts.moe
    assert facts.mtp == 0


def test_the_text_part_of_a_model_of_several_kinds(folder: Make) -> None:
    inner = {**SMALL, "model_type": "mistral", "hidden_size": 512}
    path = folder(
        "m", architectures=["Mistral3ForConditionalGeneration"], model_type="mistral3",
        hidden_size=None, num_hidden_layers=None, text_config=inner,
    )  # fmt: skip
    facts = read_folder(path)
    assert facts.hidden == 512
    assert facts.layers == 2
    assert facts.model_type == "mistral3"


def test_a_latent_cache_and_layers_that_predict(folder: Make) -> None:
    facts = read_folder(
        folder(
            "m", model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"],
            kv_lora_rank=512, qk_rope_head_dim=64, num_nextn_predict_layers=1, n_routed_experts=8,
            moe_intermediate_size=128,
        )
    )  # fmt: skip
    assert facts.latent == 576
    assert facts.mtp == 1
    assert (facts.experts, facts.expert_ff) == (8, 128)
    assert not facts.plain


def test_published_medusa_heads_have_no_kind_and_no_layers(folder: Make) -> None:
    path = folder(
        "m", architectures=None, model_type=None, num_hidden_layers=None,
        num_attention_heads=None, medusa_num_heads=3, medusa_num_layers=1,
    )  # fmt: skip
    facts = read_folder(path)
    assert (facts.model_type, facts.layers, facts.heads) == ("medusa", 0, 0)


@pytest.mark.parametrize(
    ("changed", "windowed"),
    [
        ({"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"]}, 1),
        ({"sliding_window": 512, "model_type": "mistral"}, 2),
        ({"sliding_window": 512, "use_sliding_window": False}, 0),
        ({"sliding_window": 512, "model_type": "qwen2"}, 0),
        ({"sliding_window": None}, 0),
        # left to the model's class: every 6th, 2nd and 4th layer sees all of the text
        ({"sliding_window": 512, "model_type": "gemma3_text", "num_hidden_layers": 62}, 52),
        ({"sliding_window": 512, "model_type": "gemma2", "num_hidden_layers": 42}, 21),
        ({"sliding_window": 512, "model_type": "cohere2", "num_hidden_layers": 40}, 30),
        ({"sliding_window": 512, "sliding_window_pattern": 4, "num_hidden_layers": 12}, 9),
        ({"sliding_window": 512, "sliding_window_pattern": "LLLG", "num_hidden_layers": 30}, 23),
        ({"sliding_window": 512, "sliding_window_pattern": 0}, 2),
    ],
)
def test_windows(folder: Make, changed: dict[str, Any], windowed: int) -> None:
    facts = read_folder(folder("m", **changed))
    assert facts.windowed == windowed
    assert facts.window == (512 if windowed else 0)


@pytest.mark.parametrize(
    ("changed", "attending"),
    [
        ({"layer_types": ["linear_attention", "full_attention"]}, 1),
        ({"layer_types": ["full_attention", "sliding_attention"]}, None),
        ({"layers_block_type": ["mamba", "attention"]}, 1),
        ({"hybrid_override_pattern": "M*"}, 1),
        ({"full_attention_interval": 2}, 1),
        ({}, None),
    ],
)
def test_layers_that_keep_a_cache(
    folder: Make, changed: dict[str, Any], attending: int | None
) -> None:
    assert read_folder(folder("m", **changed)).attending == attending


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_type": "llama3", "factor": 8.0}, 2048),
        ({"type": "yarn", "factor": 4.0}, 2048),
        ({"rope_type": "linear", "factor": 4.0}, 8192),
        ({"sliding": {"rope_type": "default"}, "full": {"rope_type": "linear", "factor": 2}}, 4096),
        ({"rope_type": "linear", "factor": float("inf")}, 2048),
        ({"rope_type": "linear", "factor": float("nan")}, 2048),
        ({"rope_type": "linear", "factor": 1e300}, 2048),
        ({"rope_type": "linear", "factor": -2}, 2048),
        ("linear", 2048),
    ],
)
def test_a_stretched_context(folder: Make, rope: dict[str, Any], longest: int) -> None:
    assert read_folder(folder("m", rope_scaling=rope)).longest == longest


def test_a_length_that_counts_before_all_others(folder: Make) -> None:
    assert read_folder(folder("m", model_max_length=8192)).longest == 8192
    rope = {"rope_type": "linear", "factor": 8.0}
    scaled = folder("n", model_type="gemma3_text", rope_scaling=rope)
    assert read_folder(scaled).longest == 2048


@pytest.mark.parametrize("inside", [True, False])
def test_what_is_served_by_itself_of_a_stretched_model(folder: Make, inside: bool) -> None:
    rope: dict[str, Any] = {"type": "longrope"}
    told = {"original_max_position_embeddings": 512}
    more = {"rope_scaling": {**rope, **told}} if inside else {"rope_scaling": rope, **told}
    facts = read_folder(folder("m", **more))
    assert (facts.longest, facts.usual) == (2048, 512)
    plain = folder("n", original_max_position_embeddings=512)
    assert read_folder(plain).usual == 0
    odd = folder("o", original_max_position_embeddings="512", rope_scaling=rope)
    assert read_folder(odd).usual == 0


@pytest.mark.parametrize(
    ("config", "bytes_per_weight"),
    [
        ({"quant_method": "awq", "bits": 4}, 0.51953125),
        ({"quant_method": "gptq", "bits": 8}, 1.0234375),
        ({"quant_method": "fp8"}, 1.0),
        ({"quant_method": "unheard-of"}, 2.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
            },
            0.51953125,
        ),
        ({"quant_method": "compressed-tensors", "config_groups": [1]}, 2.0),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": 1, "b": {"weights": 2}}},
            2.0,
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 1.0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5625),
        ({"quant_method": "mxfp4"}, 0.53125),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1.0),
        ({"quant_method": "awq", "bits": 16}, 2.0),
        ("fp8", 2.0),
    ],
)
def test_quantised_weights(folder: Make, config: dict[str, Any], bytes_per_weight: float) -> None:
    assert read_folder(folder("m", quantization_config=config)).bytes_per_weight == bytes_per_weight


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", -1),
        ("num_hidden_layers", 10**9),
        ("hidden_size", 0),
        ("hidden_size", "256"),
        ("num_attention_heads", True),
        ("vocab_size", 1.5),
    ],
)
def test_numbers_that_cannot_be(folder: Make, key: str, value: object) -> None:
    with pytest.raises(ModelFileError, match=key) as error:
        read_folder(folder("m", **{key: value}))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["num_attention_heads", "hidden_size", "num_hidden_layers"])
def test_what_is_left_to_the_models_class_is_not_known(folder: Make, key: str) -> None:
    """As published configurations of Gemma 3 do; vLLM fills it in."""
    found, missing = find(str(folder("m", **{key: None})))
    assert found is None
    assert f"does not say {key}" in missing
    assert "\n" not in missing
    found, missing = find(str(folder("n", **{key: [4, 4]})))
    assert found is None
    assert f"{key} differs from layer to layer" in missing


@pytest.mark.parametrize(
    "told", ["A\nB", "\x1b[31mred", "x" * 81, "a b", 7, None, ["LlamaForCausalLM"], {"a": "b"}]
)
def test_names_that_are_none_are_left_out(folder: Make, told: object) -> None:
    facts = read_folder(folder("m", architectures=[told], model_type=told))
    assert (facts.architecture, facts.model_type) == ("", "")


@pytest.mark.parametrize("added", [5, "x", {"a": 1}, [1, {"id": "7"}, None]])
def test_added_tokens_that_are_none(folder: Make, added: object) -> None:
    path = folder("m", tokens={"a": 0})
    told = json.loads((path / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps({**told, "added_tokens": added}))
    assert tokens_of(path) == {"a": 0}


@pytest.mark.parametrize(
    "tensor",
    [
        '{"dtype": "F32", "shape": [NaN], "data_offsets": [0, 4]}',
        '{"dtype": "F32", "shape": [-4], "data_offsets": [0, 4]}',
        '{"dtype": "BF16", "shape": [2], "data_offsets": [4, 0]}',
        '{"dtype": "BF16", "shape": [2], "data_offsets": [0, NaN]}',
        '{"dtype": "BF16", "shape": [2], "data_offsets": [0, 4.5]}',
        '{"dtype": "F32", "shape": "ab", "data_offsets": [0, 4]}',
    ],
)
def test_tensors_that_cannot_be(tmp_path: Path, tensor: str) -> None:
    text = f'{{"w": {tensor}}}'.encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(ModelFileError, match="safetensors"):
        weight_bytes(tmp_path)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    assert weight_bytes(tmp_path) is None


def test_what_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json"):
        read_folder(tmp_path)
    for text in ("[1]", "{", "\xff", "[" * 99_999):
        (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(ModelFileError):
            read_folder(tmp_path)
    with pytest.raises(ModelFileError, match="does not say num_hidden_layers"):
        read_config({"hidden_size": 8}, name="m", source="here")


def test_bytes_come_from_headers_alone(tmp_path: Path) -> None:
    assert weight_bytes(tmp_path) is None
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(100))
    assert weight_bytes(tmp_path) == 100
    write_tensors(tmp_path / "model-1.safetensors", {"a": ("BF16", [4], 8)})
    write_tensors(tmp_path / "model-2.safetensors", {"b": ("F8_E4M3", [4], 4)})
    # the publisher's own format beside the hub's
    write_tensors(tmp_path / "consolidated.safetensors", {"a": ("BF16", [4], 8)})
    assert weight_bytes(tmp_path) == 12


@pytest.mark.parametrize(
    "content",
    [b"", b"abc", b"\xff" * 8, b"\x02" + bytes(7) + b"[]", b"\x09" + bytes(7) + b'{"a": {}}'],
)
def test_files_that_are_no_safetensors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelFileError, match="safetensors"):
        weight_bytes(tmp_path)


def test_tokens_of_a_tokenizer(folder: Make, tmp_path: Path) -> None:
    path = folder("m", tokens={"a": 0, "b": 1}, added={"<|end|>": 2})
    assert tokens_of(path) == {"a": 0, "b": 1, "<|end|>": 2}
    assert tokens_of(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {}}))
    assert tokens_of(tmp_path) is None


def test_where_facts_come_from(folder: Make) -> None:
    path = folder("m")
    found, missing = find(str(path))
    assert found is not None
    assert found.source == str(path / "config.json")
    assert missing == ""
    table, _ = find("Qwen/Qwen3-8B")
    assert table is not None
    assert "built-in" in table.source


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org/nobody-knows", "Hugging Face"),
        ("no-such-thing", "no such folder"),
        ("x" * 5000, "no such folder"),
        ("x.gguf", "GGUF"),
    ],
)
def test_what_is_not_known_says_why_in_one_line(name: str, said: str) -> None:
    pytest.importorskip("huggingface_hub")
    found, missing = find(name)
    assert found is None
    assert said in missing
    assert "\n" not in missing


def test_a_folder_in_mistrals_own_form_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    found, missing = find(str(tmp_path))
    assert found is None
    assert "Mistral" in missing


def test_a_model_of_the_hub_is_asked_for_its_configuration_alone(
    folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    path = folder("m")
    asked: list[tuple[str, str, str | None, bool]] = []

    def download(repo: str, filename: str, *, revision: str | None, local_files_only: bool) -> str:
        asked.append((repo, filename, revision, local_files_only))
        return str(path / filename)

    class Metadata:
        parameter_count: ClassVar = {"BF16": 10, "F8_E4M3": 4}

    def refused(*_a: Any, **_k: Any) -> None:
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(hub, "hf_hub_download", download)
    monkeypatch.setattr(hub, "get_safetensors_metadata", lambda *_a, **_k: Metadata)
    monkeypatch.setattr(hub, "get_hf_file_metadata", refused)
    # offline, and where nobody answers, what the cache has is read and no more is asked for
    for _ in range(2):
        found, _missing = find("org/name", revision="v2")
        assert found is not None
        assert found.loaded is None
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "get_hf_file_metadata", lambda *_a, **_k: None)
    found, _missing = find("org/name")
    assert found is not None
    assert found.loaded == 24
    assert "org/name on Hugging Face" in found.source
    first = ("org/name", "config.json", "v2", True)
    assert asked == [first, first, ("org/name", "config.json", None, False)]


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    asked: list[str] = []

    def refused(url: str, **_how: Any) -> None:
        asked.append(url)
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(hub, "get_hf_file_metadata", refused)
    found, missing = find("org/name")
    assert found is None
    assert missing == "Hugging Face (org/name): no"
    assert len(asked) == 1
