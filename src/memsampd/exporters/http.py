"""Serves /metrics to Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server

from memsampd import __version__
from memsampd.exporters.listen import DEFAULT_LISTEN, listening_error, parse_listen, url_of
from memsampd.exporters.rendered import MakeText, RenderedMetrics

_LANDING_PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>memsampd</title>
<meta name="color-scheme" content="light dark">
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; }}</style>
</head><body><h1>memsampd {__version__}</h1>
<p>Phases and miss-ratio curves of running processes. Prometheus reads
<a href="/metrics">/metrics</a>.</p></body></html>
""".encode()

_Respond = Callable[[str, list[tuple[str, str]]], object]


class MetricsServer:
    """An HTTP server in a thread of its own.

    Args:
        make_text: makes what /metrics shows.
        listen: ``HOST:PORT``; port 0 takes a free one.
        version: another value whenever something else is to be shown; None: at each request.

    Attributes:
        host: address that it listens on.
        port: port that it listens on, the one chosen if 0 was asked for.

    Raises:
        UsageError: ``listen`` is malformed.
        CapabilityError: the address cannot be listened on.
    """

    def __init__(
        self,
        make_text: MakeText,
        listen: str = DEFAULT_LISTEN,
        version: Callable[[], object] | None = None,
    ) -> None:
        self.host, port = parse_listen(listen)
        try:
            self._server, self._thread = start_http_server(port, self.host, CollectorRegistry())
        except OSError as error:
            raise listening_error(error, listen) from error
        self._server.set_app(_application(RenderedMetrics(make_text, version or object)))
        self.port = self._server.server_port
        self._closed = False

    @property
    def url(self) -> str:
        """Where Prometheus finds the metrics."""
        return f"{url_of(self.host, self.port)}metrics"

    def close(self) -> None:
        """Stop serving and free the port; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


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
