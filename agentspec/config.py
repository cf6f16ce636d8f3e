"""Settings: flag > environment (AGENTSPEC_*) > project file > user file > default.

The project file is `.agentspec.toml` in the working directory or the nearest folder above it, up
to the repository's root. It comes with a repository that nobody has vouched for, so it may set
only what cannot name a file, a model, a host or a secret. The user file is `config.toml` in the
user's configuration folder, or the file that AGENTSPEC_CONFIG names. Both are flat TOML.
"""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agentspec.errors import ConfigError

__all__ = [
    "PROJECT_FILE",
    "RULES",
    "Rule",
    "Settings",
    "check_key",
    "load_settings",
    "project_file",
    "set_in_user_file",
    "user_file",
    "user_path",
]

PROJECT_FILE = ".agentspec.toml"
PREFIX = "AGENTSPEC_"
CONFIG_VARIABLE = "AGENTSPEC_CONFIG"

# A settings file is a page of text; more is a mistake or an attack.
_MAX_BYTES = 64 * 1024
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})

KvType = Literal["f32", "f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
FlashAttention = Literal["auto", "on", "off"]
BackendName = Literal["auto", "llama_cpp", "torch"]
DType = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a setting may hold, and whether a project file may set it (by default it may not)."""

    kind: Literal["text", "path", "int", "bool", "choice", "list"]
    help: str
    low: int = 0
    high: int = 2**31 - 1
    choices: tuple[str, ...] = ()
    project: bool = False
    secret: bool = False
    """Never shown, not even where it is wrong."""
    variable: str | None = None
    """The environment variable, where it is not AGENTSPEC_ and the key in capitals."""


RULES: Mapping[str, Rule] = {
    "model": Rule(
        "text", "target: a catalog name, the path of a GGUF file or model folder, or hf:org/name"
    ),
    "draft": Rule("text", "draft model: the same"),
    "draft_reencode": Rule(
        "bool", "let a draft model of another vocabulary draft: its text is encoded again"
    ),
    "heads": Rule(
        "list",
        "trained heads of the target to draft with (torch): safetensors of Medusa heads or of an "
        "exit adapter, folders of EAGLE; in the environment separated by semicolons",
    ),
    "early_exit": Rule(
        "text",
        "draft with the first layers of the target (torch): off, auto, or how many layers",
    ),
    "backend": Rule(
        "choice",
        "library that runs the model; auto: torch for model folders, llama.cpp for GGUF files",
        choices=("auto", "llama_cpp", "torch"),
    ),
    "device": Rule(
        "text", "device of the torch backend: auto, cpu, cuda, cuda:1, mps, or map (several GPUs)"
    ),
    "dtype": Rule(
        "choice",
        "number format of the torch backend's weights; auto: float32 on a CPU",
        choices=("auto", "float32", "bfloat16", "float16"),
        project=True,
    ),
    "template": Rule("text", "chat template: Jinja source, chatml or gemma"),
    "models_dir": Rule("path", "folder that pulled models are kept in", variable=f"{PREFIX}MODELS"),
    "n_ctx": Rule("int", "context window in tokens", low=16, project=True),
    "n_batch": Rule("int", "most rows in one pass while the prompt is read", low=1, project=True),
    "n_threads": Rule("int", "threads of a pass; 0: one per physical core", project=True),
    "n_gpu_layers": Rule("int", "layers kept on the GPU; -1: all", low=-1, project=True),
    "kv_type": Rule(
        "choice",
        "number format of the KV cache",
        choices=("f32", "f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"),
        project=True,
    ),
    "flash_attn": Rule("choice", "flash attention", choices=("auto", "on", "off"), project=True),
    "mmap": Rule("bool", "map the model file instead of reading it", project=True),
    "speculation": Rule("bool", "draft and verify; off: plain decoding", project=True),
    "exact": Rule("bool", "keep every pass in one class of bit-equal row counts", project=True),
    "max_tokens": Rule("int", "most tokens of one answer", low=1, project=True),
    "sessions_dir": Rule("path", "folder that conversations' KV caches are kept in; none: no"),
    "sessions_mb": Rule("int", "most megabytes kept in sessions_dir", low=1),
    "sessions_salt": Rule("text", "sessions kept under another salt are not found"),
    "normalise": Rule(
        "choice",
        "read a header line that changes with every request as if it did not: cch is that of "
        "Claude Code",
        choices=("off", "cch"),
    ),
    "max_sessions": Rule(
        "int", "conversations kept and run side by side", low=1, high=64, project=True
    ),
    "allow_commands": Rule(
        "list",
        "commands that the assistant runs unasked, a last * for any further words; in the "
        "environment separated by semicolons",
    ),
    "test_command": Rule("text", "how the assistant runs the tests of a project"),
    "host": Rule("text", "address that the server listens on"),
    "port": Rule("int", "port that the server listens on; 0: any", high=65535),
    "api_key": Rule("text", "key that the server asks for", secret=True),
    "max_queue": Rule("int", "most requests that wait for the server", high=10_000),
}


_VARIABLES = {rule.variable or PREFIX + key.upper(): key for key, rule in RULES.items()}


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, with where its value came from in `origins`.

    An origin reads "flag", "environment AGENTSPEC_N_CTX", the path of a file, or "default".
    """

    model: str | None = None
    draft: str | None = None
    draft_reencode: bool = False
    heads: tuple[str, ...] = ()
    early_exit: str = "off"
    backend: BackendName = "auto"
    device: str = "auto"
    dtype: DType = "auto"
    template: str | None = None
    models_dir: Path | None = None
    n_ctx: int = 8192
    n_batch: int = 512
    n_threads: int = 0
    n_gpu_layers: int = -1
    kv_type: KvType = "f16"
    flash_attn: FlashAttention = "auto"
    mmap: bool = True
    speculation: bool = True
    exact: bool = False
    max_tokens: int = 1024
    max_sessions: int = 4
    sessions_dir: Path | None = None
    sessions_mb: int = 4096
    sessions_salt: str | None = None
    normalise: Literal["off", "cch"] = "off"
    allow_commands: tuple[str, ...] = ()
    test_command: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = field(default=None, repr=False)
    max_queue: int = 64
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


def load_settings(
    overrides: Mapping[str, object] | None = None,
    *,
    project_dir: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from every source, the strongest first; an override of None counts as not given.

    `project_dir` is the one folder to look for a project file in; None searches upwards from the
    working directory. `env` stands in for os.environ. Raises ConfigError for an unknown key, a
    value of the wrong kind, an unreadable file, or a project file that sets what it may not.
    """
    env = os.environ if env is None else env
    values: dict[str, Any] = {}
    origins = dict.fromkeys(RULES, "default")

    user = user_file(env)
    if user is not None:
        for key, value in _read(user).items():
            values[key] = _checked(key, value, f"in {user}", base=user.parent)
            origins[key] = str(user)

    project = project_file(project_dir)
    if project is not None:
        for key, value in _read(project).items():
            _known(key, f"in {project}")
            if not RULES[key].project:
                raise ConfigError(
                    f"{project} may not set {key}: a repository is not trusted to choose it; set "
                    f"it in the user file, as {RULES[key].variable or PREFIX + key.upper()} or "
                    "as a flag"
                )
            values[key] = _checked(key, value, f"in {project}", base=project.parent)
            origins[key] = str(project)

    for variable, text in env.items():
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if variable not in _VARIABLES:
            raise ConfigError(_unknown(variable, "in the environment", _VARIABLES))
        key = _VARIABLES[variable]
        values[key] = _checked(key, text, f"in the environment ({variable})", text=True)
        origins[key] = f"environment {variable}"

    for key, value in (overrides or {}).items():
        if value is not None:
            values[key] = _checked(key, value, "among the arguments")
            origins[key] = "flag"

    return Settings(**values, origins=origins)


def check_key(key: str) -> None:
    """Raise ConfigError, naming the nearest one, unless there is a setting of that name."""
    if key not in RULES:
        raise ConfigError(_unknown(key, "here", RULES))


def user_file(env: Mapping[str, str]) -> Path | None:
    """The user's settings file, None when there is none.

    Raises ConfigError when AGENTSPEC_CONFIG names a file that does not exist.
    """
    path = user_path(env)
    if path.exists():
        return path
    if env.get(CONFIG_VARIABLE):
        raise ConfigError(f"{CONFIG_VARIABLE} names {path}, which does not exist")
    return None


def user_path(env: Mapping[str, str]) -> Path:
    """Where the user's settings file is or would be."""
    named = env.get(CONFIG_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    from platformdirs import user_config_path

    return user_config_path("agentspec", appauthor=False) / "config.toml"


def set_in_user_file(key: str, text: str, *, env: Mapping[str, str] | None = None) -> Path:
    """Write a value, spelled out as the environment does, into the user's file; that file's path.

    Comments and the order of the file stay; the file is old or new, never between. Raises
    ConfigError for an unknown key, a value of the wrong kind and a file that cannot be changed.
    """
    import tomlkit

    from agentspec.files import replacing

    path = user_path(os.environ if env is None else env)
    value = _checked(key, text, "for the user file", text=True)
    if isinstance(value, Path):
        value = str(value)
    elif isinstance(value, tuple):
        value = list(value)
    before: dict[str, object] = {}
    document = tomlkit.document()
    try:
        if path.exists():
            before = _read(path)
            document = tomlkit.parse(path.read_bytes().decode("utf-8-sig"))
        document[key] = value
        data = tomlkit.dumps(document).encode()
        # what is written must mean the old settings and the new one, and nothing else
        if tomllib.loads(data.decode()) != {**before, key: value} or len(data) > _MAX_BYTES:
            raise ConfigError(f"{path} cannot take {key}; edit it by hand")
        # through a link: the file it names is replaced, not the link
        with replacing(path.resolve(), folder_mode=0o700) as file:
            file.write(data)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot take {key}: {reason}; edit it by hand") from error
    return path


def project_file(project_dir: Path | None = None) -> Path | None:
    """The project file of a folder; of the working directory, or above it, when None is given."""
    if project_dir is not None:
        path = project_dir / PROJECT_FILE
        return path if path.exists() else None
    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / PROJECT_FILE
        if path.exists():
            return path
        if (folder / ".git").exists():
            return None
    return None


def _read(path: Path) -> dict[str, object]:
    try:
        # Looked at before opening: opening a named pipe would wait for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(f"{path} is not a regular file; remove it or make it one")
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{path} is larger than {_MAX_BYTES // 1024} KiB; is it the right file?")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply; settings are flat: key = value") from error
    except ValueError as error:
        # Of TOML, of UTF-8, or of a number with thousands of digits.
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} is not valid TOML: {reason}") from error


def _known(key: str, where: str) -> None:
    if key not in RULES:
        raise ConfigError(_unknown(key, where, RULES))


def _unknown(name: str, where: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known are {_listed(known)}"
    return f"unknown setting {_short(name)} {where}; {hint}"


def _checked(
    key: str, value: object, where: str, *, base: Path | None = None, text: bool = False
) -> object:
    """The value in its type. `text`: it is spelled out, as the environment does."""
    _known(key, where)
    rule = RULES[key]
    if rule.kind == "bool":
        if text and isinstance(value, str) and value.strip().lower() in _TRUE | _FALSE:
            return value.strip().lower() in _TRUE
        if isinstance(value, bool):
            return value
        wanted = "true or false"
    elif rule.kind == "int":
        number = _int(value) if text else value
        if type(number) is int and rule.low <= number <= rule.high:
            return number
        wanted = f"a whole number from {rule.low} to {rule.high}"
    elif rule.kind == "choice":
        if isinstance(value, str) and value in rule.choices:
            return value
        wanted = f"one of {_listed(rule.choices)}"
    elif rule.kind == "list":
        parts = value
        if text and isinstance(value, str):
            parts = value.split(";") if value.strip() else []
        if isinstance(parts, (list, tuple)) and all(
            isinstance(part, str) and _usable(part) for part in parts
        ):
            return tuple(part.strip() for part in parts)
        wanted = "a list of texts, none of them empty"
    elif rule.kind == "path":
        if isinstance(value, (str, Path)) and _usable(str(value)):
            # A relative path in a file means beside that file, not wherever one happens to be.
            return (base or Path.cwd()) / Path(value).expanduser()
        wanted = "the path of a folder"
    else:
        if isinstance(value, Path):
            value = str(value)
        if isinstance(value, str) and _usable(value):
            return value
        wanted = "text that is not empty"
    shown = "what was given" if rule.secret else _short(value)
    raise ConfigError(f"{key} {where} must be {wanted}, not {shown}")


def _int(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None


def _usable(text: str) -> bool:
    return bool(text.strip()) and "\0" not in text


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _short(value: object) -> str:
    # An int of thousands of digits cannot even be printed.
    text = hex(value) if isinstance(value, int) and value.bit_length() > 200 else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
