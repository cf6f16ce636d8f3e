"""Hugging Face as a source: what a file is, and its bytes.

`huggingface_hub` (1.0 or later) is asked for the address and the metadata, so its settings hold:
HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN, proxies. The bytes go to our own staged file, which the
other sources can continue.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from agentspec.errors import ChecksumError, DownloadError, ModelError, installing
from agentspec.models.catalog import HubSource
from agentspec.models.staging import CHUNK, Progress, Staged

T = TypeVar("T")

CONNECT_SECONDS = 3.0
READ_SECONDS = 30.0
METADATA_SECONDS = 6.0
"""For the whole first answer: name look-up, which no socket time-out bounds, included."""
_CUTS_IN_A_ROW = 3
_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of the hub at a fixed commit; `size` in bytes."""

    url: str
    sha256: str
    size: int


def one_line(error: BaseException) -> str:
    """The first line of an error, or its type when it says nothing."""
    text = str(error).strip().splitlines()
    return text[0].strip() if text and text[0].strip() else type(error).__name__


def _within(seconds: float, work: Callable[[], T]) -> T:
    """Run `work` in a thread that is left behind when it takes longer."""
    result: list[T] = []
    failure: list[Exception] = []

    def run() -> None:
        try:
            result.append(work())
        except Exception as error:  # handed to the caller below
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True, name="agentspec-hub")
    thread.start()
    thread.join(seconds)
    if result:
        return result[0]
    raise failure[0] if failure else TimeoutError(f"no answer within {seconds:g} seconds")


def _ready(source: HubSource) -> None:
    try:
        import huggingface_hub
    except ImportError:
        raise DownloadError(
            f"{source}: skipped, huggingface_hub is not installed "
            f"(in the clone of agentspec: {installing('hub')})"
        ) from None
    if int(huggingface_hub.__version__.partition(".")[0]) < 1:
        raise DownloadError(
            f"{source}: skipped, huggingface_hub {huggingface_hub.__version__} is too old "
            "(pip install -U huggingface_hub)"
        )
    from huggingface_hub import constants

    # The library reads its environment once, at import; a later change is honoured here.
    asked = os.environ.get("HF_HUB_OFFLINE", "").upper() in constants.ENV_VARS_TRUE_VALUES
    if asked or constants.HF_HUB_OFFLINE:
        raise DownloadError(f"{source}: skipped, HF_HUB_OFFLINE is set")


def look_up(source: HubSource, *, sha256: str | None, size: int | None) -> HubFile:
    """What the hub has under this name; one request, a few seconds at most.

    Raises DownloadError when the hub cannot be asked or has no such file, and ChecksumError when
    it offers other bytes than `sha256` and `size` name.
    """
    _ready(source)
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    endpoint = os.environ.get("HF_ENDPOINT") or None

    def ask() -> HubFile:
        url = hf_hub_url(source.repo, source.filename, revision=source.revision, endpoint=endpoint)
        found = get_hf_file_metadata(url, timeout=CONNECT_SECONDS, endpoint=endpoint)
        pinned = hf_hub_url(
            source.repo,
            source.filename,
            revision=found.commit_hash or source.revision,
            endpoint=endpoint,
        )
        etag = (found.etag or "").lower()
        if not re.fullmatch("[0-9a-f]{64}", etag) or not found.size:
            raise DownloadError(f"{source}: it gives no SHA-256 and size for {source.filename}")
        return HubFile(pinned, etag, found.size)

    try:
        file = _within(METADATA_SECONDS, ask)
    except ModelError:
        raise
    except Exception as error:  # whatever its HTTP library raises, which depends on its version
        raise DownloadError(f"{source}: out of reach: {one_line(error)}") from error
    if sha256 is not None and file.sha256 != sha256:
        raise ChecksumError(
            f"{source}: it offers sha256 {file.sha256}, not {sha256}; nothing was downloaded"
        )
    if size is not None and file.size != size:
        raise ChecksumError(
            f"{source}: it offers {file.size} bytes, not {size}; nothing was downloaded"
        )
    return file


def fetch(source: HubSource, file: HubFile, staged: Staged, progress: Progress) -> None:
    """Append the bytes that `staged` lacks, asking again after a cut connection.

    Raises DownloadError after three cuts in a row without a byte between them, and ChecksumError
    when more bytes than announced arrive. The partial file stays resumable.
    """
    from huggingface_hub.utils import build_hf_headers, get_session

    cuts = 0
    while staged.missing:
        before = staged.length
        headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        if before:
            headers["Range"] = f"bytes={before}-"
        reason = "the connection ended early"
        try:
            with get_session().stream(
                "GET",
                file.url,
                headers=headers,
                follow_redirects=True,
                timeout=(CONNECT_SECONDS, READ_SECONDS, READ_SECONDS, CONNECT_SECONDS),
            ) as answer:
                _line_up(source, answer.status_code, answer.headers, staged, progress)
                for block in answer.iter_bytes(CHUNK):
                    staged.append(block)
                    progress.advance(len(block))
        except (ModelError, OSError):
            # The library wraps what sockets raise, so an OSError here is the disk's.
            raise
        except Exception as error:  # whatever its HTTP library raises
            reason = one_line(error)
        if not staged.missing:
            return
        cuts = 0 if staged.length > before else cuts + 1
        if cuts == _CUTS_IN_A_ROW:
            raise DownloadError(f"{source}: {reason} at byte {staged.length} of {file.size}")
        progress.note(f"{reason}; going on at byte {staged.length}")
        time.sleep(_PAUSE_SECONDS * cuts)


def _line_up(
    source: HubSource, status: int, headers: Mapping[str, str], staged: Staged, progress: Progress
) -> None:
    """Accept the answer only as what follows the staged bytes, or begin anew with it."""
    if status not in (200, 206):
        raise DownloadError(f"{source}: HTTP {status} for {source.filename}")
    if status == 206:
        got = headers.get("Content-Range", "")
        if not got.startswith(f"bytes {staged.length}-"):
            raise DownloadError(f"{source}: it sent the range {got!r} instead of the one asked for")
    elif staged.length:
        # The server does not serve ranges, so the answer is the file from its first byte.
        staged.restart()
        progress.start(staged.size, 0)
