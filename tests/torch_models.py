"""Tiny random models in transformers' layout, for tests that need a real one in no time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

ATTENTION = ("llama", "qwen2", "mistral", "gemma2", "gemma3", "gpt2")
"""Kinds whose cache can be cut. mistral sees a window of 16 everywhere, the gemmas in half of
their layers, and gemma2 has soft caps, so that its attention is transformers' plain one."""
RECURRENT = ("mamba", "lfm2", "falcon_h1")
"""mamba keeps one state, lfm2 has one layer with a convolution and one with attention, and each
layer of falcon_h1 has both."""
KINDS = (*ATTENTION, *RECURRENT)

VOCAB = 264
"""Ids below 256 are bytes; 261 to 263 pad the vocabulary."""
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<tool_call>", "</tool_call>")
START, END = 257, 258
WINDOW = 16
LAYERS = 2
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny(folder: Path, kind: str = "llama", *, seed: int = 0, layers: int = LAYERS) -> Path:
    """A model directory of this kind; the same seed gives the same weights."""
    import torch
    import transformers

    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config_of(kind, layers))
    with torch.no_grad():
        # far from uniform, so that arg-max rows have no ties
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "conv" not in name and "A_log" not in name:
                weight.normal_(0, 0.5 if "embed" in name or "head" in name else 0.18)
        # and that texts do not end by chance
        model.get_output_embeddings().weight[[256, END]] = 0
    model.generation_config.eos_token_id = [END]
    model.generation_config.pad_token_id = None
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def config_of(kind: str, layers: int = LAYERS) -> Any:
    import transformers as tf

    usual: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": END,
        "pad_token_id": None,
    }
    windows = {"sliding_window": WINDOW, "head_dim": 16}
    both = (["sliding_attention", "full_attention"] * layers)[:layers]
    gemma = {**usual, **windows, "layer_types": both, "query_pre_attn_scalar": 16}
    makers: dict[str, Callable[[], Any]] = {
        "llama": lambda: tf.LlamaConfig(**usual),
        "qwen2": lambda: tf.Qwen2Config(**usual),
        "mistral": lambda: tf.MistralConfig(**usual, **windows),
        "gemma2": lambda: tf.Gemma2Config(**gemma),
        "gemma3": lambda: tf.Gemma3TextConfig(**gemma),
        "gpt2": lambda: tf.GPT2Config(
            vocab_size=VOCAB, n_embd=64, n_layer=layers, n_head=4, n_positions=2048,
            tie_word_embeddings=False, bos_token_id=None, eos_token_id=END,
        ),
        "mamba": lambda: tf.MambaConfig(
            vocab_size=VOCAB, hidden_size=64, state_size=16, num_hidden_layers=layers,
            tie_word_embeddings=False, bos_token_id=None, eos_token_id=END, pad_token_id=None,
        ),
        "lfm2": lambda: tf.Lfm2Config(
            **usual, layer_types=(["conv", "full_attention"] * layers)[:layers]
        ),
        "falcon_h1": lambda: tf.FalconH1Config(
            **usual, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=16,
            mamba_n_groups=1, head_dim=16,
        ),
    }  # fmt: skip
    return makers[kind]()


def tokenizer() -> Any:
    """Bytes, three control pieces and two that are added but not special."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from agentspec.backends.torch_tokenizer import _byte_letters

    vocab = dict(_byte_letters())
    rust = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    rust.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    rust.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    fast = PreTrainedTokenizerFast(tokenizer_object=rust, eos_token="<|im_end|>")
    fast.chat_template = CHATML
    return fast
