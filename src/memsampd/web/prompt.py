"""HTTP with a time limit for requests: idle connections must not use up the connection limit."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

REQUEST_SECONDS = 10.0


class PromptProtocol(H11Protocol):
    """A connection that is closed when a whole request does not come in time.

    The time runs from the connection and from the end of each answer; bytes that are no whole
    request do not prolong it.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._expect_request(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._forget_deadline()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it is here already."""
        answered = self.cycle
        super().on_response_complete()
        if not self.transport.is_closing():
            self._expect_request(answered)

    def _expect_request(self, answered: RequestResponseCycle | None) -> None:
        self._forget_deadline()
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._hang_up, answered)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _hang_up(self, answered: RequestResponseCycle | None) -> None:
        if self.cycle is answered:
            self.transport.close()
