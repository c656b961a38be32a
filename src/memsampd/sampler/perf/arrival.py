"""Waiting until a thread comes to one of some places in its code."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.sampler.perf.refusal import explain_refusal

# What a hit takes from the thread, here 10 to 31 us: charged, whatever it is.
HIT_SECONDS = 20e-6
_PATIENCE_SECONDS = 0.2
_LOOK_SECONDS = 0.05
_HIT_BYTES = 32  # struct hit of _core/perf/breakpoints.c


def wait_for(tid: int, ips: Sequence[int], is_cancelled: threading.Event) -> float:
    """Wait until a thread executes one of some instructions, each of which stops it once at most.

    It is interrupted there for a moment and runs on: whoever wants to find it there must be quick.

    Args:
        tid: the thread.
        ips: one to four addresses.
        is_cancelled: ends the wait.

    Returns:
        CPU time that the thread lost.

    Raises:
        CaptureError: it did not come there in time.
        CapabilityError: the kernel refuses breakpoints; why, and what to do.
    """
    try:
        points = _core.Breakpoints(tid, [(_core.BREAKPOINT_EXECUTE, ip) for ip in ips], 1)
    except OSError as error:
        raise explain_refusal(error, f"breakpoints on thread {tid}") from error
    try:
        points.arm()
        for _ in range(round(_PATIENCE_SECONDS / _LOOK_SECONDS)):
            is_alive = points.wait(1, _LOOK_SECONDS)
            hits = len(points.hits()) // _HIT_BYTES
            if hits:
                return hits * HIT_SECONDS
            if not is_alive or is_cancelled.is_set():
                break
    finally:
        points.close()
    raise CaptureError(
        "not-reached",
        f"thread {tid} did not come to the code that was sought in {_PATIENCE_SECONDS:g} s",
        "it is sought again, ever more rarely",
    )
