"""A tracing thread that is there only while bursts are wanted."""

from __future__ import annotations

import time
from collections.abc import Callable

from memsampd.daemon.tracer import CaptureOrder, CaptureResult, TracerThread
from memsampd.errors import CaptureError, MemsampdError

REST_SECONDS = 30.0


class RestingTracer:
    """Has a tracing thread and a replica from the first order until some time after the last one.

    They take some 9 MB; to translate the code again takes CPU time.

    Args:
        make: starts the thread.
        source_name: of the access source that it has.
        now: monotonic time in seconds.
    """

    def __init__(
        self,
        make: Callable[[], TracerThread],
        source_name: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self.source_name = source_name
        self._now = now
        self._tracer: TracerThread | None = None
        self._failed: list[CaptureResult] = []
        self._is_busy = False
        self._used_seconds = 0.0

    @property
    def is_awake(self) -> bool:
        """Whether there is a thread, and a replica."""
        return self._tracer is not None

    def change(self, make: Callable[[], TracerThread], source_name: str) -> None:
        """Have another thread, with another source, from the next order on."""
        self.close()
        self._make, self.source_name = make, source_name

    def order(self, order: CaptureOrder) -> None:
        """Have a burst taken, once the last one's result has been told."""
        try:
            self._tracer = self._tracer or self._make()
        except CaptureError as error:
            self._failed.append(CaptureResult(None, error))
        except (MemsampdError, OSError) as error:
            self._failed.append(CaptureResult(None, CaptureError("failed", str(error))))
        else:
            self._is_busy = True
            self._tracer.order(order)

    def end_seeking(self) -> None:
        """Wait no longer for a thread to come to code that is sought."""
        if self._tracer is not None:
            self._tracer.end_seeking()

    @property
    def has_results(self) -> bool:
        """Whether something has come since :meth:`results` was called."""
        return bool(self._failed) or (self._tracer is not None and self._tracer.has_results)

    def results(self) -> list[CaptureResult]:
        """What has come since the last call: one result an order."""
        found, self._failed = self._failed, []
        if self._tracer is not None:
            found += self._tracer.results()
        if found:
            self._is_busy, self._used_seconds = False, self._now()
        return found

    def rest(self, after_seconds: float = REST_SECONDS) -> None:
        """End the thread if nothing was ordered for so long."""
        if self._tracer is None or self._is_busy:
            return
        if self._now() - self._used_seconds >= after_seconds:
            self.close()

    def give_up_waiting(self) -> None:
        """End the thread if its order still waits for the target to run."""
        if self._tracer is not None and self._tracer.is_waiting:
            self.close()

    def close(self) -> None:
        """Take no more, and leave nothing in the target; may be called twice."""
        if self._tracer is not None:
            self._tracer.close()
            self._failed += self._tracer.results()
            self._tracer, self._is_busy = None, False
