"""Every failure agentspec reports, as one exception tree.

::

    AgentspecError
    ├── ConfigError               a setting is unknown, malformed or contradictory
    │   └── AuthenticationError   a server refuses the key, or wants one
    ├── MissingExtraError         an optional dependency is not installed
    ├── RequestError              the caller's input cannot be served as it is
    │   ├── InvalidRequestError   a parameter, message, tool or schema is malformed
    │   ├── ContextOverflowError  the prompt does not fit in the context window
    │   └── UnsupportedError      well-formed, but this model or backend cannot do it
    ├── ModelError                a model file or a pair of models
    │   ├── ModelNotFoundError    nothing on disk, or not there to be loaded
    │   │   └── UnknownModelError a name that is no model's, a path without a file
    │   ├── ModelFileError        not a GGUF file, truncated, or not loadable
    │   ├── PairMismatchError     target and draft do not share a vocabulary
    │   ├── DownloadError         no source delivered the file
    │   │   └── ChecksumError     a source delivered other bytes than the catalog names
    │   └── DiskSpaceError        not enough room for the file
    ├── BackendError              the library under a backend failed
    │   ├── DecodeError           a forward pass failed; the sequence is as it was
    │   ├── RollbackError         the cache cannot be cut back to the asked length
    │   └── SequenceLostError     a sequence could not be put back and was cleared
    ├── ExactModeError            no affordable class of row counts is bit-equal here
    ├── EngineBusyError           this thread would wait for a stream it holds itself
    ├── EngineClosedError         the engine was closed
    └── CancelledError            the caller cancelled; caches are consistent

Each message says what happened, where, and what to do about it, on one line.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AgentspecError",
    "AuthenticationError",
    "BackendError",
    "CancelledError",
    "ChecksumError",
    "ConfigError",
    "ContextOverflowError",
    "DecodeError",
    "DiskSpaceError",
    "DownloadError",
    "EngineBusyError",
    "EngineClosedError",
    "ExactModeError",
    "InvalidRequestError",
    "MissingExtraError",
    "ModelError",
    "ModelFileError",
    "ModelNotFoundError",
    "PairMismatchError",
    "RequestError",
    "RollbackError",
    "SequenceLostError",
    "UnknownModelError",
    "UnsupportedError",
]


class AgentspecError(Exception):
    """Base of everything agentspec raises on purpose.

    `partial` is the text that was generated before the failure, when there was any.
    """

    partial: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        # exceptions are otherwise made again by a call with their message, which few of these take
        return _made, (type(self), self.args), vars(self)


def _made(kind: type[AgentspecError], args: tuple[Any, ...]) -> AgentspecError:
    return kind.__new__(kind, *args)


class ConfigError(AgentspecError):
    """A setting is unknown, malformed or contradictory."""


class AuthenticationError(ConfigError):
    """A server refuses the key that it was sent, or answers nobody without one."""


class MissingExtraError(AgentspecError):
    """An optional dependency is not installed."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(
            f"{module} is not installed; in the clone of agentspec: {installing(extra)}"
        )
        self.module = module
        self.extra = extra


class RequestError(AgentspecError, ValueError):
    """The caller's input cannot be served as it is."""


class InvalidRequestError(RequestError):
    """A parameter, message, tool or schema is malformed; `param` names it."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextOverflowError(RequestError):
    """The prompt does not fit in the context window; a count of 0 is one that is not known."""

    def __init__(self, n_prompt: int, n_ctx: int) -> None:
        if n_prompt and n_ctx:
            what = (
                f"the prompt has {n_prompt} tokens, {n_prompt - n_ctx + 1} more than the context "
                f"of {n_ctx} can take with one token of answer"
            )
        else:
            context = f"the context of {n_ctx} tokens" if n_ctx else "the context of the model"
            what = f"the prompt does not fit in {context}"
        super().__init__(f"{what}; shorten it or load with a larger n_ctx")
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class UnsupportedError(RequestError):
    """The request is well-formed, but this model or backend cannot do it."""


class ModelError(AgentspecError):
    """A model file, or a pair of models, cannot be used."""


class ModelNotFoundError(ModelError):
    """No such file or catalog entry, or no model on disk."""


class UnknownModelError(ModelNotFoundError):
    """What was named is no model of the catalog and no file."""


class ModelFileError(ModelError):
    """The file is not GGUF, is truncated, or the library cannot load it."""


class PairMismatchError(ModelError):
    """Target and draft do not share a vocabulary; the message names the first difference."""


class DownloadError(ModelError):
    """No source delivered the file."""


class ChecksumError(DownloadError):
    """A source delivered other bytes than the catalog names; they were deleted."""


class DiskSpaceError(ModelError):
    """There is not enough room for the file."""


class BackendError(AgentspecError):
    """The library under a backend failed, or the server in its place.

    `retry_after` is set when nothing was begun and the same request may be answered later: the
    seconds that a server asked to wait, or 0.
    """

    retry_after: float | None = None


class DecodeError(BackendError):
    """A forward pass failed; the sequence holds what it held before the pass."""


class RollbackError(BackendError):
    """The cache cannot be cut back to the asked length; it was left unchanged."""


class SequenceLostError(BackendError):
    """A sequence could not be put back after a failure and was cleared."""


class ExactModeError(AgentspecError):
    """No affordable class of row counts is bit-equal on this device with these settings."""


class EngineBusyError(AgentspecError):
    """This thread would wait for a stream that it holds open itself."""


class EngineClosedError(AgentspecError):
    """The engine was closed and cannot serve further requests."""


class CancelledError(AgentspecError):
    """The caller cancelled; every cache is consistent with the committed tokens."""


def installing(extra: str) -> str:
    """The command that installs an extra, as README has it: agentspec is on no index."""
    return f"pip install '.[{extra}]'"


def line_of(error: BaseException, most: int = 300) -> str:
    """What an error of a library says, on one line of at most so many characters, or its type."""
    return " ".join(str(error).split())[:most] or type(error).__name__
