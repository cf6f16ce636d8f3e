"""A command line of vLLM taken apart: what is understood, what is translated, what is passed on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentspec.errors import ConfigError
from agentspec.vllm.retired import BATCH_LIMIT, FLAGS, KEYS, OLD_DRAFT_TP, SHORT, Retired

_VALUED = {
    "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "max-model-len",
    "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization", "kv-cache-dtype", "dtype",
    "quantization", "revision", "decode-context-parallel-size", "prefill-context-parallel-size",
}  # fmt: skip
_SWITCHES = {
    "async-scheduling", "enable-lora", "enforce-eager", "enable-expert-parallel",
    "enable-chunked-prefill", "kv-sharing-fast-prefill",
}  # fmt: skip
_SHORT = {
    "tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size",
    "dcp": "decode-context-parallel-size", "pcp": "prefill-context-parallel-size",
    "ep": "enable-expert-parallel", "q": "quantization", "sc": "speculative-config", **SHORT,
}  # fmt: skip
# today's own flags for three keys of the JSON
_KEYS = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
_NUMBERS = {
    "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min", "max_model_len",
    "draft_tensor_parallel_size", BATCH_LIMIT, OLD_DRAFT_TP,
}  # fmt: skip
_ENVIRONMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SERVERS = (("vllm", "serve"), ("python", "-m", "vllm.entrypoints.openai.api_server"))


@dataclass(frozen=True, slots=True)
class Line:
    """`vllm serve`, taken apart.

    `values` holds what is understood, by the flag's name; `passed` all that goes on to vLLM, in
    order, those included. `keys` is the JSON of --speculative-config with names of today, except
    those that `agentspec.vllm.retired` calls stand-ins. `remarks` says what was translated.
    """

    model: str
    environment: tuple[tuple[str, str], ...]
    values: Mapping[str, str]
    passed: tuple[str, ...]
    keys: Mapping[str, Any]
    remarks: tuple[str, ...]

    @property
    def flags(self) -> frozenset[str]:
        """The long names of all flags that go on to vLLM; of `x` and `no-x`, the later."""
        found: dict[str, None] = {}
        for word in self.passed:
            if re.match(r"--[A-Za-z]", word):
                name = re.split(r"[=.]", word, maxsplit=1)[0][2:].replace("_", "-")
                found.pop(name[3:] if name.startswith("no-") else f"no-{name}", None)
                found[name] = None
        return frozenset(found)

    def number(self, name: str, default: int) -> int:
        """A flag that is a whole number, 25.6k and 32K included. Raises ConfigError."""
        given = self.values.get(name)
        return default if given is None else whole_number(given, f"--{name}")


def whole_number(text: str, name: str) -> int:
    """As vLLM reads numbers: 25.6k is 25,600, 32K is 32,768, auto is -1. Raises ConfigError."""
    if text.strip().lower() in ("auto", "-1"):
        return -1
    found = re.fullmatch(r"\s*(\d{1,15})(\.\d{1,6})?([kmgtKMGT]?)\s*", text)
    if found is None or (found[2] and not found[3].islower()):
        raise ConfigError(f"{name} must be a whole number, not {text[:40]!r}")
    letter = found[3]
    power = "kmgt".index(letter.lower()) + 1 if letter else 0
    unit = 1000**power if letter.islower() else 1024**power
    return int(float(found[1] + (found[2] or "")) * unit) if found[2] else int(found[1]) * unit


def read_line(words: Sequence[str]) -> Line:
    """Take a command line apart: `MODEL flags…`, with `vllm serve` before it or without.

    Raises ConfigError without a model, for a flag without its value, for two flags that contradict
    each other, and for JSON that is none.
    """
    rest = list(words)
    environment = []
    while rest and (found := _ENVIRONMENT.fullmatch(rest[0])):
        environment.append((found[1], found[2]))
        del rest[0]
    for server in _SERVERS:
        start = [re.sub(r"^.*/", "", rest[0]), *rest[1 : len(server)]] if rest else []
        start[:1] = [re.sub(r"^(python)[\d.]*$", r"\1", word) for word in start[:1]]
        if tuple(start) == server:
            del rest[: len(server)]
    return _Reading(rest).line(environment)


class _Reading:
    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._model: str | None = None
        self._values: dict[str, str] = {}
        self._passed: list[str] = []
        self._keys: dict[str, Any] = {}
        self._told: dict[str, str] = {}
        self._moved: list[str] = []
        self._remarks: list[str] = []

    def line(self, environment: list[tuple[str, str]]) -> Line:
        if self._words and not self._words[0].startswith("-"):
            self._model = self._words.pop(0)
        while self._words:
            self._flag(self._words.pop(0))
        if not self._model:
            raise ConfigError("no model: write it first, as after `vllm serve`, or as --model")
        if self._moved:
            which = ", ".join(self._moved)
            self._remarks.insert(
                0, f"gone from vLLM, and put into --speculative-config in today's words: {which}"
            )
        if "prompt_lookup_max" in self._told and "prompt_lookup_min" not in self._keys:
            # it was 1 in those releases, and is what the longest is today
            self._keys["prompt_lookup_min"] = 1
            self._remarks.append(
                "prompt_lookup_min 1 was the default beside --ngram-prompt-lookup-max; today's is "
                "the longest, so it is written out"
            )
        return Line(
            self._model,
            tuple(environment),
            self._values,
            tuple(self._passed),
            self._keys,
            tuple(self._remarks),
        )

    def _flag(self, word: str) -> None:
        if not re.match(r"--?[A-Za-z]", word):
            self._passed.append(word)
            return
        head, equals, value = word.partition("=")
        given = value if equals else None
        bare = head.lstrip("-").replace("_", "-")
        if not head.startswith("--"):
            bare = _SHORT.get(bare, "") or _SHORT.get(bare.partition(".")[0], "") + (
                head[head.index(".") :] if "." in head else ""
            )
        name, _, path = bare.partition(".")
        if bare == "model":
            self._set_model(self._value(head, given))
        elif bare in _KEYS:
            self._key(_KEYS[bare], self._value(head, given), head)
        elif name == "speculative-config":
            self._config(path.replace("-", "_"), self._value(head, given), head)
        elif bare in FLAGS:
            self._retired(head, FLAGS[bare], given)
        elif bare in _VALUED:
            self._values[bare] = self._value(head, given)
            self._passed += [f"--{bare}", self._values[bare]]
        elif bare.removeprefix("no-") in _SWITCHES and given is None:
            self._passed.append(f"--{bare}")
        else:
            if head.startswith("--"):
                _whole(head, bare)
            self._passed.append(word)

    def _set_model(self, model: str) -> None:
        if self._model not in (None, model):
            raise ConfigError(f"two models: {self._model} and --model {model}")
        self._model = model

    def _value(self, flag: str, given: str | None) -> str:
        if given is not None:
            return given
        if not self._words:
            raise ConfigError(f"{flag} lacks its value")
        return self._words.pop(0)

    def _config(self, path: str, value: str, flag: str) -> None:
        if path:
            # a.b is a key of an object under a key
            first, *inner = path.split(".")
            found = _scalar(value)
            for key in reversed(inner):
                found = {key: found}
            self._keyed(first, found, flag)
            return
        try:
            told = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{flag} is no JSON ({error}); a shell needs it in single quotes"
            ) from None
        if not isinstance(told, dict):
            raise ConfigError(f'{flag} must be a JSON object, like {{"method": "ngram"}}')
        for key, each in told.items():
            # as vLLM does
            self._keyed(key.replace("-", "_"), each, flag)

    def _keyed(self, key: str, value: Any, flag: str) -> None:
        if key in KEYS:
            self._translate(f"{key!r} in {flag}", KEYS[key], value)
        else:
            self._key(key, value, flag)

    def _retired(self, flag: str, what: Retired, given: str | None) -> None:
        value: str | None = given
        if what.takes == "value":
            value = self._value(flag, given)
        elif what.takes == "maybe" and [w.lower() for w in self._words[:1]] in (
            ["true"],
            ["false"],
        ):
            value = self._words.pop(0)
        self._translate(flag, what, value)

    def _translate(self, flag: str, what: Retired, value: Any) -> None:
        if what.key is None:
            self._remarks.append(f"{flag} is left out: {what.reason}")
            return
        self._key(what.key, value, flag)
        self._told[what.key] = flag
        if what.key not in (BATCH_LIMIT, OLD_DRAFT_TP):
            self._moved.append(flag)

    def _key(self, key: str, value: Any, flag: str) -> None:
        if key in _NUMBERS and isinstance(value, str):
            value = whole_number(value, flag)
        if key in self._keys and self._keys[key] != value:
            raise ConfigError(f"{key} is given twice: {self._keys[key]!r}, and {flag} {value!r}")
        self._keys[key] = value


def _whole(flag: str, name: str) -> None:
    """vLLM takes any beginning of a flag for the flag. Raises ConfigError for one that matters."""
    if len(name) < 3:
        return
    for known in sorted({*_VALUED, *_SWITCHES, *_KEYS, "speculative-config", "model"}):
        if known != name and known.startswith(name):
            raise ConfigError(f"{flag} is short for --{known}: write it out")


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
