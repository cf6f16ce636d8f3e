"""What a model is told before the first request."""

from __future__ import annotations

from agentspec.assistant.repository import Repository, shown
from agentspec.chat.template import packaged_prompt


def system_prompt(
    repository: Repository, *, chart: str = "", read_only: bool = False, dry_run: bool = False
) -> str:
    """The system message of a session: how to work, where, and the map of the repository.

    It stays the same for the whole session, so that the model reads it once.
    """
    kind = "a git repository" if repository.git else "a folder without version control"
    parts = [
        packaged_prompt("assistant/system.txt").strip(),
        f"The project is {shown(repository.root.name) or 'the root folder'}, {kind}. Paths are "
        "relative to its root.",
    ]
    if read_only:
        parts.append("This session is read-only: explain and propose, nothing can be changed.")
    if dry_run:
        parts.append("This is a dry run: changes and commands are shown to the user, not made.")
    if chart:
        parts.append(
            "The most important definitions of the project, each with its line. There is more; "
            f"list and search to find it.\n{chart}"
        )
    return "\n\n".join(parts)
