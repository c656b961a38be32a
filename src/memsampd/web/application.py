"""The application: routes, static files, and what guards them."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from memsampd.exporters.rendered import RenderedMetrics
from memsampd.web.api import api_routes
from memsampd.web.guard import Guard, explain
from memsampd.web.state import State

METRICS_SECONDS = 1.0
_PAGE = Path(__file__).with_name("page")
_MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}


def make_application(state: State, address: str, called: str) -> ASGIApp:
    """Return the application.

    Args:
        state: what it shows.
        address: that is listened on.
        called: what the user called it.
    """
    app = Starlette(
        routes=[*api_routes(state), _metrics(state), *_page()],
        exception_handlers={HTTPException: explain, 500: explain},
    )
    return Guard(app, address, called)


def _metrics(state: State) -> Route:
    exporter = state.prometheus
    rendered = RenderedMetrics(exporter.text, lambda: exporter.version, METRICS_SECONDS)

    async def metrics(request: Request) -> Response:
        body, content_type = rendered.read(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    return Route("/metrics", metrics)


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
