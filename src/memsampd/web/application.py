"""The application: routes, static files, and what guards them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from memsampd.web.api import api_routes
from memsampd.web.guard import Guard, explain
from memsampd.web.state import State

METRICS_SECONDS = 1.0
_OPEN_METRICS = "application/openmetrics-text"
_PAGE = Path(__file__).with_name("page")
_MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}


def make_application(state: State, host: str) -> ASGIApp:
    """Return the application.

    Args:
        state: what it shows.
        host: address that is listened on.
    """
    app = Starlette(
        routes=[*api_routes(state), _metrics(state), *_page()],
        exception_handlers={HTTPException: explain, 500: explain},
    )
    return Guard(app, host)


def _metrics(state: State) -> Route:
    rendered = RenderedMetrics(state.prometheus.registry)

    async def metrics(request: Request) -> Response:
        body, content_type = rendered.read(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    return Route("/metrics", metrics)


class RenderedMetrics:
    """Metrics as text, made at most once a second: readers cannot have us work as they like.

    There are two texts, whatever is asked for: OpenMetrics, and the older one.

    Args:
        registry: what is shown.
        monotonic: clock, injected for tests.
    """

    def __init__(
        self, registry: CollectorRegistry, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._registry = registry
        self._monotonic = monotonic
        self._kept: dict[str, tuple[float, bytes]] = {}

    def read(self, accept: str) -> tuple[bytes, str]:
        """Return the text, a second old at most, and its content type.

        Args:
            accept: the Accept header.
        """
        encode, content_type = choose_encoder(_OPEN_METRICS if _OPEN_METRICS in accept else "")
        until_seconds, body = self._kept.get(content_type, (0.0, b""))
        if self._monotonic() >= until_seconds:
            body = encode(self._registry)
            self._kept[content_type] = (self._monotonic() + METRICS_SECONDS, body)
        return body, content_type


def _page() -> list[BaseRoute]:
    """Routes of the page's files, all read now: later we may not be allowed to."""
    files = [path for path in sorted(_PAGE.rglob("*")) if path.suffix in _MEDIA_TYPES]
    return [
        _file(f"/{name}" if name != "index.html" else "/", path)
        for path in files
        if (name := path.relative_to(_PAGE).as_posix())
    ]


def _file(route: str, path: Path) -> Route:
    content = path.read_bytes()

    async def serve(request: Request) -> Response:
        return Response(
            content,
            media_type=_MEDIA_TYPES[path.suffix],
            headers={"Cache-Control": "no-cache"},
        )

    return Route(route, serve)
