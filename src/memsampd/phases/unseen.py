"""Code that runs, and that no burst has seen.

Bursts come at random moments, so they mostly find what most of the time is spent in. But code that
has a twentieth of the time may make half of the accesses: fast code does. It is looked for where
samples have found it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.latest import Latest
from memsampd.sampler.records import BranchSamples

_SAMPLES = 1000
_SAMPLES_LEAST = 100
_WORTH_SEEKING = 0.01  # of the samples
_RECURS = 50  # samples from the first to the last in some code, or more: it comes again
_LATELY = 300
_PLACES = 4  # a thread has as many debug registers
_FIRST_PAUSE = 8  # windows, doubled with each search for the same code
# For how long code is waited for: until it should have come again, by its samples.
_LEAST_PATIENCE_SECONDS, _MOST_PATIENCE_SECONDS = 0.2, 0.7  # no other burst is taken meanwhile
# Where so many of so few samples are in code that no burst has seen, the program has gone on to
# other code, which may be over soon; so many samples later it may have gone on again.
LATEST = 12
"""Samples that tell whether a program has gone on to other code."""
_NEW_SHARE = 0.75
# Sooner at first, and a tenth later each time: programs do so at their begin most of all.
_NEW_AGAIN, _NEW_SOON, _LATER = 100, 40, 1.1
_OVERDUE = 2  # times as long as it ever stayed away: it may be over for good


class Sought(msgspec.Struct, frozen=True):
    """Where to look for code.

    Attributes:
        tid: the thread that ran it lately.
        ips: places that it passed, at most four.
        patience_seconds: for how long it is to be waited for.
    """

    tid: int
    ips: tuple[int, ...]
    patience_seconds: float


class UnseenCode:
    """Remembers the latest samples, and which code was sought already.

    Code that was sought in vain, or still counts as not seen, is left alone for ever longer.
    Several places are sought at a time, and one is found: it was not in vain for the others.

    Args:
        pid: the process; what others run, as its children, no burst of it can see.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ip = Latest(_SAMPLES, np.uint64)
        self._tid = Latest(_SAMPLES, np.int32)
        self._bin = Latest(_SAMPLES, np.int64)
        self._seconds = Latest(_SAMPLES, np.float64)
        self._sought: tuple[int, ...] = ()  # bins, lately
        self._tries: Counter[int] = Counter()
        self._rest_until: dict[int, int] = {}
        self._added = 0  # samples
        # Of the last time that new code was told: how many bins had been seen by then, after how
        # many samples it was, and how many until other code may be told, in vain or not.
        self._seen_before, self._told_at, self._new_pause = 0, -math.inf, _NEW_AGAIN / 2
        self._new_soon = float(_NEW_SOON)

    def add(self, samples: BranchSamples, bins: NDArray[np.int64]) -> None:
        """Remember samples, and their bins in branch vectors, shape (n,)."""
        is_own = samples.pid == self._pid
        self._ip.add(samples.ip[is_own])
        self._tid.add(samples.tid[is_own])
        self._bin.add(bins[is_own])
        self._seconds.add(samples.time_seconds[is_own])
        self._added += int(np.count_nonzero(is_own))

    @staticmethod
    def is_new(bins: NDArray[np.int64], is_seen: NDArray[np.bool_]) -> bool:
        """Whether the latest samples are in code that no burst has seen.

        Args:
            bins: of samples in branch vectors, shape (n,).
            is_seen: of each bin, whether a burst has run code in it, shape (bins,).
        """
        latest = bins[-LATEST:]
        if len(latest) < LATEST or latest.max() >= len(is_seen) or not is_seen.any():
            return False
        return (LATEST - int(np.count_nonzero(is_seen[latest]))) / LATEST >= _NEW_SHARE

    def new_thread(self, is_seen: NDArray[np.bool_]) -> int | None:
        """Return the thread that has just begun to run code which no burst has seen, once.

        Args:
            is_seen: of each bin, whether a burst has run code in it, shape (bins,).
        """
        if not self.is_new(self._bin.rows, is_seen):
            return None
        seen = int(np.count_nonzero(is_seen))
        if seen > self._seen_before > 0:
            self._new_pause = self._new_soon  # the burst saw this, or what came next
        if self._added - self._told_at < self._new_pause:
            return None
        self._new_pause *= 2
        self._new_soon = min(_LATER * self._new_soon, _NEW_AGAIN)
        self._told_at, self._seen_before = self._added, seen
        threads: list[int] = self._tid.rows[-LATEST:].tolist()
        return Counter(threads).most_common(1)[0][0]

    def seek(self, is_seen: NDArray[np.bool_], window: int) -> Sought | None:
        """Choose where to look, if it is worth it.

        Args:
            is_seen: of each bin, whether a burst has run code in it, shape (bins,).
            window: index of the present window.
        """
        if any(is_seen[bin] for bin in self._sought if bin < len(is_seen)):
            self._spare(bin for bin in self._sought if not is_seen[bin])
        ran, tids = self._bin.rows, self._tid.rows
        if len(ran) < _SAMPLES_LEAST or ran.max() >= len(is_seen):
            return None
        never = np.flatnonzero(~is_seen[ran])
        if len(never) < _WORTH_SEEKING * len(ran):
            return None
        rests = {bin for bin, until in self._rest_until.items() if until > window}
        found = zip(ran[never].tolist(), never.tolist(), strict=True)
        unseen = [each for each in found if each[0] not in rests]
        if len(unseen) < _WORTH_SEEKING * len(ran):
            return None
        is_wanted = np.zeros(len(is_seen), np.bool_)
        is_wanted[self._recurring(unseen)] = True
        wanted = is_wanted[ran]
        if np.mean(wanted) < _WORTH_SEEKING:
            return None
        tid = Counter(tids[wanted].tolist()).most_common(1)[0][0]
        wanted &= tids == tid
        bins = [bin for bin, _ in Counter(ran[wanted].tolist()).most_common(_PLACES)]
        # The latest place of each: what was run long ago may never be run again.
        ips = [int(self._ip.rows[wanted & (ran == bin)][-1]) for bin in bins]
        for bin in bins:
            self._tries[bin] += 1
            self._rest_until[bin] = window + (_FIRST_PAUSE << min(self._tries[bin], 16) - 1)
        self._sought = tuple(bins)
        return Sought(tid, tuple(ips), self._patience_seconds(bins))

    def _spare(self, bins: Iterable[int]) -> None:
        """Take it back that some code was sought in vain."""
        self._sought = ()
        for bin in bins:
            self._tries[bin] -= 1
            del self._rest_until[bin]

    def _patience_seconds(self, bins: Iterable[int]) -> float:
        """How long none of some code stayed away, at most, by its samples; within limits."""
        longest = min(float(self._away_seconds(bin).max()) for bin in bins)
        return min(max(longest, _LEAST_PATIENCE_SECONDS), _MOST_PATIENCE_SECONDS)

    def _away_seconds(self, bin: int) -> NDArray[np.float64]:
        """For how long some code stayed away each time; last, since its latest sample."""
        seconds = self._seconds.rows
        return np.diff(seconds[self._bin.rows == bin], append=seconds[-1])

    def _recurring(self, ran: Sequence[tuple[int, int]]) -> list[int]:
        """Those of some code that are likely to be run again soon.

        Args:
            ran: bins, and which samples found them, all of these bins in order.
        """
        last, first = dict(ran), dict(reversed(ran))
        lately = len(self._bin.rows) - _LATELY
        come_again = [
            bin for bin, at in last.items() if at - first[bin] >= _RECURS and at >= lately
        ]
        return [bin for bin in come_again if not self._is_overdue(bin)]

    def _is_overdue(self, bin: int) -> bool:
        """Whether some code has stayed away for much longer than ever."""
        away = self._away_seconds(bin)
        return bool(away[-1] > _OVERDUE * max(away[:-1].max(), _LEAST_PATIENCE_SECONDS))
