"""What a GGUF header says about a model's layers: widths, heads, windows, recurrent state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agentspec.errors import ModelFileError
from agentspec.models.gguf import GgufHeader, Skipped, Value

MAX_LAYERS = 512
_MAX_WIDTH = 1 << 20
_MAX_VOCAB = 1 << 24
_MAX_CONTEXT = (1 << 31) - 1

# Layers of these see a window in turns of so many, all but the last of a turn; 1: none does.
# Only for files that do not say it themselves (attention.sliding_window_pattern).
_TURNS: Mapping[str, int] = MappingProxyType(
    {
        "afmoe": 4,
        "cohere2": 4,
        "exaone4": 4,
        "gemma2": 2,
        "gemma3": 6,
        "gemma3n": 5,
        "gpt-oss": 2,
        "llama4": 4,
        "olmo2": 4,
        "phi3": 1,
        "smallthinker": 4,
    }
)
# Every so many layers of these attend, the others are recurrent, where head_count_kv is silent.
_ATTEND_EVERY: Mapping[str, int] = MappingProxyType(
    {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "kimi-linear": 4}
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's part in the cache, in values: per token, and per sequence.

    `keys` and `values` are kept for each token, of the last `window` tokens at most where it is
    not 0. `state` is what a recurrent layer keeps for a sequence, in 32-bit floats.
    """

    keys: int = 0
    values: int = 0
    window: int = 0
    state: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes that memory depends on, all in numbers of values.

    `query` is the width of all heads' queries, `ff` of what one token passes through inside a
    layer's feed-forward part, `experts` the width of what the chosen experts put out, 0 without.
    """

    architecture: str
    layers: tuple[Layer, ...]
    embd: int
    ff: int
    heads: int
    query: int
    key_value: int
    vocab: int
    n_ctx_train: int
    experts: int = 0

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def windowed(self) -> int:
        """Layers that see a window only."""
        return sum(layer.window > 0 for layer in self.layers)

    @property
    def recurrent(self) -> bool:
        """True when some layer keeps a state that cannot be cut back."""
        return any(layer.state for layer in self.layers)

    @classmethod
    def of(cls, header: GgufHeader) -> Shape:
        """The shape of a file. Raises ModelFileError where a number is absent or no size."""
        return _Reader(header).shape()


class _Reader:
    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        self._arch = header.architecture
        if not self._arch:
            raise self._fail("general.architecture", None)

    def _fail(self, key: str, found: object) -> ModelFileError:
        said = "absent" if found is None else repr(found)[:40]
        return ModelFileError(
            f"{self._header.path} does not say how large the model is: {key[:80]} is {said}; "
            "is it a language model?"
        )

    def _raw(self, key: str) -> Value | None:
        return self._header.metadata.get(f"{self._arch}.{key}")

    def _one(self, key: str, high: int, *, low: int = 0, default: int | None = None) -> int:
        found = self._raw(key)
        if found is None and default is not None:
            return default
        if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= high:
            raise self._fail(f"{self._arch}.{key}", found)
        return found

    def _each(self, key: str, n: int, high: int, default: int) -> list[int]:
        """A number per layer, from one for all of them or from a list."""
        found = self._raw(key)
        if not isinstance(found, tuple):
            return [self._one(key, high, default=default)] * n
        whole = [v for v in found if isinstance(v, int) and not isinstance(v, bool)]
        if len(found) < n or len(whole) < len(found) or not all(0 <= v <= high for v in whole):
            raise self._fail(f"{self._arch}.{key}", found)
        return whole[:n]

    def _vocab(self) -> int:
        tokens = self._header.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, Skipped):
            known = tokens.count
        elif isinstance(tokens, tuple):
            known = len(tokens)
        else:
            known = self._one("vocab_size", _MAX_VOCAB, default=0)
        # the rows of the embedding are what logits are made for, padding included
        for tensor in self._header.tensors:
            if tensor.name == "token_embd.weight" and len(tensor.dims) == 2:
                known = tensor.dims[1]
        if not 0 < known <= _MAX_VOCAB:
            raise self._fail(f"{self._arch}.vocab_size", known or None)
        return known

    def shape(self) -> Shape:
        n = self._one("block_count", MAX_LAYERS, low=1)
        embd = self._one("embedding_length", _MAX_WIDTH, low=1)
        heads = self._each("attention.head_count", n, _MAX_WIDTH, 0)
        kv_heads = self._each("attention.head_count_kv", n, _MAX_WIDTH, max(heads))
        most = max(heads)
        width = embd // most if most else 0
        key = self._one("attention.key_length", _MAX_WIDTH, default=width)
        value = self._one("attention.value_length", _MAX_WIDTH, default=width)
        # attention over a shared latent keeps that alone: values are read out of the keys
        latent = self._raw("attention.key_length_mla") is not None
        windows = self._windows(n)
        recurrent = self._recurrent(n, kv_heads)
        state = self._state(embd) if any(recurrent) else 0
        both = self._arch == "falcon-h1"
        layers = []
        for i in range(n):
            attends = both or not recurrent[i]
            layers.append(
                Layer(
                    keys=kv_heads[i] * key if attends else 0,
                    values=kv_heads[i] * value if attends and not latent else 0,
                    window=windows[i] if attends else 0,
                    state=state if recurrent[i] else 0,
                )
            )
        ff = max(self._each("feed_forward_length", n, _MAX_WIDTH, 0))
        used = self._one("expert_used_count", 1 << 12, default=0)
        experts = 0
        if used:
            # the experts of a token side by side, and those that all tokens pass through
            each = self._one("expert_feed_forward_length", _MAX_WIDTH, default=ff)
            shared = self._one("expert_shared_feed_forward_length", _MAX_WIDTH, default=0)
            ff, experts = max(each * used, shared), embd * used
        if state:
            ff = max(ff, 2 * self._one("ssm.inner_size", _MAX_WIDTH, default=0))
        return Shape(
            self._arch,
            tuple(layers),
            embd=embd,
            ff=ff,
            heads=most,
            query=most * key,
            key_value=max(kv_heads, default=0) * key,
            vocab=self._vocab(),
            n_ctx_train=self._one("context_length", _MAX_CONTEXT, default=0),
            experts=experts,
        )

    def _windows(self, n: int) -> list[int]:
        window = self._one("attention.sliding_window", _MAX_CONTEXT, default=0)
        if not window:
            return [0] * n
        turn = self._raw("attention.sliding_window_pattern")
        if isinstance(turn, tuple) and len(turn) >= n:
            return [window if turn[i] else 0 for i in range(n)]
        if isinstance(turn, bool) or not isinstance(turn, int) or turn < 0:
            turn = _TURNS.get(self._arch, 1)
        return [window if turn == 0 or i % turn < turn - 1 else 0 for i in range(n)]

    def _recurrent(self, n: int, kv_heads: list[int]) -> list[bool]:
        if self._raw("wkv.head_size") is not None:
            return [True] * n
        if self._raw("ssm.conv_kernel") is None and self._raw("shortconv.l_cache") is None:
            return [False] * n
        if self._arch == "falcon-h1":
            return [True] * n
        every = self._one("full_attention_interval", n, default=_ATTEND_EVERY.get(self._arch, 0))
        if every and all(kv_heads):
            return [(i + 1) % every != 0 for i in range(n)]
        return [count == 0 for count in kv_heads]

    def _state(self, embd: int) -> int:
        """Values that a recurrent layer keeps per sequence: its convolution's, and its own."""
        head = self._one("wkv.head_size", _MAX_WIDTH, default=0)
        if head:
            shifts = self._one("token_shift_count", 16, default=2)
            return shifts * embd + embd * head
        cached = self._one("shortconv.l_cache", _MAX_WIDTH, default=0)
        if cached:
            return embd * (cached - 1)
        kernel = self._one("ssm.conv_kernel", _MAX_WIDTH, low=1)
        inner = self._one("ssm.inner_size", _MAX_WIDTH, low=1)
        size = self._one("ssm.state_size", _MAX_WIDTH, low=1)
        groups = self._one("ssm.group_count", _MAX_WIDTH, default=0)
        return (kernel - 1) * (inner + 2 * groups * size) + size * inner
