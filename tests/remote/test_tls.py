"""Over https: whom it trusts, and that leaving an answer works there too."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agentspec.errors import BackendError, CancelledError
from agentspec.remote.engine import RemoteEngine
from tests.remote.conftest import Fake, Reply, delta, sent

HI = [{"role": "user", "content": "hi"}]

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate of 127.0.0.1 in one file."""
    folder = tmp_path_factory.mktemp("tls")
    key, made, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    command += f" -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {made}"
    subprocess.run(command.split(), check=True, capture_output=True)
    both.write_bytes(key.read_bytes() + made.read_bytes())
    return both


@pytest.fixture
def secure(fake: Fake, certificate: Path) -> Fake:
    """The fake server over https."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    # the handshake is made in the thread of its connection
    fake.socket = context.wrap_socket(fake.socket, server_side=True, do_handshake_on_connect=False)
    return fake


@pytest.fixture
def remote(
    secure: Fake, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., RemoteEngine]:
    """An engine that trusts the fake server."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    url = secure.url.replace("http:", "https:")
    return lambda **settings: RemoteEngine(url, "m", max_retries=0, **settings)


def test_an_answer_and_a_key(secure: Fake, remote: Callable[..., RemoteEngine]) -> None:
    with remote(api_key="k") as engine:
        assert engine.complete(HI).text == "hi"
    assert set(secure.keys) == {"Bearer k"}


def test_a_certificate_of_nobody_known(
    secure: Fake, remote: Callable[..., RemoteEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with remote(api_key="k") as engine, pytest.raises(BackendError, match="certificate"):
        engine.complete(HI)
    assert not secure.keys


def test_cancelling_a_silent_server(secure: Fake, remote: Callable[..., RemoteEngine]) -> None:
    silent = threading.Event()
    secure.replies = [Reply(*sent(delta(content="a"), done=False), silent)]
    with remote() as engine:
        stream = engine.stream(HI)
        assert [next(stream) for _ in range(2)][-1].choices[0].delta.content == "a"
        timer = threading.Timer(0.2, engine.cancel)
        timer.start()
        with pytest.raises(CancelledError) as caught:
            next(stream)
        assert caught.value.partial == "a"
    silent.set()
    timer.join()
