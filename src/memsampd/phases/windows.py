"""Cutting the stream of branch samples into windows of CPU time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.phases.records import Window
from memsampd.sampler.records import BranchSamples

# Vectors that tell code apart have so many bins for one of those that phases are found by: hashed
# branches seldom meet there, where few samples a bin do no harm.
_FINER = 64

Lookup = Callable[[int, NDArray[np.uint64]], NDArray[np.uint64]]
"""``lookup(pid, ips)``: the branch of each address, shape (n,) to shape (n,)."""


def code_bins(bins: int) -> int:
    """Length of the vectors that tell code apart, where phases are found by so many bins."""
    return bins * _FINER


def hash_bins(names: NDArray[np.uint64], bins: int, seed: int = 0) -> NDArray[np.int64]:
    """Spread branch names evenly over bins.

    The finaliser of splitmix64: every input bit flips every output bit with probability 1/2, so
    that neighbouring branches fall anywhere.

    Args:
        names: branch addresses, shape (n,).
        bins: number of bins.
        seed: another seed gives another, independent spreading.

    Returns:
        Bins, shape (n,), 0 <= bin < bins.

    References:
        Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014.
    """
    start = (seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64
    bin_of_each = _core.hash_names(np.ascontiguousarray(names, np.uint64), bins, start)
    return np.frombuffer(bin_of_each, np.int64)


class WindowCutter:
    """Collects samples until they stand for a window of CPU time.

    Every window but a flushed one holds the same number of samples (for one sampling period), so
    that all are equally noisy; about so many where samples were taken for a part of the time.
    Samples lost by the kernel stand for CPU time, too, but not for a place in the vector: they are
    added to ``lost`` and ``cpu_seconds`` of the window that was open when they were reported. Sum
    over windows, nothing of the target's time is missing.

    Args:
        window_seconds: CPU time of a window.
        bins: that phases are found by; those of the windows' vectors are more
            (:func:`code_bins`), and fall into these by their remainders.
        lookup: maps addresses of a process to branches, for instance
            :meth:`memsampd.phases.branchmap.BranchMaps.lookup`.
        seed: seed of the hash.
        pid: windows tell of its threads, not of its children's; None: of all threads.

    Examples:
        >>> import numpy as np
        >>> cutter = WindowCutter(0.01, bins=8, lookup=lambda pid, ips: ips)
        >>> n = 25
        >>> batch = BranchSamples(
        ...     ip=np.arange(n, dtype=np.uint64), pid=np.full(n, 1, np.int32),
        ...     tid=np.full(n, 1, np.int32), time_seconds=np.arange(n) / 1000,
        ...     period_seconds=0.001)
        >>> [window.samples for window in cutter.add(batch)], cutter.flush().samples
        ([10, 10], 5)
    """

    def __init__(
        self,
        window_seconds: float,
        bins: int,
        lookup: Lookup,
        seed: int = 0,
        pid: int | None = None,
    ) -> None:
        if not window_seconds > 0 or bins < 1:
            raise ValueError("a window takes time and has at least one bin")
        self._window_seconds = window_seconds
        self._bins = bins
        self._lookup = lookup
        self._seed = seed
        self._pid = pid
        self._next_index = 0
        self._open()

    def _open(self) -> None:
        self._code = np.zeros(self._bins * _FINER)
        self._samples = 0
        self._sampled_seconds = 0.0  # by the period: every window has as many samples
        self._cpu_seconds = 0.0
        self._lost = 0
        self._lost_seconds = 0.0
        self._throttled = 0
        self._start_seconds = 0.0
        self._end_seconds = 0.0
        self._threads: Counter[int] = Counter()

    def add(self, batch: BranchSamples, bins: NDArray[np.int64] | None = None) -> list[Window]:
        """Take in samples.

        Args:
            batch: samples in order of time, as a branch source reads them.
            bins: of these, if they were looked up already (:meth:`bins`).

        Returns:
            The windows that they complete, oldest first.
        """
        self._lost += batch.lost
        if batch.cpu_seconds is None:  # else the sample after those lost stands for them, too
            self._lost_seconds += batch.lost * batch.period_seconds * batch.weight
        self._throttled += batch.throttled
        if not len(batch):
            return []
        windows = []
        bins = self.bins(batch) if bins is None else bins
        first = 0
        while first < len(batch):
            stands_seconds = batch.period_seconds * batch.weight
            missing = (self._window_seconds - self._sampled_seconds) / stands_seconds
            take = max(1, round(missing))
            part = slice(first, first + take)
            self._fill(batch, bins, part)
            if len(bins[part]) == take:
                windows.append(self._close())
            first += take
        return windows

    @property
    def last_seconds(self) -> float | None:
        """Time of the last sample in the window that is open; None if it has none."""
        return self._end_seconds if self._samples else None

    def flush(self) -> Window | None:
        """Close the window that is open: fewer samples than the others; None if it has none."""
        return self._close() if self._samples else None

    def bins(self, batch: BranchSamples) -> NDArray[np.int64]:
        """Return the bin of each sample in :attr:`Window.code`, shape (n,)."""
        return hash_bins(self._branches(batch), self._bins * _FINER, self._seed)

    def vector(self, pid: int, ips: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return what samples of these addresses make, as :attr:`Window.code`."""
        bins = hash_bins(self._lookup(pid, ips), self._bins * _FINER, self._seed)
        return np.bincount(bins, minlength=self._bins * _FINER).astype(np.float64)

    def _branches(self, batch: BranchSamples) -> NDArray[np.uint64]:
        pids = sorted(set(batch.pid.tolist()))
        if len(pids) == 1:
            return self._lookup(pids[0], batch.ip)
        branches = np.empty(len(batch), dtype=np.uint64)
        for pid in pids:
            own = batch.pid == pid
            branches[own] = self._lookup(pid, batch.ip[own])
        return branches

    def _fill(self, batch: BranchSamples, bins: NDArray[np.int64], part: slice) -> None:
        times = batch.time_seconds[part]
        if not self._samples:
            self._start_seconds = float(times[0])
        self._end_seconds = float(times[-1])
        self._code += np.bincount(bins[part], minlength=self._bins * _FINER)
        self._samples += len(times)
        nominal_seconds = len(times) * batch.period_seconds * batch.weight
        told = batch.cpu_seconds
        self._sampled_seconds += nominal_seconds
        if told is None:
            self._cpu_seconds += nominal_seconds
        else:
            self._cpu_seconds += float(told[part].sum()) * batch.weight
        tids = batch.tid[part]
        if self._pid is not None:
            tids = tids[batch.pid[part] == self._pid]
        self._threads.update(tids.tolist())

    def _close(self) -> Window:
        window = Window(
            index=self._next_index,
            start_seconds=self._start_seconds,
            end_seconds=self._end_seconds,
            cpu_seconds=self._cpu_seconds + self._lost_seconds,
            code=self._code,
            samples=self._samples,
            lost=self._lost,
            throttled=self._throttled,
            thread_samples=self._threads,
        )
        self._next_index += 1
        self._open()
        return window
