"""Breakpoints on a running thread, and the CPU time at which each was hit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.sampler.perf.refusal import explain_refusal

EXECUTE = _core.BREAKPOINT_EXECUTE
ACCESS = _core.BREAKPOINT_ACCESS
GRANULE_BYTES = 8
POINTS_MAX = 4

# struct hit of _core/perf/breakpoints.c.
HIT_DTYPE = np.dtype(
    [("task_ns", "<u8"), ("time_ns", "<u8"), ("ip", "<u8"), ("point", "<u4"), ("padding", "<u4")]
)


@dataclass(frozen=True, slots=True)
class Hits:
    """Hits in the order in which they came.

    Attributes:
        cpu_seconds: CPU time of the thread at each, from an origin of their own, shape (n,),
            float64; what hits cost is in it.
        point: which of the breakpoints, shape (n,), uint32.
    """

    cpu_seconds: NDArray[np.float64]
    point: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.point)


def read_hits(breakpoints: _core.Breakpoints) -> Hits:
    """All hits so far."""
    found = np.frombuffer(breakpoints.hits(), HIT_DTYPE)
    return Hits(1e-9 * found["task_ns"], found["point"].copy())


@contextmanager
def breakpoints(
    tid: int, points: Sequence[tuple[int, int]], hits: int
) -> Iterator[_core.Breakpoints]:
    """One to four breakpoints, not armed yet, for as long as the block runs.

    Args:
        tid: the thread.
        points: pairs of a kind (``EXECUTE``, ``ACCESS``) and an address.
        hits: after which each counts no more.

    Raises:
        MemsampdError: they cannot be had, and why (the debug registers are taken, ...).
    """
    try:
        opened = _core.Breakpoints(tid, points, hits)
    except OSError as error:
        raise explain_refusal(error, f"breakpoints on thread {tid}") from error
    try:
        yield opened
    finally:
        opened.close()
