"""`agentspec print-config`: what a client must be told to use a running server."""

from __future__ import annotations

import json
from typing import Any

import click

from agentspec.errors import ConfigError

_CLIENTS = ("aider", "claude", "codex", "continue", "opencode", "qwen-code", "zed")
_SECONDS = 5.0
_MOST_BYTES = 1 << 20
_SMALL = 16_384
_OTHERWISE = "start one with `agentspec serve`, or give --url, or --model and --n-ctx"


@click.command("print-config")
@click.argument("client", type=click.Choice(_CLIENTS))
@click.option("--url", help="Address of the server.  [default: as the settings say]")
@click.option("--model", help="Name of the model.  [default: the running server is asked]")
@click.option("--n-ctx", type=click.IntRange(16), help="Context window in tokens.")
@click.option("--max-tokens", type=click.IntRange(1), help="Most tokens of an answer.")
@click.option("--with-key", is_flag=True, help="The server asks for the key in AGENTSPEC_API_KEY.")
def print_config(
    client: str,
    url: str | None,
    model: str | None,
    n_ctx: int | None,
    max_tokens: int | None,
    with_key: bool,
) -> None:
    """Print the configuration of CLIENT for a running server; where it belongs, on stderr.

    No key is ever printed: clients take it from the variable AGENTSPEC_API_KEY.
    """
    from agentspec.config import load_settings
    from agentspec.server.clients import CLIENTS, Served

    settings = load_settings()
    key = settings.api_key
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)
    address = (url or f"http://{name}:{settings.port}").rstrip("/").removesuffix("/v1")
    Served(address, "x")  # what is wrong with the address is said before it is asked
    if model is None or n_ctx is None:
        found = _ask(address, key)
        model, n_ctx = model or found["id"], n_ctx or found["n_ctx"]
    served = Served(
        address,
        model,
        n_ctx=n_ctx,
        max_tokens=min(max_tokens or n_ctx // 2, n_ctx),
        needs_key=with_key or key is not None,
    )
    make = CLIENTS[client]
    click.echo(f"# {make.__doc__}", err=True)
    if n_ctx < _SMALL:
        click.echo(
            "# note: coding agents begin with 10,000 tokens and more, and this server takes "
            f"{n_ctx}; start it with a larger --n-ctx",
            err=True,
        )
    click.echo(make(served), nl=False)


def _ask(address: str, key: str | None) -> dict[str, Any]:
    """The model of a running server. Raises ConfigError."""
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

    class Here(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    # no proxy and no other server is told the key
    opener = build_opener(ProxyHandler({}), Here())
    try:
        with opener.open(Request(f"{address}/v1/models", headers=headers), timeout=_SECONDS) as got:
            found = json.loads(got.read(_MOST_BYTES))["data"][0]
            return {"id": str(found["id"]), "n_ctx": int(found["meta"]["n_ctx"])}
    except HTTPError as error:
        error.close()
        if error.code == 401:
            said = "wants an API key" if key is None else "refuses the key in the settings"
            raise ConfigError(
                f"the server at {address} {said}; set AGENTSPEC_API_KEY to one of its keys"
            ) from None
        raise ConfigError(f"{address} answers {error.code}; {_OTHERWISE}") from None
    except OSError as error:
        why = getattr(error, "reason", error)
        why = getattr(why, "strerror", None) or why
        raise ConfigError(f"no server answers at {address} ({why}); {_OTHERWISE}") from None
    except (ValueError, LookupError, TypeError):
        raise ConfigError(f"no agentspec server answers at {address}; {_OTHERWISE}") from None
