"""The tools of the assistant: what a model is offered, and what its calls come to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.repository import Repository
from agentspec.assistant.results import MAX_TEXT, Outcome, Result, Spec, checked
from agentspec.assistant.tool_command import command_tools
from agentspec.assistant.tool_edit import edit_tools
from agentspec.assistant.tool_files import file_tools
from agentspec.assistant.tool_search import search_tools

_MAX_ARGUMENTS = 8 << 20


class Toolbox:
    """Tools by name. Proposing has no effect: changes and commands are decided elsewhere."""

    def __init__(self, specs: Iterable[Spec]) -> None:
        self.specs = {spec.name: spec for spec in specs}

    @classmethod
    def of(
        cls,
        repository: Repository,
        *,
        read_only: bool = False,
        test_command: str = "",
        most: int = MAX_TEXT,
    ) -> Toolbox:
        """The tools for a repository; with `read_only` those alone that change nothing.

        `most` is about how many characters of a file are shown at once.
        """
        specs = [*file_tools(repository, most), *search_tools(repository)]
        if not read_only:
            specs += [*edit_tools(repository), *command_tools(repository, test_command)]
        return cls(specs)

    def schemas(self) -> list[dict[str, Any]]:
        """The tools in OpenAI's shape."""
        return [spec.schema() for spec in self.specs.values()]

    def propose(self, name: str, arguments: str) -> Outcome:
        """What a call comes to; one that is wrong is a Result that tells the model why."""
        try:
            spec = self.specs.get(name)
            if spec is None:
                known = ", ".join(self.specs)
                raise RefusedError(f"there is no tool {name[:60]!r}; the tools are {known}")
            if len(arguments) > _MAX_ARGUMENTS:
                raise RefusedError(f"the arguments of {name} are too long")
            try:
                values = json.loads(arguments or "{}")
            except (ValueError, RecursionError) as error:
                why = str(error) if isinstance(error, ValueError) else "too deeply nested"
                raise RefusedError(f"the arguments of {name} are not JSON: {why}") from None
            return spec.run(checked(spec, values))
        except RefusedError as error:
            return Result(f"error: {error}", error=True)
