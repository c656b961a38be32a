"""Code that runs, and that no burst has seen.

Bursts come at random moments, so they mostly find what most of the time is spent in. But code that
has a twentieth of the time may make half of the accesses: fast code does. It is looked for where
samples have found it.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.latest import Latest

_SAMPLES = 1000
_SAMPLES_LEAST = 100
_WORTH_SEEKING = 0.01  # of the samples
_RECURS = 50  # samples from the first to the last in some code, or more: it comes again
_LATELY = 300
_PLACES = 4  # a thread has as many debug registers
_FIRST_PAUSE = 8  # windows, doubled with each search for the same code


class Sought(msgspec.Struct, frozen=True):
    """Where to look for code.

    Attributes:
        tid: the thread that ran it lately.
        ips: places that it passed, at most four.
        bins: their bins in branch vectors.
        share: of the latest samples, those in code that no burst has seen.
    """

    tid: int
    ips: tuple[int, ...]
    bins: tuple[int, ...]
    share: float


class UnseenCode:
    """Remembers the latest samples, and which code was sought already.

    Code that was sought in vain, or still counts as not seen, is left alone for ever longer.
    """

    def __init__(self) -> None:
        self._ip = Latest(_SAMPLES, np.uint64)
        self._tid = Latest(_SAMPLES, np.int32)
        self._bin = Latest(_SAMPLES, np.int64)
        self._tries: Counter[int] = Counter()
        self._rest_until: dict[int, int] = {}

    def add(self, ip: NDArray[np.uint64], tid: NDArray[np.int32], bins: NDArray[np.int64]) -> None:
        """Remember samples: addresses, threads, and bins in branch vectors, shape (n,)."""
        self._ip.add(ip)
        self._tid.add(tid)
        self._bin.add(bins)

    def seek(self, is_seen: NDArray[np.bool_], window: int) -> Sought | None:
        """Choose where to look, if it is worth it.

        Args:
            is_seen: of each bin, whether a burst has run code in it, shape (bins,).
            window: index of the present window.
        """
        ran, tids = self._bin.rows, self._tid.rows
        if len(ran) < _SAMPLES_LEAST or ran.max() >= len(is_seen):
            return None
        never = ran[~is_seen[ran]]
        if len(never) < _WORTH_SEEKING * len(ran):
            return None
        rests = [bin for bin, until in self._rest_until.items() if until > window]
        unseen = set(never.tolist()).difference(rests)
        wanted = np.isin(ran, [bin for bin in unseen if self._recurs(bin)])
        share = float(np.mean(wanted))
        if share < _WORTH_SEEKING:
            return None
        tid = Counter(tids[wanted].tolist()).most_common(1)[0][0]
        wanted &= tids == tid
        bins = [bin for bin, _ in Counter(ran[wanted].tolist()).most_common(_PLACES)]
        # The latest place of each: what was run long ago may never be run again.
        ips = [int(self._ip.rows[wanted & (ran == bin)][-1]) for bin in bins]
        for bin in bins:
            self._tries[bin] += 1
            self._rest_until[bin] = window + (_FIRST_PAUSE << min(self._tries[bin], 16) - 1)
        return Sought(tid, tuple(ips), tuple(bins), share)

    def _recurs(self, bin: int) -> bool:
        """Whether some code is likely to be run again soon."""
        ran = self._bin.rows
        found = np.flatnonzero(ran == bin)
        return bool(found[-1] - found[0] >= _RECURS and len(ran) - found[-1] <= _LATELY)
