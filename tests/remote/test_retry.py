"""What is tried again, and when."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable

import pytest

from agentspec.aio import Stop
from agentspec.errors import AgentspecError, BackendError, ConfigError, InvalidRequestError
from agentspec.remote.engine import RemoteEngine
from agentspec.remote.retry import Retries
from tests.remote.conftest import STOP, Fake, Reply, delta, sent

HI = [{"role": "user", "content": "hi"}]
FINE = Reply(*sent(delta(content="fine"), STOP))
Remote = Callable[..., RemoteEngine]


def busy(after: float | None) -> BackendError:
    error = BackendError("busy")
    error.retry_after = after
    return error


class Waits(Stop):
    """Keeps what it was to wait, and lets no time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return False


@pytest.mark.parametrize(
    "first",
    [
        Reply(status=429, Retry_After="0"),
        Reply(status=503, Retry_After="0.01"),
        Reply(b"not JSON", status=503),
        Reply("reset"),
    ],
)
def test_what_was_not_begun_is_asked_again(fake: Fake, remote: Remote, first: Reply) -> None:
    fake.replies = [first, first, FINE]
    engine = remote(max_retries=2)
    engine._retries = Retries(2, first=0.01)
    assert engine.complete(HI).text == "fine"
    assert len(fake.bodies) == 3


def test_a_server_that_is_not_there_yet(fake: Fake) -> None:
    tries: list[float] = []

    def attempt() -> str:
        tries.append(0)
        if len(tries) < 3:
            raise busy(0.0)
        return "there"

    stop = Waits()
    assert Retries().run(attempt, stop) == "there"
    assert 0.25 <= stop.waited[0] <= 0.5 <= stop.waited[1] <= 1.0
    engine = RemoteEngine("http://127.0.0.1:9/v1", "m", max_retries=0)
    with pytest.raises(BackendError, match="no server answers"):
        engine.complete(HI)


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidRequestError), (401, ConfigError), (500, BackendError)]
)
def test_what_was_refused_for_good_is_not(
    fake: Fake, remote: Remote, status: int, kind: type[AgentspecError]
) -> None:
    fake.replies = [Reply(b'{"error": {"message": "no"}}', status=status), FINE]
    with pytest.raises(kind):
        remote(max_retries=3).complete(HI)
    assert len(fake.bodies) == 1


@pytest.mark.parametrize(
    ("after", "policy", "number"),
    [
        (None, Retries(most=3), 1),
        (0.0, Retries(most=3), 4),
        (0.0, Retries(most=0), 1),
        (9.0, Retries(most=3, seconds=5.0), 1),
        (0.0, Retries(most=50, seconds=-1.0), 1),
    ],
)
def test_tries_are_bounded_in_number_and_time(
    after: float | None, policy: Retries, number: int
) -> None:
    tries: list[int] = []

    def attempt() -> None:
        tries.append(1)
        raise busy(after)

    with pytest.raises(BackendError, match="busy"):
        policy.run(attempt, Waits())
    assert len(tries) == number


def test_waits_grow_to_a_bound_and_are_what_the_server_asks() -> None:
    policy = Retries(first=0.5, longest=4.0)
    for n, most in enumerate((0.5, 1, 2, 4, 4, 4)):
        waits = [policy.wait(n) for _ in range(50)]
        assert most / 2 <= min(waits) < max(waits) <= most
    assert policy.wait(0, 7.5) == 7.5
    assert policy.wait(5, 0.1) >= 2.0


def test_retry_after_as_a_date(fake: Fake, remote: Remote) -> None:
    for value, least, most in (
        (email.utils.formatdate(time.time() + 1000, usegmt=True), 500, 1001),
        (email.utils.formatdate(time.time() - 100, usegmt=True), 0, 0),
        ("17", 17, 17),
    ):
        fake.replies = [Reply(status=429, Retry_After=value)]
        with pytest.raises(BackendError) as caught:
            remote().complete(HI)
        assert caught.value.retry_after is not None
        assert least <= caught.value.retry_after <= most
    for value in ("soon", "-4", "1e999", "9" * 400, "Mon, 99 Foo 2020"):
        fake.replies = [Reply(status=429, Retry_After=value)]
        with pytest.raises(BackendError) as caught:
            remote().complete(HI)
        assert caught.value.retry_after == 0
