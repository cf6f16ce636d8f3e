"""What the assistant asks of git, so that nothing in the repository is run by it.

Hooks, file-system monitors, external diffs, signing programs and fetching are off: a repository
may have come as an archive, with a configuration of its own. Filters that it defines cannot be
turned off in general; git runs them for files that are added.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.process import clean_environment
from agentspec.assistant.repository import shown
from agentspec.assistant.results import plain

_SECONDS = 60.0
# What points git at another repository, as in a hook; `git rev-parse --local-env-vars` lists them.
_ELSEWHERE = frozenset((
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_DIR", "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_INTERNAL_SUPER_PREFIX", "GIT_NAMESPACE",
    "GIT_NO_REPLACE_OBJECTS", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_QUARANTINE_PATH",
    "GIT_REPLACE_REF_BASE", "GIT_SHALLOW_FILE", "GIT_WORK_TREE", "GIT_EXTERNAL_DIFF",
))  # fmt: skip
_OFF = (
    "--no-pager", "-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false",
    "-c", "core.untrackedCache=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
    "-c", "submodule.recurse=false", "-c", "diff.external=",
)  # fmt: skip


class Git:
    """The git repository whose top is `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def diff(self, paths: Sequence[str] = ()) -> str:
        """What of the files differs from the last commit, as text."""
        command = ["diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD"]
        return self._run(*command, "--", *paths).decode("utf-8", "replace")

    def committed(self, path: str) -> bytes | None:
        """A file as the last commit has it, None where it has none."""
        try:
            return self._run("cat-file", "blob", f"HEAD:{path}")
        except RefusedError:
            return None

    def mixed(
        self,
        changes: Mapping[str, Sequence[tuple[bytes | None, bytes | None]]],
        now: Mapping[str, bytes | None],
    ) -> list[str]:
        """The files that hold anything else, since the last commit, than these changes made of it.

        `changes` are what each file held before and after every change, in order, `now` is what it
        holds. Line endings do not count: git may convert them.
        """
        return [
            path
            for path, steps in changes.items()
            if not _made_by(steps, self.committed(path), now[path])
        ]

    def commit(self, paths: Sequence[str], message: str) -> str:
        """Commit these files as they are and nothing else; the abbreviated hash.

        What the user has staged of other files stays staged. Raises RefusedError when git refuses;
        the index is then as it was.
        """
        if not message.strip():
            raise RefusedError("a commit needs a message")
        if not paths:
            raise RefusedError("the session has changed nothing to commit")
        known = set(self._run("ls-files", "-z", "--", *paths).split(b"\0"))
        new = [
            path
            for path in paths
            if os.fsencode(path) not in known and os.path.lexists(self.root / path)
        ]
        if new:
            self._run("add", "--", *new)
        try:
            self._run(
                "commit", "--quiet", "--no-verify", "--no-gpg-sign", "--cleanup=whitespace",
                f"--message={message}", "--only", "--", *paths,
            )  # fmt: skip
        except BaseException:  # an interrupt too
            if new:
                self._run("rm", "--quiet", "--cached", "--", *new)
            raise
        return self._run("rev-parse", "--short", "HEAD").decode().strip()

    def _run(self, *arguments: str) -> bytes:
        kept = {
            name: value
            for name, value in clean_environment(os.environ).items()
            if name not in _ELSEWHERE
        }
        more = {
            # a name is a name, even if it looks like a pattern
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_EDITOR": "true",
            "GIT_OPTIONAL_LOCKS": "0",
            # the repository's configuration may name another folder
            "GIT_WORK_TREE": str(self.root),
            # a lost object is fetched with programs that the repository's configuration names
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "",
        }
        try:
            done = subprocess.run(
                ["git", *_OFF, *arguments],
                cwd=self.root,
                env=kept | more,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RefusedError(f"git took more than {_SECONDS:.0f} seconds") from None
        except (OSError, ValueError) as error:
            raise RefusedError(f"git cannot be run in {shown(str(self.root))}: {error}") from error
        if done.returncode:
            text = plain((done.stderr or done.stdout).decode("utf-8", "replace"))
            raise RefusedError(f"git refused: {' '.join(text.split())[:400] or 'no reason given'}")
        return done.stdout


def _made_by(
    steps: Sequence[tuple[bytes | None, bytes | None]], committed: bytes | None, now: bytes | None
) -> bool:
    """Whether the steps lead from what is committed to what is there, without a gap."""
    for before, after in reversed(steps):
        if _same_ends(after) != _same_ends(now):
            return False
        if _same_ends(before) == _same_ends(committed):
            return True
        now = before
    return False


def _same_ends(data: bytes | None) -> bytes | None:
    return data.replace(b"\r\n", b"\n") if data is not None else None
