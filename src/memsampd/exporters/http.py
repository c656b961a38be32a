"""Serves /metrics to Prometheus: listens at once, and loads a server for the first request."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from memsampd.exporters.listen import DEFAULT_LISTEN, open_listening, parse_listen, url_of

if TYPE_CHECKING:
    from memsampd.exporters.serving import RequestServer

logger = logging.getLogger(__name__)

MakeText: TypeAlias = Callable[[bool], bytes]
"""Makes the text: OpenMetrics, or the older one."""
_BACKLOG = 16
_PAUSE_SECONDS = 1


class MetricsServer:
    """An HTTP server in a thread of its own.

    Args:
        make_text: makes what /metrics shows.
        listen: ``HOST:PORT``; port 0 takes a free one.
        version: another value whenever something else is to be shown; None: at each request.
        any_port: take a free port where the one of ``listen`` is in use.

    Attributes:
        host: address that it listens on, as the user called it.
        port: port that it listens on.

    Raises:
        UsageError: ``listen`` is malformed.
        CapabilityError: the address cannot be listened on.
    """

    def __init__(
        self,
        make_text: MakeText,
        listen: str = DEFAULT_LISTEN,
        version: Callable[[], object] | None = None,
        *,
        any_port: bool = False,
    ) -> None:
        self._make_text = make_text
        self._version = version or object
        self.host, _ = parse_listen(listen)
        self._socket = open_listening(listen, _BACKLOG, any_port=any_port)
        self.port: int = self._socket.getsockname()[1]
        self._closing = os.eventfd(0, os.EFD_CLOEXEC)
        self._closed = False
        self._is_short = False  # of descriptors or memory
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
        closing, either = select.poll(), select.poll()
        closing.register(self._closing, select.POLLIN)
        for file in (self._socket.fileno(), self._closing):
            either.register(file, select.POLLIN)
        while self._closing not in (file for file, _ in either.poll()):
            try:
                server = server or self._load()
                server.answer()
            except (OSError, ImportError) as error:  # a module may not be found without descriptors
                if not self._is_short:
                    logger.warning("/metrics is not served until there is room for it: %s", error)
                self._is_short = True
                closing.poll(1000 * _PAUSE_SECONDS)  # who asks waits: poll would return at once
            else:
                if self._is_short:
                    logger.info("/metrics is served again")
                self._is_short = False
        if server is not None:
            server.server_close()

    def _load(self) -> RequestServer:
        """What only serves requests takes as much CPU time as several bursts to be loaded.

        All of it is loaded here: who asks waits where there is no descriptor to do it with.
        """
        import memsampd.exporters.prometheus  # noqa: F401 (what the text is made by)
        from memsampd.exporters.rendered import RenderedMetrics
        from memsampd.exporters.serving import RequestServer

        metrics = RenderedMetrics(self._make_text, self._version)
        return RequestServer(self._socket, metrics, self.host)
