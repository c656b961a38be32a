"""What one watch says: for how long a line was not touched."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from memsampd.estimate.events import WatchRecord

Accesses = Callable[[float, float, float], float]
"""Turns a stretch (begin, end, CPU seconds) into accesses; NaN where no rate is known."""
# Who touches a line at random words so many times leaves one of its eight alone in 0.12 of cases.
_VISITS_FOR_A_WORD = 16


class Pause(msgspec.Struct, frozen=True):
    """For how long a line was not touched.

    Attributes:
        accesses: the distance, or how long the line was seen not to return.
        returned: which of the two.
        share_before: share of the watched words that had been touched before it ended; 0 where no
            touch ended it.
        is_same: whether one of these ended it.
        from_accesses: it was longer than this, and shorter than ``accesses``: too short to be
            told; None where it was measured.
    """

    accesses: float
    returned: bool
    share_before: float = 0.0
    is_same: bool = False
    from_accesses: float | None = None


class ReadWatch(msgspec.Struct, frozen=True):
    """What a watch says.

    Attributes:
        pauses: those that were long enough.
        sight: how far the line would have been watched, accesses.
        entry: how long a pause must be at least to be among these, accesses.
        count: so many pauses are together as good as one access of the line: those above, and of a
            line that a PMU sampled also the shorter ones.
    """

    pauses: tuple[Pause, ...]
    sight: float
    entry: float
    count: int


def read_watch(watch: WatchRecord, accesses: Accesses) -> ReadWatch | None:
    """Read a watch: each pause between two touches that is long enough is a reuse distance.

    A touch begins a distance; a line that was not touched at all has not returned for as long as
    it was watched. How long the first touch took to come is no distance: nobody knows when the one
    before it was. Where accesses were counted, no rate is needed, and no pause is too short.

    Where one word was watched of a line of which others may be touched, too, no touch tells that
    the line did not return in a part of the time: else there would have been many returns. A touch
    tells that it returned after that, nobody knows when: see :func:`is_vague`.

    Of a line that a burst left open, pauses as long as the burst said are together one access, as
    it was chosen among accesses with such a pause. A line that a PMU sampled was chosen among all
    accesses: all of its pauses are together one, and those that are too short to be told were seen
    to be short.

    Returns:
        None where nothing can be concluded.
    """
    moments = list(zip(watch.times_seconds, watch.cpu_seconds, strict=True))
    lengths = _lengths(watch, moments, accesses)
    part = 1 / _VISITS_FOR_A_WORD if _is_one_of_many(watch) else 1.0
    sight = part * _sight(watch, accesses)
    if not all(map(math.isfinite, [*lengths, sight])):
        return None
    if is_vague(watch):
        pauses = [Pause(part * length, True) for length in lengths[:-1]]
    else:
        pauses, before = [], set(watch.hit_words[:1])
        for length, word in zip(lengths[1:-1], watch.hit_words[1:], strict=True):
            pauses.append(Pause(length, True, len(before) / watch.words, word in before))
            before.add(word)
        if watch.end not in ("returned", "hits"):
            pauses.append(Pause(part * lengths[-1], False))
    entry = float(watch.least_accesses)
    if watch.resolution_seconds > 0 and not watch.counted:
        shortest = accesses(moments[0][0], moments[-1][0], watch.resolution_seconds)
        if watch.is_sampled:
            entry = max(entry, shortest)
        else:
            pauses = _resolved(watch, pauses, shortest)
    told = tuple(each for each in pauses if each.accesses >= entry)
    count = len(pauses if watch.is_sampled else told)
    return ReadWatch(told, sight, entry, count) if told else None


def _lengths(
    watch: WatchRecord, moments: Sequence[tuple[float, float]], accesses: Accesses
) -> list[float]:
    """Accesses between the moments; those of walks are many, and each goes at its mean rate.

    What was counted between two touches has the second one in it, which a distance has not.
    """
    if watch.counted:
        return [max(after - before - 1, 0.0) for before, after in itertools.pairwise(watch.counted)]
    if watch.resolution_seconds > 0 and moments[-1][1] > moments[0][1]:
        (begin, cpu_begin), (end, cpu_end) = moments[0], moments[-1]
        rate = accesses(begin, end, cpu_end - cpu_begin) / (cpu_end - cpu_begin)
        return [rate * (after[1] - before[1]) for before, after in itertools.pairwise(moments)]
    return [
        accesses(begin, end, cpu_end - cpu_begin)
        for (begin, cpu_begin), (end, cpu_end) in itertools.pairwise(moments)
    ]


def _sight(watch: WatchRecord, accesses: Accesses) -> float:
    """How many accesses the thread makes within the patience; counted as it went while watched."""
    if watch.counted and watch.cpu_seconds[-1] > 0:
        return watch.patience_seconds * watch.counted[-1] / watch.cpu_seconds[-1]
    return accesses(watch.times_seconds[0], watch.times_seconds[-1], watch.patience_seconds)


def _resolved(watch: WatchRecord, pauses: list[Pause], shortest: float) -> list[Pause]:
    """Keep pauses that can be told, and of the others those that no visit explains.

    A visit touches the words about as often as it did in the burst. Pauses beyond that between
    touches are distances, shorter than what can be told.

    Args:
        watch: the watch.
        pauses: all of them, the censored one included.
        shortest: that can be told, accesses.
    """
    told = [each for each in pauses if each.accesses >= shortest or not each.returned]
    short = [each for each in pauses if each.accesses < shortest and each.returned]
    visits = 1 + sum(each.returned for each in told)
    unexplained = len(short) - visits * max(watch.visit_touches - 1, 0)
    least = float(min(watch.least_accesses, shortest))
    return told + [
        replace(each, accesses=shortest, from_accesses=least)
        for each in short[: max(unexplained, 0)]
    ]


def span_of(pause: Pause) -> tuple[float, float]:
    """The shortest and the longest that a pause may have been."""
    shortest = pause.accesses if pause.from_accesses is None else pause.from_accesses
    return shortest, pause.accesses


def _is_one_of_many(watch: WatchRecord) -> bool:
    """Whether one word was watched that tells little of what was done to the rest of its line."""
    return watch.words == watch.touched == 1


def is_vague(watch: WatchRecord) -> bool:
    """Whether that one word was touched: what was done to the rest of its line is not known.

    The pauses that are read of it are the shortest that there may have been: they tell how few
    lines return late at least, not how many at most.
    """
    return _is_one_of_many(watch) and bool(watch.hit_words)


def is_inconclusive(watch: WatchRecord) -> bool:
    """Whether one that tells nothing had a chance to: its words were touched.

    Where a PMU sampled the line that says something: most accesses return soon.
    """
    return (watch.end == "hits" and not watch.is_sampled) or is_vague(watch)
