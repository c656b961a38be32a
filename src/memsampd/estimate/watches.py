"""Watches of a phase: how late its lines return that bursts did not see returning."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd.estimate.events import WatchRecord
from memsampd.estimate.watch_reading import (
    Accesses,
    ReadWatch,
    is_inconclusive,
    is_vague,
    read_watch,
    span_of,
)
from memsampd.models.survival import SurvivalFunction
from memsampd.models.tail import (
    LINES_ALIKE,
    MIN_WATCHES,
    Constancy,
    Tail,
    WatchedReuses,
    chance_of,
    tail_beyond,
)

_REMEMBERED = 512  # watches of a phase
# A burst goes on as its phase does if that has about as many lines left at the burst's horizon.
_SAME_KIND = 0.1
# So many times as many watches are worth modelling the bursts of a phase again, or a quarter of
# those that are remembered: phases that live long are to have bounds that follow.
_NEWS, _NEWS_OF_MANY, _MANY_WATCHES = 3.0, 1.3, 12
_MOST_NEWS = _REMEMBERED // 4
# It is the most costly thing about watches, 0.6 ms for each burst: where there are many watches, it
# comes no sooner than so many seconds for each burst after the last time.
_SPACING_SECONDS = 0.2
# The correlation of lines of one walk, or of a burst as short, which is a moment of the program.
_WALK_ALIKE = 0.7
_GOLDEN = 0.6180339887498949  # its multiples fill an interval evenly, however many there are
# Ends that have nothing to do with the line, and what a watch counts at most for others.
_FROM_OUTSIDE = ("evicted", "gone")
_MOST_COUNT = 4.0


class _Watch(msgspec.Struct):
    """One watch.

    Attributes:
        record: what was watched.
        burst: what the burst saw that told its line; None if that is not known.
        said: what it says by the rates that were known when it was read last.
        is_final: these are known for good.
    """

    record: WatchRecord
    burst: SurvivalFunction | None
    said: ReadWatch | None = None
    is_final: bool = False


class PhaseWatches(msgspec.Struct):
    """The watches of one phase, the latest of them.

    Attributes:
        watches: in order.
        count: of all that there were.
        samples: of these, those of accesses that samples told.
        told: of them, when bursts were modelled again by their tail.
        told_seconds: end of the last one then.
    """

    watches: deque[_Watch] = msgspec.field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    count: int = 0
    samples: int = 0
    told: int = 0
    told_seconds: float = 0.0
    _read: Tails | None = None

    def add(self, record: WatchRecord, burst: SurvivalFunction | None, bursts: int = 0) -> bool:
        """Remember one; whether their tail is worth working out again, as so many have come.

        Where there are many, they tell until then what they told before.

        Args:
            record: what was watched.
            burst: what the burst saw that told its line.
            bursts: how many would be modelled again.
        """
        self.watches.append(_Watch(record, burst))
        self.count += 1
        self.samples += record.is_sampled
        are_few, end_seconds = self.told < _MANY_WATCHES, record.times_seconds[-1]
        wanted = (_NEWS if are_few else _NEWS_OF_MANY) * self.told
        says_new = self.count >= max(min(wanted, self.told + _MOST_NEWS), MIN_WATCHES)
        if not are_few:
            says_new &= end_seconds - self.told_seconds >= _SPACING_SECONDS * bursts
        if says_new or are_few:
            self._read = None
        if says_new and bursts:
            self.told, self.told_seconds = self.count, end_seconds
        return says_new

    def take_rest(self) -> bool:
        """Let all count that have come; whether there are more than there were."""
        if not self.count > max(self.told, MIN_WATCHES - 1):
            return False
        self._read, self.told = None, self.count
        return True

    def absorb(self, other: PhaseWatches) -> None:
        """Take over those of a phase that turned out to be this one."""
        self._read = None
        self.watches.extend(other.watches)
        self.count += other.count
        self.samples += other.samples

    def read(self, accesses: Accesses, settled_seconds: float = -math.inf) -> Tails:
        """Read all, at the rates that are known when so many more have come.

        Args:
            accesses: tells how many a stretch is worth.
            settled_seconds: up to when that will stay so: watches until then are read once.
        """
        if self._read is None:
            for each in self.watches:
                if not each.is_final:
                    each.said = read_watch(each.record, accesses)
                    is_settled = each.record.times_seconds[-1] <= settled_seconds
                    each.is_final = is_settled and each.said is not None
            self._read = Tails([(each.record, each.said, each.burst) for each in self.watches])
        return self._read


class _Pauses(msgspec.Struct, frozen=True):
    """All pauses of some watches, in columns.

    Attributes:
        reuses: a row each.
        span: the shortest and the longest that each may have been, shape (n, 2).
        watch: which watch each is of, counted among those that say something, shape (n,).
        is_partial: only some words of the line were watched, shape (n,).
    """

    reuses: WatchedReuses
    span: NDArray[np.float64]
    watch: NDArray[np.int64]
    is_partial: NDArray[np.bool_]

    @classmethod
    def of(
        cls, known: Sequence[tuple[WatchRecord, ReadWatch]], counts: NDArray[np.float64]
    ) -> _Pauses:
        """Lay them out; each watch counts as told, shape (n,)."""
        rows = [
            (watch, said, pause, at)
            for at, (watch, said) in enumerate(known)
            for pause in said.pauses
        ]
        chances = [_chance(watch) for watch, _ in known]
        span = np.array([span_of(pause) for _, _, pause, _ in rows])
        reuses = WatchedReuses(
            entry=np.array([said.entry for _, said, *_ in rows], np.float64),
            end=span[:, 1],
            returned=np.array([pause.returned for _, _, pause, _ in rows]),
            sight=np.array([max(said.sight, pause.accesses) for _, said, pause, _ in rows]),
            chance=np.array([chances[at] for *_, at in rows]),
            same=np.array([pause.is_same for _, _, pause, _ in rows]),
            before=np.array([pause.share_before for _, _, pause, _ in rows]),
            weight=np.array([counts[at] / said.count for _, said, _, at in rows]),
        )
        watch = np.array([at for *_, at in rows])
        return cls(reuses, span, watch, np.array([each.words > 1 for each, *_ in rows]))

    def of_watches(self, wanted: NDArray[np.bool_]) -> _Pauses:
        """Those of some of the watches."""
        rows = wanted[self.watch]
        all_reuses = self.reuses
        reuses = replace(
            all_reuses,
            entry=all_reuses.entry[rows],
            end=all_reuses.end[rows],
            returned=all_reuses.returned[rows],
            sight=all_reuses.sight[rows],
            chance=all_reuses.chance[rows],
            same=all_reuses.same[rows],
            before=all_reuses.before[rows],
            weight=all_reuses.weight[rows],
        )
        return _Pauses(reuses, self.span[rows], self.watch[rows], self.is_partial[rows])

    def constancy(self) -> Constancy:
        """How often lines were touched again where they were touched before."""
        told = self.is_partial & self.reuses.returned
        returns = int(told.sum())
        by_chance = float(self.reuses.before[told].sum())
        same = int(self.reuses.same[told].sum())
        return Constancy.of(returns, same, by_chance / returns if returns else 1.0)


class Tails:
    """What the watches of a phase say, once they are read.

    Args:
        watches: with what each says, and the burst that told its line.
    """

    def __init__(
        self, watches: Sequence[tuple[WatchRecord, ReadWatch | None, SurvivalFunction | None]]
    ) -> None:
        self._watches = watches
        self._known = [(watch, said) for watch, said, _ in watches if said is not None]
        self._bursts = {id(burst): burst for *_, burst in watches if burst is not None}
        self._counts = counts_of([watch for watch, *_ in watches])
        self._is_known = np.array([said is not None for _, said, _ in watches], np.bool_)
        self._is_vague = np.array([is_vague(watch) for watch, _ in self._known], np.bool_)
        self._is_open = np.array([is_inconclusive(watch) for watch, *_ in watches], np.bool_)
        self._pauses: _Pauses | None = None
        self._of_all: dict[int, Tail | None] = {}  # by horizon

    def beyond(self, horizon_accesses: int, like: SurvivalFunction | None = None) -> Tail | None:
        """Say how late lines return beyond a horizon; None where too few watches tell.

        Args:
            horizon_accesses: the horizon.
            like: of lines of bursts that are like this one only.
        """
        if len(self._known) < MIN_WATCHES:
            return None
        if like is not None:
            alike = {id(None): False}
            alike |= {key: is_same_kind(burst, like) for key, burst in self._bursts.items()}
            wanted = np.array([alike[id(burst)] for *_, burst in self._watches])
            return self._beyond(horizon_accesses, wanted)
        if horizon_accesses not in self._of_all:
            wanted = np.ones(len(self._watches), np.bool_)
            self._of_all[horizon_accesses] = self._beyond(horizon_accesses, wanted)
        return self._of_all[horizon_accesses]

    def _beyond(self, horizon_accesses: int, wanted: NDArray[np.bool_]) -> Tail | None:
        """The same by some of the watches."""
        all_told = wanted[self._is_known] & (self._counts[self._is_known] > 0)
        told = all_told & ~self._is_vague
        if told.sum() < MIN_WATCHES:
            return None
        reuses, span, constancy = self._reuses(told, wanted)
        middle = tail_beyond(horizon_accesses, reuses, constancy)
        is_exact = np.array_equal(span[:, 0], span[:, 1])
        if middle is None or (is_exact and not self._is_vague[all_told].any()):
            return middle
        high: Tail | None = middle
        if not is_exact:
            high = tail_beyond(horizon_accesses, replace(reuses, end=span[:, 1]), constancy)
        reuses, span, constancy = self._reuses(all_told, wanted)
        # The lowest survival function has them return just after the horizon.
        earliest = np.minimum(np.maximum(span[:, 0], horizon_accesses), span[:, 1])
        low = tail_beyond(horizon_accesses, replace(reuses, end=earliest), constancy)
        low, high = (middle if each is None else each for each in (low, high))
        return Tail(low.low, middle.middle, high.high, middle.count)

    def _reuses(
        self, told: NDArray[np.bool_], wanted: NDArray[np.bool_]
    ) -> tuple[WatchedReuses, NDArray[np.float64], Constancy]:
        """What some of the watches that are known say.

        Args:
            told: which of them, shape (known,).
            wanted: of which watches the others tell nothing, if they had a chance to, shape (n,).

        Returns:
            The reuses, the shortest and longest that each may be, and how constant words are.
        """
        counts = self._counts[self._is_known]
        if self._pauses is None:
            self._pauses = _Pauses.of(self._known, counts)
        pauses = self._pauses.of_watches(told)
        known = [watch for (watch, _), is_told in zip(self._known, told, strict=True) if is_told]
        is_open = wanted & self._is_open
        is_open[np.flatnonzero(self._is_known)[told]] = False
        # Watches that count for different numbers tell as much as fewer that count alike.
        as_alike = float(counts[told].sum() / np.square(counts[told]).sum())
        reuses = replace(
            pauses.reuses,
            end=_spread(pauses.span),
            weight=pauses.reuses.weight * as_alike,
            inconclusive=float(self._counts[is_open].sum()) * as_alike,
            bursts=_moments_of(known),
            alike=_WALK_ALIKE if any(map(_is_of_a_moment, known)) else LINES_ALIKE,
        )
        return reuses, pauses.span, pauses.constancy()


def counts_of(watches: Sequence[WatchRecord]) -> NDArray[np.float64]:
    """What each watch counts, those made up for that others ended, shape (n,).

    Ends from outside come at any moment, whatever the line does: watches that take long meet them,
    and what they had seen by then is what a line does in a long pause. So such a watch hands what
    it counts to those that had gone on for longer, in equal parts (Efron 1967), and tells nothing
    itself. It keeps that where there are none, or too few.
    """
    counts, each, left = np.zeros(len(watches)), 1.0, len(watches)
    for at in sorted(range(len(watches)), key=lambda at: watches[at].cpu_seconds[-1]):
        left -= 1
        handed = each * (left + 1) / left if left else math.inf
        if watches[at].end in _FROM_OUTSIDE and handed <= _MOST_COUNT:
            each = handed
        else:
            counts[at] = each
    return counts


def _moments_of(watches: Sequence[WatchRecord]) -> int:
    """How many moments of the program told the lines: each burst one, each sampled access one."""
    bursts = {watch.window for watch in watches if not watch.is_sampled}
    return len(bursts) + sum(watch.is_sampled for watch in watches)


def _is_of_a_moment(watch: WatchRecord) -> bool:
    """Whether a walk told the line, or a burst as short."""
    return watch.resolution_seconds > 0 and not watch.is_sampled


def _spread(span: NDArray[np.float64]) -> NDArray[np.float64]:
    """Lengths, evenly in their logarithm, where only bounds are known, shape (n, 2) to (n,)."""
    share = (np.arange(len(span)) * _GOLDEN) % 1.0
    low, high = np.maximum(span, 1.0).T
    return np.where(low < high, low * (high / low) ** share, span[:, 1])


def is_same_kind(one: SurvivalFunction, other: SurvivalFunction) -> bool:
    """Whether about as many lines are left at the shorter of two horizons."""
    horizon = min(one.horizon_accesses, other.horizon_accesses)
    return abs(float(one(horizon)) - float(other(horizon))) <= _SAME_KIND


def _chance(watch: WatchRecord) -> float:
    """Of one word it is taken to stand for all of its line."""
    words = 2 * watch.words
    return 1.0 if watch.words == 1 else chance_of(watch.words, min(watch.touched, words), words)
