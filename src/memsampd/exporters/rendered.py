"""Metrics as text, made no more often than they change, however often they are read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.exposition import choose_encoder

from memsampd.exporters.http import MakeText

_OPEN_METRICS = "application/openmetrics-text"


@dataclass(frozen=True, slots=True)
class _Kept:
    """A text that was made.

    Attributes:
        body: the text.
        version: of what is shown, when it was begun.
        until_seconds: it is good until then, though there is another version.
    """

    body: bytes
    version: object
    until_seconds: float


class RenderedMetrics:
    """Keeps the texts that somebody makes; may be read from any thread.

    There are two texts, whatever is asked for: OpenMetrics, and the older one.

    Args:
        make_text: makes one of them; is called by one thread at a time.
        version: another value whenever something else is to be shown.
        seconds: for so long a text is good though there is another version.
        monotonic: clock, injected for tests.
    """

    def __init__(
        self,
        make_text: MakeText,
        version: Callable[[], object],
        seconds: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_text = make_text
        self._version = version
        self._seconds = seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}

    def read(self, accept: str) -> tuple[bytes, str]:
        """Return the text and its content type.

        Args:
            accept: the Accept header.
        """
        open_metrics = _OPEN_METRICS in accept
        _, content_type = choose_encoder(_OPEN_METRICS if open_metrics else "")
        with self._lock:
            kept, version = self._kept.get(content_type), self._version()
            if kept is None or not self._is_good(kept, version):
                body = self._make_text(open_metrics)
                kept = _Kept(body, version, self._monotonic() + self._seconds)
                self._kept[content_type] = kept
        return kept.body, content_type

    def _is_good(self, kept: _Kept, version: object) -> bool:
        return kept.version == version or self._monotonic() < kept.until_seconds
