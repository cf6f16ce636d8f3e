"""Failures of the engine as a framework's own, for those who catch either."""

from __future__ import annotations

from typing import Any

from agentspec.errors import AgentspecError


def as_both(error: AgentspecError, kind: type[Exception]) -> AgentspecError:
    """The same failure, caught as what it is here and as the framework's `kind`.

    `kind` is not called: what a framework's exception takes besides a message stays unset.
    """
    if isinstance(error, kind):
        return error
    made = _made(type(error), kind, error.args)
    vars(made).update(vars(error))
    return made


def _both(ours: type[AgentspecError], kind: type[Exception]) -> type[AgentspecError]:
    def reduced(self: AgentspecError) -> tuple[Any, ...]:
        # no module has the class: whoever unpickles a failure makes it again
        return _made, (ours, kind, self.args), vars(self)

    members = {"__module__": ours.__module__, "__reduce__": reduced}
    return type(ours.__name__, (ours, kind), members)


def _made(
    ours: type[AgentspecError], kind: type[Exception], args: tuple[Any, ...]
) -> AgentspecError:
    both = _both(ours, kind)
    made = both.__new__(both, *args)
    assert isinstance(made, AgentspecError)
    return made
