"""`python -m agentspec` is the `agentspec` command."""

from __future__ import annotations

from agentspec.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
