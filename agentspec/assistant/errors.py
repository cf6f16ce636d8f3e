"""What the assistant refuses, as errors that the model and the user can both read."""

from __future__ import annotations

from agentspec.errors import InvalidRequestError

__all__ = ["ConflictError", "RefusedError"]


class RefusedError(InvalidRequestError):
    """A path, an edit or a command is not allowed or not possible; nothing was changed."""


class ConflictError(RefusedError):
    """A file holds other bytes than expected: somebody else changed it; it was left alone."""
