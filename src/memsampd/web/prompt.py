"""HTTP with time limits: connections that stand still must not use up the connection limit."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

REQUEST_SECONDS = 10.0
ANSWER_SECONDS = 30.0


class PromptProtocol(H11Protocol):
    """A connection that is closed when a whole request does not come in time, or nobody reads.

    The time of a request runs from the connection and from the end of each answer; bytes that are
    no whole request do not prolong it. As much time again is left for reading what is on its way
    when the connection is closed. In between, an answer that fills the buffer must be read on
    within ``ANSWER_SECONDS``.
    """

    _deadline: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._expect_request(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._forget_deadline()
        self._forget_reading()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it is here already, or for the end of the reading."""
        answered = self.cycle
        super().on_response_complete()
        self._expect_request(answered)

    def pause_writing(self) -> None:
        """Wait until the client reads."""
        super().pause_writing()
        self._forget_reading()
        self._reading = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It does."""
        self._forget_reading()
        super().resume_writing()

    def _expect_request(self, answered: RequestResponseCycle | None) -> None:
        self._forget_deadline()
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._hang_up, answered)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _forget_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def _hang_up(self, answered: RequestResponseCycle | None) -> None:
        if self.transport.is_closing():
            self.transport.abort()
        elif self.cycle is answered:
            self.transport.close()
            self._expect_request(answered)
