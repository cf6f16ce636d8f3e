"""The llama.cpp library, loaded once, with its log going to `logging` instead of the terminal."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from agentspec.errors import BackendError, MissingExtraError

_log = logging.getLogger("agentspec.llama_cpp")

# one level lower than llama.cpp's own: an unconfigured `logging` prints warnings to the terminal,
# and what matters comes as an exception that quotes the line
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.INFO}
_WARN, _ERROR = 3, 4


@lru_cache(maxsize=1)
def library() -> Any:
    """The C API. Raises MissingExtraError, or BackendError when its library does not load."""
    try:
        import llama_cpp.llama_cpp as lib
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "llama_cpp":
            raise MissingExtraError("llama-cpp-python", "llama") from None
        raise BackendError(f"llama-cpp-python cannot be imported: {error}") from error
    except (OSError, RuntimeError) as error:
        raise BackendError(
            f"llama-cpp-python cannot load its library: {' '.join(str(error).split())}; "
            "reinstall it"
        ) from error
    lib.llama_backend_init()
    lib.llama_log_set(_callback(), ctypes.c_void_p(0))
    return lib


@lru_cache(maxsize=1)
def _callback() -> Any:
    # cached because C keeps the pointer: the object must live as long as the process
    import llama_cpp.llama_cpp as lib

    return lib.llama_log_callback(_on_log)


@lru_cache(maxsize=1)
def _recent() -> deque[str]:
    return deque(maxlen=40)


@lru_cache(maxsize=1)
def _caught() -> deque[BaseException]:
    return deque()


def _on_log(level: int, text: bytes, _data: Any) -> None:
    try:
        line = text.decode("utf-8", "replace").rstrip("\n")
        if level in (_WARN, _ERROR):
            _recent().append(line)
        if line.strip(". "):
            _log.log(_LEVELS.get(level, logging.DEBUG), "%s", line)
    except Exception:
        # a broken log handler must not stop a model, and nothing may unwind into C
        return
    except BaseException as error:
        # Ctrl-C is delivered here while C code runs: ctypes would print and then forget it
        _caught().append(error)


def interrupted() -> bool:
    """True when an interrupt arrived inside a callback and waits for `reraise`."""
    return bool(_caught())


def reraise() -> None:
    """Raise the interrupt that arrived while C code ran, if there was one."""
    caught = _caught()
    if caught:
        error = caught.popleft()
        caught.clear()
        raise error


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Keep Ctrl-C for `reraise` while a block runs C code that calls back into Python.

    Raised inside a callback, before its first line, it would be printed and lost. Only the main
    thread is interrupted, and only where nobody has put a handler of their own.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: _caught().append(KeyboardInterrupt()))
    try:
        yield
        reraise()
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def log_lines() -> Iterator[deque[str]]:
    """Warnings and errors that llama.cpp logs inside the block, to be quoted in an exception."""
    lines = _recent()
    lines.clear()
    yield lines


def reason(lines: Sequence[str]) -> str:
    """The line that says best why something failed."""
    errors = [line for line in lines if "error" in line or "failed" in line or "unable" in line]
    return (errors or list(lines) or ["no reason was given"])[0].strip()
