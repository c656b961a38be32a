"""The HTTP server of /metrics, loaded when somebody asks for the first time."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client.exposition import ThreadingWSGIServer

from memsampd import __version__
from memsampd.exporters.rendered import RenderedMetrics

_GONE_SECONDS = 1.0  # for so long a connection is waited for that was there a moment ago
_STUCK_SECONDS = 5.0

_LANDING_PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>memsampd</title>
<meta name="color-scheme" content="light dark">
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; }}</style>
</head><body><h1>memsampd {__version__}</h1>
<p>Phases and miss-ratio curves of running processes. Prometheus reads
<a href="/metrics">/metrics</a>.</p></body></html>
""".encode()

_Respond = Callable[[str, list[tuple[str, str]]], object]


class RequestServer(ThreadingWSGIServer):
    """Answers requests to a socket that listens already, each in a thread of its own.

    Args:
        listening: the socket, which stays its maker's.
        metrics: what /metrics shows.
    """

    timeout = _GONE_SECONDS
    daemon_threads = False  # whoever is being answered at the end gets the answer

    def __init__(self, listening: socket.socket, metrics: RenderedMetrics) -> None:
        host, port, *_ = listening.getsockname()
        super().__init__((host, port), _SilentHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_name, self.server_port = host, port
        self.setup_environ()
        self.set_app(_application(metrics))


class _SilentHandler(WSGIRequestHandler):
    """Logs no request, and gives up who does not read the answer."""

    timeout = _STUCK_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def _application(metrics: RenderedMetrics) -> Callable[..., Iterable[bytes]]:
    def application(environ: dict[str, Any], start_response: _Respond) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            body, content_type = metrics.read(environ.get("HTTP_ACCEPT", ""))
            start_response("200 OK", [("Content-Type", content_type)])
            return [body]
        if path == "/":
            start_response("200 OK", [("Content-Type", "text/html; charset=utf-8")])
            return [_LANDING_PAGE]
        start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"not found; metrics are at /metrics\n"]

    return application
