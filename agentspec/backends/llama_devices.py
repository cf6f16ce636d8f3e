"""Names of the devices that llama.cpp computes on: speed and kernels depend on them."""

from __future__ import annotations

import ctypes


def devices() -> list[str]:
    """What each device of this build calls itself, e.g. a processor or a GPU.

    Empty where the library does not say: a name is nothing to fail for.
    """
    try:
        from llama_cpp._ggml import libggml

        count = libggml.ggml_backend_dev_count
        get, describe = libggml.ggml_backend_dev_get, libggml.ggml_backend_dev_description
        count.restype, count.argtypes = ctypes.c_size_t, []
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        describe.restype, describe.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
        names = [describe(get(i)) for i in range(count())]
    except (ImportError, AttributeError, OSError):
        return []
    return [(name or b"").decode("utf-8", "replace") for name in names]
