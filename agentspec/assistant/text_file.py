"""Text as a model sees it and as it lies on disk: encoding, byte-order mark, line endings."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.repository import shown

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class TextFile:
    """`text` has "\\n" wherever the file has "\\r\\n"; what is not edited keeps its bytes."""

    text: str
    raw: str
    bom: bool
    _crlf: tuple[int, ...]
    """Where in `text` a line ends that ends with "\\r\\n" in the file."""

    @classmethod
    def decode(cls, data: bytes, path: str) -> TextFile:
        """Raises RefusedError for binaries and text that is not UTF-8: it would be damaged."""
        bom = data.startswith(_BOM)
        if b"\0" in data:
            raise RefusedError(f"{shown(path)} is binary (or UTF-16) and cannot be edited as text")
        try:
            raw = data[len(_BOM) * bom :].decode("utf-8")
        except UnicodeDecodeError as error:
            raise RefusedError(
                f"{shown(path)} is not UTF-8 (byte {error.start}); editing would damage it"
            ) from None
        ends: list[int] = []
        at = raw.find("\r\n")
        while at >= 0:
            ends.append(at - len(ends))
            at = raw.find("\r\n", at + 2)
        return cls(raw.replace("\r\n", "\n"), raw, bom, tuple(ends))

    @property
    def newline(self) -> str:
        """How most lines end."""
        return "\r\n" if 2 * len(self._crlf) > self.text.count("\n") else "\n"

    def edited(self, spans: Sequence[tuple[int, int, str]]) -> bytes:
        """With each [begin, end) of `text` replaced; spans are sorted and do not overlap."""
        pieces: list[str] = []
        done = 0
        for begin, end, new in spans:
            assert done <= begin <= end <= len(self.text), "spans overlap"
            pieces += self.raw[self._at(done) : self._at(begin)], self._ended(new)
            done = end
        pieces.append(self.raw[self._at(done) :])
        return _BOM * self.bom + "".join(pieces).encode()

    def rewritten(self, text: str) -> bytes:
        """Another text in its place: same mark, same line endings, a last newline if it had one."""
        if self.text.endswith("\n") and text and not text.endswith("\n"):
            text += "\n"
        return _BOM * self.bom + self._ended(text).encode()

    def _ended(self, text: str) -> str:
        text = text.replace("\r\n", "\n")
        return text.replace("\n", self.newline) if self.newline != "\n" else text

    def _at(self, place: int) -> int:
        return place + bisect.bisect_left(self._crlf, place)
