"""Failures of the engine as a framework's own, for those who catch either."""

from __future__ import annotations

from agentspec.errors import AgentspecError


def as_both(error: AgentspecError, kind: type[Exception]) -> AgentspecError:
    """The same failure, caught as what it is here and as the framework's `kind`.

    `kind` is not called: what a framework's exception takes besides a message stays unset.
    """
    if isinstance(error, kind):
        return error
    ours = type(error)
    both = type(ours.__name__, (ours, kind), {"__module__": ours.__module__})
    made = both.__new__(both, *error.args)
    vars(made).update(vars(error))
    assert isinstance(made, AgentspecError)
    return made
