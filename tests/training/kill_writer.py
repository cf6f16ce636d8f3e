"""Runs `agentspec train-heads`, and kills it with signal 9 before or behind one of its writes.

Arguments: the number of the write (from 0; none: never), "before" or "behind", then the command's.
Saves after every step, so that there is much to write. Prints the number of its writes.
"""

from __future__ import annotations

import os
import signal
import sys

from agentspec.cli import main
from agentspec.training import run

at = int(sys.argv[1]) if sys.argv[1] != "none" else -1
writes = 0
replace = os.replace


def deadly(source: str, destination: str) -> None:
    global writes
    number, writes = writes, writes + 1
    if (number, sys.argv[2]) == (at, "before"):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, destination)
    if (number, sys.argv[2]) == (at, "behind"):
        os.kill(os.getpid(), signal.SIGKILL)


os.replace = deadly  # type: ignore[assignment]
assert run.train_heads.__kwdefaults__ is not None
run.train_heads.__kwdefaults__["save_every"] = 0.0
main(["train-heads", *sys.argv[3:]], standalone_mode=False)
print(writes)
