"""What watching words of memory takes from a thread beside hits: its copies may go slower."""

from __future__ import annotations

import threading

import msgspec

from memsampd import _core
from memsampd.closing import Closing

# Less than this, of what a copied byte takes, and nothing can be told from chance.
_SURELY_SLOWER = 1.0
_PAIRS = 3


class WatchingCost(msgspec.Struct, frozen=True):
    """What this CPU and this kernel do to a thread that has a data breakpoint, wherever it is.

    Attributes:
        repeat_seconds: longer for each element that ``rep movs`` or ``rep stos`` moves, in system
            calls and page faults, too: some CPUs then go byte by byte where they moved lines.
        times: so many times as long such a copy takes.
        sees_kernel: whether hits by the kernel may be counted (CAP_PERFMON). If not, nothing ends
            a watch of a word that system calls touch all the time.
    """

    repeat_seconds: float = 0.0
    times: float = 1.0
    sees_kernel: bool = True

    @classmethod
    def measure(cls) -> WatchingCost:
        """Measure it on this thread (some 0.3 ms of CPU time).

        Raises:
            OSError: the kernel refuses breakpoints, or others have them now: it is not known.
        """
        try:
            return cls._compare(sees_kernel=True)
        except PermissionError:
            return cls._compare(sees_kernel=False)

    @classmethod
    def _compare(cls, *, sees_kernel: bool) -> WatchingCost:
        """In turns, the least of each: nobody disturbs the thread all the time."""
        alone, watched = [], []
        for _ in range(_PAIRS):
            alone.append(_core.copy_seconds())
            with _Watched(sees_kernel=sees_kernel):
                watched.append(_core.copy_seconds())
        more, least = min(watched) - min(alone), min(alone)
        if more < _SURELY_SLOWER * least:
            return cls(sees_kernel=sees_kernel)
        return cls(more, min(watched) / least if least > 0 else 1.0, sees_kernel)


class _Watched(Closing):
    """This thread, with a breakpoint on a word that it does not touch.

    Raises:
        OSError: the kernel refuses it.
    """

    def __init__(self, *, sees_kernel: bool) -> None:
        *_, word = _core.run_known_loop(1)
        points = [(_core.BREAKPOINT_ACCESS, word)]
        self._points = _core.Breakpoints(threading.get_native_id(), points, 1, (), sees_kernel)
        self._points.arm()

    def close(self) -> None:
        """Remove it; may be called twice."""
        self._points.close()
