"""The HTTP server of /metrics, loaded when somebody asks for the first time."""

from __future__ import annotations

import io
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client.exposition import ThreadingWSGIServer

from memsampd import __version__
from memsampd.exporters.hosts import host_of, may_be_asked_as
from memsampd.exporters.listen import NO_ROOM
from memsampd.exporters.rendered import RenderedMetrics

logger = logging.getLogger(__name__)

_GONE_SECONDS = 1.0  # for so long a connection is waited for that was there a moment ago
_STUCK_SECONDS = 5.0
_MOST_CONNECTIONS = 32
# Whoever asks byte by byte, or reads so, is not stuck, and is hung up on all the same.
_LONGEST_SECONDS = 30.0

_PLAIN = "text/plain; charset=utf-8"
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

    Of too many connections the oldest is closed. Closing the server waits for answers that are
    being given, but no longer than ``_STUCK_SECONDS``.

    Args:
        listening: the socket, which stays its maker's.
        metrics: what /metrics shows.
        called: what the user called the address.
    """

    timeout = _GONE_SECONDS
    daemon_threads = False  # whoever is being answered at the end gets the answer

    def __init__(self, listening: socket.socket, metrics: RenderedMetrics, called: str) -> None:
        host, port, *_ = listening.getsockname()
        super().__init__((host, port), _SilentHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_name, self.server_port = host, port
        self.setup_environ()
        self.set_app(_application(metrics, host, called))
        self._lock = threading.Lock()
        self._refusal: OSError | None = None
        self._open: dict[socket.socket, float] = {}  # since when, the oldest first

    def answer(self) -> None:
        """Answer one request, in a new thread; whoever has gone meanwhile needs no answer.

        Raises:
            OSError: there is no descriptor or no memory for it: it still waits.
        """
        self._refusal = None
        self.handle_request()
        if self._refusal is not None:
            raise self._refusal

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in NO_ROOM:
                self._refusal = error
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread."""
        now_seconds = time.monotonic()
        with self._lock:
            for at, (each, since_seconds) in enumerate(self._open.items()):
                is_one_too_many = at <= len(self._open) - _MOST_CONNECTIONS
                if is_one_too_many or now_seconds - since_seconds > _LONGEST_SECONDS:
                    _hang_up(each)
            self._open[request] = now_seconds
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, in the thread that answered."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing where the other end is to blame: it went, or was too slow."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        """Wait for answers that are being given, and end."""
        patience = threading.Timer(_STUCK_SECONDS, self._hang_up_on_all)
        patience.daemon = True
        patience.start()
        super().server_close()
        patience.cancel()

    def _hang_up_on_all(self) -> None:
        with self._lock:
            for each in self._open:
                _hang_up(each)


def _hang_up(connection: socket.socket) -> None:
    """Have the thread that answers there find the connection at its end."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _SilentHandler(WSGIRequestHandler):
    """Logs no request, and gives up who does not read the answer."""

    timeout = _STUCK_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def get_stderr(self) -> Any:
        """Where the library says that somebody does not read: nowhere."""
        return io.StringIO()


def _application(
    metrics: RenderedMetrics, address: str, name: str
) -> Callable[..., Iterable[bytes]]:
    def application(environ: dict[str, Any], start_response: _Respond) -> Iterable[bytes]:
        path, called = environ["PATH_INFO"], environ.get("HTTP_HOST", "")
        if not may_be_asked_as(called, address, name):
            start_response("421 Misdirected Request", [("Content-Type", _PLAIN)])
            cause = f"this server is not called {host_of(called)!r}"
            return [f"{cause}: ask for localhost or 127.0.0.1\n".encode()]
        if path == "/metrics":
            try:
                body, content_type = metrics.read(environ.get("HTTP_ACCEPT", ""))
            except Exception:
                logger.exception("an error of ours: metrics cannot be made")
                raise
            start_response("200 OK", [("Content-Type", content_type)])
            return [body]
        if path == "/":
            start_response("200 OK", [("Content-Type", "text/html; charset=utf-8")])
            return [_LANDING_PAGE]
        start_response("404 Not Found", [("Content-Type", _PLAIN)])
        return [b"not found; metrics are at /metrics\n"]

    return application
