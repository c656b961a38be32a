"""What the estimator is told: windows, bursts, watches, merges of phases, new programs, and more.

A session makes these and a recording keeps them (:mod:`memsampd.exporters.recording`), so that a
recording replayed tells the estimator exactly what it was told live.
"""

from __future__ import annotations

import itertools
from typing import ClassVar, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.models.histogram import ReuseHistogram
from memsampd.models.stack_samples import StackSamples
from memsampd.sampler.process.mapped import MemoryUse
from memsampd.sampler.rates import CodeRate, CoreTimes, Speed, TimedStretch
from memsampd.sampler.records import Burst, BurstCost, BurstEnd, Spacing, makes_no_access

_HITS = "<u2"
_MOST_HITS = (1 << 16) - 1


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="record"):
    """Base of all events and records: unknown keys are ignored, missing ones get their default."""


def code_bytes(hits: NDArray[np.float64]) -> bytes:
    """Return a branch vector, shape (bins,), as records keep it."""
    return np.clip(hits, 0, _MOST_HITS).astype(_HITS).tobytes()


def code_hits(code: bytes) -> NDArray[np.uint16]:
    """Undo :func:`code_bytes`, without a copy; shape (0,) if nothing was kept.

    Raises:
        ValueError: it is cut off.
    """
    return np.frombuffer(code, _HITS)


def code_vector(code: bytes) -> NDArray[np.float64]:
    """The same as floating-point numbers."""
    return code_hits(code).astype(np.float64)


class WindowRecord(Event, frozen=True, kw_only=True, tag="window"):
    """One window.

    Attributes:
        index: 0, 1, 2, ...
        start_seconds: its first sample, seconds since the attach.
        end_seconds: its last sample, seconds since the attach.
        cpu_seconds: CPU time that it covers.
        phase: the phase it was put into (ids that were merged later: see MergeRecord).
        samples: branch samples in it.
        sampled_share: for this part of the time they were taken when it ended.
        lost: branch samples lost in it.
        throttled: throttle events in it.
        predicted_phase: the phase that was expected.
        code: its branch vector, hits a bin, uint16 little-endian; empty if it was not kept.
        rates: how fast code went in it that bursts were timed in.
        spacing: how far apart its data lay; None where samples do not tell.
        speed: accesses, instructions and cycles as counters told them; None without counters.
        memory: what the target had at its end, and was given in it; None if that is not known.
    """

    index: int
    start_seconds: float
    end_seconds: float
    cpu_seconds: float
    phase: int
    samples: int = 0
    sampled_share: float = 1.0
    lost: int = 0
    throttled: int = 0
    predicted_phase: int | None = None
    code: bytes = b""
    rates: tuple[CodeRate, ...] = ()
    spacing: Spacing | None = None
    speed: Speed | None = None
    memory: MemoryUse | None = None

    def __post_init__(self) -> None:
        code_hits(self.code)


class BurstRecord(Event, frozen=True, kw_only=True, tag="burst"):
    """One burst, as its reuse histogram; make it with :meth:`of`.

    Attributes:
        window: index of the window that it was taken in.
        phase: that window's phase.
        tid: thread that was observed.
        time_seconds: when, seconds since the attach.
        accesses: accesses to lines.
        writes: rows of the burst that were stores.
        rows: rows of the burst.
        instructions: instructions executed.
        prefetches: software prefetches met.
        end: why it ended.
        end_detail: what ended it, for people.
        cost: what it cost.
        bins: indices of the non-empty bins, int32 little-endian.
        reuses: their reuses, int64 little-endian.
        censored: their censored accesses, int64 little-endian.
        sampled_reuses: reuse distances of some reuses, ascending, uint32 little-endian.
        sampled_stacks: stack distances of the same; both are empty where nobody looked.
        scattered: accesses to lines that nothing told beforehand, see :class:`ReuseHistogram`.
        core: how long parts of it would take on a modelled core; None where nobody asked.
        part: 1, 2, ... if its code changed: the next part of the burst before.
        timed: what was timed of it in the target; None if nothing was.
        calls: system calls that it goes over.
        calls_compared: at so many of these the target was compared with its replica.
        calls_equal: at so many they were equal.
        pages_predicted: pages that were supplied before it touched them.
        pages_missed: pages that were supplied when it touched them.
        beyond_accesses: rows at its end that were made when the target ran on.
        timed_code: id of its code in the rates of windows; -1 if it has none.
        is_plausible: other threads could run meanwhile: perhaps not the future that came.
        analysed_seconds: when its window was known and it counted, seconds since the attach; None
            if nobody said.
        code: branch vector of what it executed, as of a window; empty if that is not known.
        spacing: how far apart data lay about its moment; None where samples do not tell.
        is_stored: it was taken before the attach, of another run of the program or by another
            session, and kept since: its time is below 0, its window comes before the first one, and
            it costs nothing.
    """

    window: int
    phase: int
    tid: int
    time_seconds: float
    accesses: int
    writes: int
    rows: int
    instructions: int
    prefetches: int
    end: BurstEnd
    end_detail: str
    cost: BurstCost
    bins: bytes
    reuses: bytes
    censored: bytes
    sampled_reuses: bytes = b""
    sampled_stacks: bytes = b""
    scattered: int = 0
    core: CoreTimes | None = None
    part: int = 0
    timed: TimedStretch | None = None
    calls: int = 0
    calls_compared: int = 0
    calls_equal: int = 0
    pages_predicted: int = 0
    pages_missed: int = 0
    beyond_accesses: int = 0
    timed_code: int = -1
    is_plausible: bool = False
    analysed_seconds: float | None = None
    code: bytes = b""
    is_stored: bool = False
    spacing: Spacing | None = None

    def __post_init__(self) -> None:
        code_hits(self.code)

    _BIN: ClassVar[str] = "<i4"
    _COUNT: ClassVar[str] = "<i8"
    _DISTANCE: ClassVar[str] = "<u4"

    @classmethod
    def of(
        cls,
        burst: Burst,
        histogram: ReuseHistogram,
        *,
        window: int,
        phase: int,
        time_seconds: float,
        writes: int,
        analysed_seconds: float | None = None,
        code: bytes = b"",
        spacing: Spacing | None = None,
    ) -> BurstRecord:
        """Record what of a burst is kept.

        Args:
            burst: the burst.
            histogram: reuse histogram of its lines.
            window: index of its window.
            phase: phase of that window.
            time_seconds: when it was taken, seconds since the attach.
            writes: stores among its rows.
            analysed_seconds: when it counted, seconds since the attach.
            code: its branch vector, see :func:`code_bytes`.
            spacing: how far apart data lay about its moment.
        """
        bins, reuses, censored = histogram.to_sparse()
        stacks = histogram.stacks or StackSamples.none()
        return cls(
            window=window,
            phase=phase,
            tid=burst.tid,
            time_seconds=time_seconds,
            accesses=histogram.accesses,
            writes=writes,
            rows=burst.accesses,
            instructions=burst.instructions,
            prefetches=burst.prefetches,
            end=burst.end,
            end_detail=burst.end_detail,
            cost=burst.cost,
            bins=bins.astype(cls._BIN).tobytes(),
            reuses=reuses.astype(cls._COUNT).tobytes(),
            censored=censored.astype(cls._COUNT).tobytes(),
            sampled_reuses=stacks.reuse.astype(cls._DISTANCE).tobytes(),
            sampled_stacks=stacks.stack.astype(cls._DISTANCE).tobytes(),
            scattered=histogram.scattered,
            core=burst.core,
            part=burst.part,
            calls=burst.calls,
            calls_compared=burst.calls_compared,
            calls_equal=burst.calls_equal,
            pages_predicted=burst.pages_predicted,
            pages_missed=burst.pages_missed,
            beyond_accesses=burst.beyond_accesses,
            is_plausible=burst.is_plausible,
            analysed_seconds=analysed_seconds,
            code=code,
            spacing=spacing,
        )

    @property
    def is_memoryless(self) -> bool:
        """Whether it ran so long without an access that its code makes none."""
        return makes_no_access(self.accesses, self.instructions)

    def histogram(self) -> ReuseHistogram:
        """Return the burst's reuse histogram.

        Raises:
            ValueError: the arrays do not fit together.
        """
        bins = np.frombuffer(self.bins, self._BIN).astype(np.int32)
        reuses, censored = (
            np.frombuffer(raw, self._COUNT).astype(np.int64) for raw in (self.reuses, self.censored)
        )
        _check_sparse(bins, reuses, censored)
        sampled = (
            np.frombuffer(raw, self._DISTANCE).astype(np.int64)
            for raw in (self.sampled_reuses, self.sampled_stacks)
        )
        histogram = ReuseHistogram.from_sparse(bins, reuses, censored)
        return msgspec.structs.replace(
            histogram, stacks=StackSamples(*sampled), scattered=self.scattered
        )


class WatchRecord(Event, frozen=True, kw_only=True, tag="watch"):
    """What watchpoints told of words of one line: when they were touched while the target ran on.

    It is a line that a burst touched and that had not returned when it ended, or that of an access
    which a PMU sampled.

    Attributes:
        window: index of the window of that burst or access.
        phase: phase of that window.
        tid: thread that was observed.
        least_accesses: the line had not returned within so many accesses: only longer distances
            are looked at.
        times_seconds: when it was armed, each hit, and the end, seconds since the attach.
        cpu_seconds: CPU time of the thread in user mode at these moments, since it was armed.
        patience_seconds: such time without a hit after which it ends.
        end: why it ended: "returned", "patience", "hits" (touched too often), "evicted" (others
            needed the debug registers, or the session ended), "gone" (the thread).
        words: how many words of 8 bytes were watched: one where the burst touched nearly all of the
            line, else half of it.
        touched: how many different words of the line its last visit in the burst touched.
        hit_words: which of them each hit touched, counted from 0.
        hit_seconds: CPU time that hits took from the target.
        resolution_seconds: shorter pauses cannot be told from the time that hits take: they are
            part of one visit to the line, or shorter distances; 0: all are distances.
        visit_touches: how often its last visit in the burst touched these words.
        is_sampled: a PMU sampled an access to it; else a burst (or walk) left it open.
        counted: accesses of the thread since it was armed, at these moments, as counters told them;
            empty where none did.
    """

    window: int
    phase: int
    tid: int
    least_accesses: int
    times_seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    patience_seconds: float
    end: str
    words: int = 1
    touched: int = 8
    hit_words: tuple[int, ...] = ()
    hit_seconds: float = 0.0
    resolution_seconds: float = 0.0
    visit_touches: int = 0
    is_sampled: bool = False
    counted: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.times_seconds) < 2 or len(self.times_seconds) != len(self.cpu_seconds):
            raise ValueError("a watch has a begin and an end")
        if self.counted and len(self.counted) != len(self.times_seconds):
            raise ValueError("what a watch counted is told for all of its moments")
        for moments in (self.times_seconds, self.cpu_seconds, self.counted):
            if not all(before <= after for before, after in itertools.pairwise(moments)):
                raise ValueError("moments of a watch do not ascend")
        if len(self.hit_words) != len(self.times_seconds) - 2:
            raise ValueError("each hit touches a word")
        if self.words < 1 or self.touched < 1:
            raise ValueError("a watch of no words, or of a line that nobody touched")
        if not all(0 <= word < self.words for word in self.hit_words):
            raise ValueError("a hit of a word that was not watched")


class MergeRecord(Event, frozen=True, kw_only=True, tag="merge"):
    """Phase ``gone`` turned out to be phase ``into``: read the one for the other everywhere."""

    gone: int
    into: int


class StoreDropRecord(Event, frozen=True, kw_only=True, tag="store_drop"):
    """What was stored of a phase holds no more: its stored bursts are dropped.

    Attributes:
        phase: the phase.
        window: index of the latest window.
    """

    phase: int
    window: int


def _check_sparse(
    bins: NDArray[np.int32], reuses: NDArray[np.int64], censored: NDArray[np.int64]
) -> None:
    if not len(bins) == len(reuses) == len(censored):
        raise ValueError("arrays of different lengths")
    if np.any(bins < 0) or np.any(np.diff(bins) <= 0):
        raise ValueError("bins are not ascending")
    if np.any(reuses < 0) or np.any(censored < 0):
        raise ValueError("negative counts")


class ExecRecord(Event, frozen=True, kw_only=True, tag="exec"):
    """The process runs another program from here on: what was known of the old one is void.

    Attributes:
        time_seconds: when, seconds since the attach.
        command: its short name (comm).
        executable: path of the program, as far as readable.
    """

    time_seconds: float
    command: str
    executable: str


EstimatorEvent: TypeAlias = (
    WindowRecord | BurstRecord | WatchRecord | MergeRecord | ExecRecord | StoreDropRecord
)
