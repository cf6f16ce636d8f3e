"""The page at `/`: files of the folder `page`, nothing else, and nothing from outside."""

from __future__ import annotations

import os
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

_FOLDER = Path(__file__).parent / "page"
_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


def routes() -> list[BaseRoute]:
    """`/` is `page/index.html`, `/page/NAME` a file beside it; the security headers are added."""
    return [Route("/", _index), Route("/favicon.ico", _icon), Route("/page/{name}", _file)]


async def no_page(request: Request) -> Response:
    """What `/` is without the page: those who look whether a server lives ask for it."""
    return PlainTextResponse(
        "agentspec serves a model here: OpenAI's API at /v1, Anthropic's at /v1/messages, "
        "described by /openapi.json\n"
    )


async def _index(request: Request) -> Response:
    return _give("index.html")


async def _icon(request: Request) -> Response:
    return _give("favicon.svg")


async def _file(request: Request) -> Response:
    return _give(request.path_params["name"])


def _give(name: str) -> Response:
    path = _FOLDER / name
    kind = _TYPES.get(path.suffix)
    # one of the folder's own names, of a kind that the page is made of; never a path that the
    # file system is asked about, which refuses some names with errors of its own
    if kind is None or name not in os.listdir(_FOLDER) or path.is_symlink():
        raise HTTPException(404)
    return FileResponse(path, media_type=kind)
