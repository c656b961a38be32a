"""Serves /metrics to Prometheus: listens at once, and loads a server for the first request."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from memsampd.exporters.listen import DEFAULT_LISTEN, listening_error, parse_listen, url_of

if TYPE_CHECKING:
    from memsampd.exporters.serving import RequestServer

MakeText: TypeAlias = Callable[[bool], bytes]
"""Makes the text: OpenMetrics, or the older one."""
_BACKLOG = 16


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
        self._make_text = make_text
        self._version = version or object
        self.host, port = parse_listen(listen)
        try:
            self._socket = _listening(self.host, port)
        except OSError as error:
            raise listening_error(error, listen) from error
        self.port: int = self._socket.getsockname()[1]
        self._closing = os.eventfd(0, os.EFD_CLOEXEC)
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where Prometheus finds the metrics."""
        return f"{url_of(self.host, self.port)}metrics"

    def close(self) -> None:
        """Stop serving and free the port; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._closing, 1)
        self._thread.join()
        self._socket.close()
        os.close(self._closing)

    def _serve(self) -> None:
        server: RequestServer | None = None
        poll = select.poll()
        for file in (self._socket.fileno(), self._closing):
            poll.register(file, select.POLLIN)
        while self._closing not in (file for file, _ in poll.poll()):
            if server is None:
                server = self._load()
            server.handle_request()
        if server is not None:
            server.server_close()

    def _load(self) -> RequestServer:
        """What only serves requests takes as much CPU time as several bursts to be loaded."""
        from memsampd.exporters.rendered import RenderedMetrics
        from memsampd.exporters.serving import RequestServer

        return RequestServer(self._socket, RenderedMetrics(self._make_text, self._version))


def _listening(host: str, port: int) -> socket.socket:
    name = host.encode() if host.isascii() else host  # whose codec takes a while to be loaded
    family, _, _, _, address = socket.getaddrinfo(
        name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # [::] is any address
    return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
