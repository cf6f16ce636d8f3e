"""Kill -9 at every call that changes the disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

CALLS = ("write", "fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "open", "fchmod")


def killed_at(n: int, act: Callable[[], None]) -> bool:
    """Run `act` in a child that is killed before its n-th call; False when it came to its end."""
    fsync = os.fsync
    child = os.fork()
    if child == 0:
        left = n

        def dying(real: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **more: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                # a killed process loses nothing that was written, synced or not
                return None if real is fsync else real(*args, **more)

            return call

        for name in CALLS:
            real = getattr(os, name)
            setattr(os, name, dying(real))
            if real in os.supports_dir_fd:
                os.supports_dir_fd.add(getattr(os, name))
        try:
            act()
        except BaseException:
            os._exit(2)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return os.WIFSIGNALED(status)
