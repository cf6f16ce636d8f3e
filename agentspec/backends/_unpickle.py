"""Tensors out of a PyTorch file that nobody vouches for; run as a program of its own.

    python -I _unpickle.py SOURCE TARGET

Writes the tensors of a flat state dict to a safetensors file. Only names and numbers are read
(`weights_only`), without network, in a process that may write one file and start nothing. Prints
one line that says what is wrong, and ends with 1, where that does not go. Nothing of agentspec is
imported here.
"""

from __future__ import annotations

import os
import re
import sys
import warnings

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000


def without_network() -> bool:
    """Leave the network behind, where the system lets a process do that."""
    import ctypes

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.unshare(_NEW_USER | _NEW_NET) == 0)
    except (OSError, AttributeError):
        return False


def guard(target: str) -> None:
    """Refuse from now on whatever reading tensors and writing `target` do not need."""
    refused = (
        "socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
        "os.startfile", "os.kill", "os.remove", "os.rename", "os.rmdir", "os.chmod", "os.chown",
        "os.link", "os.symlink", "os.truncate", "shutil.", "ftplib.", "http.", "urllib.",
        "smtplib.", "webbrowser.", "pty.spawn", "ctypes.",
    )  # fmt: skip
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    allowed = os.path.abspath(target)

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith(refused):
            raise PermissionError(f"{event} is not for a file of tensors")
        if event == "open":
            path, mode, flags = (*arguments, None, None, None)[:3]
            writes = isinstance(flags, int) and flags & writing
            writes = writes or (isinstance(mode, str) and any(c in mode for c in "wax+"))
            named = path if isinstance(path, (str, bytes)) else ""
            if writes and os.path.abspath(os.fsdecode(named)) != allowed:
                raise PermissionError("writing is not for a file of tensors")

    sys.addaudithook(audit)


def tensors_of(source: str) -> dict[str, object]:
    """The state dict of a file. Raises ValueError for whatever is none."""
    import torch

    found = torch.load(source, map_location="cpu", weights_only=True)
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not found:
        raise ValueError("it holds no tensors by name")
    for name, value in found.items():
        if not isinstance(name, str) or type(value) is not torch.Tensor:
            raise ValueError(f"{name!r} is no tensor")
        if value.layout is not torch.strided or value.is_quantized:
            raise ValueError(f"tensor {name} is not dense")
    # tensors that share memory are written apart
    return {name: value.contiguous().clone() for name, value in found.items()}


def reason(error: Exception) -> str:
    """What is wrong, in one line; of a pickle with other things in it the first of these."""
    text = " ".join(str(error).split())
    found = re.search(r"(?:GLOBAL|global:?|class) ([\w.]+\.[\w.]+)", text)
    if type(error).__name__ == "UnpicklingError":
        held = f" ({found[1]})" if found else ""
        return f"it is a pickle that holds other things than tensors{held}"
    return f"{type(error).__name__}: {text}"[:300]


def main(source: str, target: str) -> int:
    # first: a process with threads may not leave. Libraries are next: what they do while they
    # are loaded is not what the file does
    isolated = without_network()
    import torch
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    torch.zeros(1).contiguous().clone()
    warnings.simplefilter("ignore")
    guard(target)
    try:
        save_file(tensors_of(source), target)
    except Exception as error:
        print(reason(error))
        return 1
    print("isolated" if isolated else "guarded")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
