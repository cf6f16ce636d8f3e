from __future__ import annotations

import pytest

from agentspec.assistant.blocks import Block, parse_blocks
from agentspec.assistant.errors import RefusedError

TWO = """Some words.
<<<<<<< SEARCH
a
  b
=======
c
>>>>>>> REPLACE
<<<<<<< SEARCH
d
=======
>>>>>>> REPLACE
"""


def test_blocks_with_words_around_them() -> None:
    assert parse_blocks(TWO) == [Block("a\n  b", "c"), Block("d", "")]
    assert parse_blocks(TWO.replace("\n", "\r\n")) == parse_blocks(TWO)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nothing", "no block"),
        ("<<<<<<< SEARCH\na\n=======\nb", "not ended"),
        ("<<<<<<< SEARCH\na\n>>>>>>> REPLACE", "line 3.*no ======="),
        (">>>>>>> REPLACE", "line 1"),
        ("<<<<<<< SEARCH\na\n=======\nb\n=======\n>>>>>>> REPLACE", "line 5.*second"),
        ("<<<<<<< SEARCH\na\n=======\nb\n<<<<<<< SEARCH\n", "line 5.*not ended"),
    ],
)
def test_blocks_that_are_not_as_they_must_be(text: str, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        parse_blocks(text)
