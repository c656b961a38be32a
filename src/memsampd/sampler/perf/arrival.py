"""Places in a thread's code where a burst of it is to begin."""

from __future__ import annotations

from collections.abc import Sequence

from memsampd import _core
from memsampd.closing import Closing
from memsampd.sampler.perf.refusal import explain_refusal

# What a hit takes from the thread, here 10 to 31 us: charged, whatever it is.
HIT_SECONDS = 20e-6
_HIT_BYTES = 40  # struct hit of _core/perf/point_group.h


class Arrival(Closing):
    """Breakpoints at some instructions of a thread, each of which stops it once at most.

    They start when a burst waits for one of them (:meth:`_core.Replica.burst`): the thread runs on
    from there, so whoever wants to find it there must have all else done before.

    Args:
        tid: the thread.
        ips: one to four addresses; none: it is where it wants to be, and nothing is set.

    Raises:
        MemsampdError: the kernel refuses breakpoints; why, and what to do.
    """

    def __init__(self, tid: int, ips: Sequence[int]) -> None:
        self._points: _core.Breakpoints | None = None
        if not ips:
            return
        try:
            self._points = _core.Breakpoints(tid, [(_core.BREAKPOINT_EXECUTE, ip) for ip in ips], 1)
            self._points.arm(False)
        except OSError as error:
            raise explain_refusal(error, f"breakpoints on thread {tid}") from error

    @property
    def descriptors(self) -> tuple[int, int]:
        """What enables the breakpoints, and what is readable once one was hit; -1: none is set."""
        return (-1, -1) if self._points is None else self._points.descriptors()

    @property
    def lost_seconds(self) -> float:
        """CPU time that the thread lost by hits so far."""
        hits = 0 if self._points is None else len(self._points.hits()) // _HIT_BYTES
        return hits * HIT_SECONDS

    def close(self) -> None:
        """Remove them; may be called twice."""
        if self._points is not None:
            self._points.close()
