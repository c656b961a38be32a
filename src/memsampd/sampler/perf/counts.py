"""Counters that are read at each sample: what a thread did since its sample before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd import _core
from memsampd.machines.pmu import EventPlan, HardwareEvent
from memsampd.sampler.perf.groups import EventGroup
from memsampd.sampler.records import Counted

_SHARED_LESS_THAN = 0.95  # of the time: less is told
# By which a thread's CPU time goes back where another one has its id: one that has executed a
# program goes on under that of the first thread.
_ANOTHERS_NS = 10_000_000_000


class CounterSet(msgspec.Struct, frozen=True):
    """What the access clock counts.

    Attributes:
        kinds: loads, stores, instructions and cycles of each kind of core.
        is_speculative: loads and stores that were thrown away again are counted, too.
    """

    kinds: tuple[tuple[HardwareEvent, HardwareEvent, HardwareEvent, HardwareEvent], ...] = ()
    is_speculative: bool = False

    @classmethod
    def of(cls, plan: EventPlan) -> CounterSet:
        """Those of this machine; without kinds where there are none."""
        return cls(plan.counters, plan.is_speculative)

    @property
    def fields(self) -> int:
        """What a sample must have in it."""
        return _core.SAMPLE_COUNTS if self.kinds else 0

    def groups(self, sampled: Sequence[HardwareEvent]) -> tuple[EventGroup, ...]:
        """Groups of sampled events, with the counters of the kind of core that they are on."""
        if not self.kinds:
            return tuple(EventGroup(event) for event in sampled)
        groups = []
        for event in sampled:
            for counted in self.kinds:
                cpus = counted[0].cpus
                if not event.cpus or event.cpus == cpus:
                    groups.append(EventGroup(replace(event, cpus=cpus), counted))
        return tuple(groups)


NO_COUNTERS = CounterSet()


class Readings:
    """Makes differences of the counts that samples have in them.

    An event counts from when it was opened, and only on its CPU; that it was enabled is counted
    wherever its thread runs, which makes that the CPU time of the thread.

    Args:
        counters: what is counted beside the sampled event.

    Attributes:
        cpu_seconds: CPU time of all threads so far.
        counted_seconds: for so much of it the counters counted; others had them meanwhile.
    """

    def __init__(self, counters: CounterSet) -> None:
        self._counts = bool(counters.kinds)
        self._enabled: dict[int, int] = {}  # by thread, ns
        self._before: dict[tuple[int, int], NDArray[np.uint64]] = {}  # by thread and event
        self.cpu_seconds = 0.0
        self.counted_seconds = 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as it should be, a sentence each."""
        share = self.counted_seconds / self.cpu_seconds if self.cpu_seconds else 1.0
        if share >= _SHARED_LESS_THAN:
            return ()
        return (f"the counters were shared with others: they counted for {share:.0%} of the time",)

    def begin_anew(self) -> None:
        """All events have been opened anew: they count from zero."""
        self._enabled.clear()
        self._before.clear()

    def forget(self, tids: Sequence[int]) -> None:
        """Threads have ended: counts of others that get their ids begin anew."""
        if tids:
            gone = set(tids)
            for tid in gone:
                self._enabled.pop(tid, None)
            self._before = {key: kept for key, kept in self._before.items() if key[0] not in gone}

    def elapsed(self, samples: NDArray[np.void]) -> NDArray[np.float64]:
        """CPU time of each sample's thread since its sample before, seconds, shape (n,).

        Args:
            samples: of SAMPLE_DTYPE, in order of time.
        """
        elapsed = np.zeros(len(samples))
        for tid, rows in _grouped(samples["tid"]):
            # Its events were opened one after the other: their times differ by so much for ever.
            enabled = np.maximum.accumulate(samples["enabled_ns"][rows].astype(np.int64))
            before = self._enabled.get(tid, 0)
            if before - enabled[0] > _ANOTHERS_NS:
                before = int(enabled[0])
            enabled = np.maximum(enabled, before)
            elapsed[rows] = np.diff(enabled, prepend=before) * 1e-9
            self._enabled[tid] = int(enabled[-1])
        self.cpu_seconds += float(elapsed.sum())
        return elapsed

    def counted(self, samples: NDArray[np.void]) -> Counted | None:
        """What was counted since the samples before; None where there are no counters.

        Args:
            samples: of SAMPLE_DTYPE, in order of time.
        """
        if not self._counts:
            return None
        self.elapsed(samples)  # adds nothing where that was asked already
        readings = np.column_stack([samples["running_ns"], samples["counts"][:, 1:]])
        differences = np.zeros((len(samples), 5))
        keys = np.column_stack([samples["tid"], samples["event"]])
        for key in sorted(set(map(tuple, keys.tolist()))):
            rows = np.flatnonzero((keys == key).all(axis=1))
            before = self._before.get(key, np.zeros(5, np.uint64))
            whole = np.vstack([before, readings[rows]])
            differences[rows] = np.diff(whole.view(np.int64), axis=0)
            self._before[key] = readings[rows[-1]]
        seconds, loads, stores, instructions, cycles = differences.T
        self.counted_seconds += float(seconds.sum()) * 1e-9
        return Counted(loads + stores, instructions, cycles, seconds * 1e-9)


def _grouped(keys: NDArray[np.uint32]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    for key in sorted(set(keys.tolist())):
        yield key, np.flatnonzero(keys == key)
