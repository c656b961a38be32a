"""Watches of streams whose distances are known: the tail that they tell, against the exact one."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from memsampd.estimate.course import Course
from memsampd.estimate.events import WatchRecord
from memsampd.estimate.watch_reading import read_watch
from memsampd.estimate.watches import PhaseWatches
from memsampd.models.open_lines import OpenLine, open_lines
from memsampd.sampler.perf.watch import MOST_HITS, has_seen_enough

Addresses = NDArray[np.uint64]
RATE = 1e8  # accesses a second
BURST, GAP = 60_000, 150_000
PATIENCE_ACCESSES = 1_500_000
TOLERANCE = 0.12
WATCHES = 160


def accesses(begin: float, end: float, cpu_seconds: float) -> float:
    return cpu_seconds * RATE


def sweeps(rng: np.random.Generator, n: int) -> Addresses:
    """Over 100,000 lines again and again, each word of them: one distance."""
    return np.arange(n, dtype=np.uint64) * np.uint64(8) % np.uint64(100_000 * 64)


def table(rng: np.random.Generator, n: int) -> Addresses:
    """Words of 100,000 lines by chance: never where one was before."""
    return rng.integers(0, 8 * 100_000, n).astype(np.uint64) << np.uint64(3)


def nodes(rng: np.random.Generator, n: int) -> Addresses:
    """Lines by chance, and of each always the same word."""
    return rng.integers(0, 100_000, n).astype(np.uint64) << np.uint64(6)


def cycles(rng: np.random.Generator, n: int) -> Addresses:
    """A short pause and a long one in turn: what follows a long one is never long."""
    part = np.arange(50_000, dtype=np.uint64)
    rest = np.arange(50_000, 350_000, dtype=np.uint64)
    once = np.concatenate([part, part + np.uint64(0), rest])
    return np.tile(once, n // len(once) + 1)[:n] << np.uint64(6)


def mixed(rng: np.random.Generator, n: int) -> Addresses:
    """All kinds in turn, most of them near: lines return late, or never."""
    kind = rng.choice(4, n, p=[0.7, 0.1, 0.15, 0.05])
    near = rng.integers(0, 512, n)
    by_chance = 10_000 + rng.integers(0, 20_000, n)
    swept = 100_000 + np.cumsum(kind == 2) // 8 % 30_000
    fresh = 1_000_000 + np.cumsum(kind == 3)
    lines = np.choose(kind, [near, by_chance, swept, fresh]).astype(np.uint64)
    return (lines << np.uint64(6)) + (rng.integers(0, 8, n).astype(np.uint64) << np.uint64(3))


STREAMS = (sweeps, table, nodes, cycles, mixed)


def by_key(keys: Addresses) -> tuple[Addresses, NDArray[np.int64]]:
    """Keys in order, and where each was, those that are alike in their order.

    A stable argsort has the same, and takes several times as long for keys by chance.
    """
    bits = np.uint64(len(keys).bit_length())
    together = np.sort((keys << bits) | np.arange(len(keys), dtype=np.uint64))
    where = together & ((np.uint64(1) << bits) - np.uint64(1))
    return together >> bits, where.astype(np.int64)


def exact_tail(address: Addresses, horizon: int, distances: list[int]) -> NDArray[np.float64]:
    """S(k) / S(horizon) of all accesses that could be seen for long enough."""
    line, order = by_key(address >> np.uint64(6))
    seen = len(line) - max(distances)
    returns = (line[1:] == line[:-1]) & (order[:-1] < seen)
    never = seen - np.count_nonzero(returns)
    distance = np.diff(order)[returns] - 1
    late = [np.count_nonzero(distance >= k) + never for k in (horizon, *distances)]
    return np.array(late[1:]) / late[0]


class Stream:
    """A stream, and where in it each word is touched."""

    def __init__(self, address: Addresses) -> None:
        self.address = address
        self._words, self._order = by_key(address >> np.uint64(3))

    def __len__(self) -> int:
        return len(self.address)

    def touches(self, words: Sequence[int], begin: int) -> tuple[NDArray[np.int64], list[int]]:
        """When some are touched from a moment on, and which of them each time."""
        found = []
        for number, word in enumerate(words):
            first, last = np.searchsorted(self._words, np.array([word, word + 1], np.uint64))
            found += [(at, number) for at in self._order[first:last].tolist() if at >= begin]
        found.sort()
        return np.array([at - begin for at, _ in found], np.int64), [word for _, word in found]


def watch(stream: Stream, line: OpenLine, start: int) -> WatchRecord:
    """What watchpoints on a line would have told, armed some time after a burst."""
    begin = start + BURST + GAP
    hits, words = stream.touches([each >> 3 for each in line.words], begin)
    left = len(stream) - begin
    for kept in range(len(hits) + 1):
        latest = int(hits[kept - 1]) if kept else 0
        following = int(hits[kept]) if kept < len(hits) else left
        end, ending = latest, "returned"
        if kept and has_seen_enough(hits[:kept] / RATE, line.least_accesses / RATE):
            break
        end, ending = latest, "hits"
        if kept and max(Counter(words[:kept]).values()) == MOST_HITS:
            break
        end, ending = min(latest + PATIENCE_ACCESSES, left), "patience"
        if following - latest >= PATIENCE_ACCESSES:
            break
    moments = tuple((np.array([0, *hits[:kept], end]) / RATE).tolist())
    return WatchRecord(
        window=start,
        phase=0,
        tid=1,
        least_accesses=line.least_accesses,
        times_seconds=moments,
        cpu_seconds=moments,
        patience_seconds=PATIENCE_ACCESSES / RATE,
        end=ending,
        words=len(line.words),
        touched=line.touched,
        hit_words=tuple(words[:kept]),
    )


def watched(stream: Stream, watches: int, seed: int, most_words: int = 4) -> PhaseWatches:
    """Watches of lines that bursts at random moments left open, of so many words at most."""
    rng, lines_rng = np.random.default_rng(seed), random.Random(seed)
    kept = PhaseWatches()
    while kept.count < watches:
        start = int(rng.integers(0, len(stream) // 3))
        burst = stream.address[start : start + BURST]
        for each in open_lines(np.arange(BURST), burst, BURST, 64, BURST // 2, 8, lines_rng):
            line = msgspec.structs.replace(each, words=each.words[:most_words])
            kept.add(watch(stream, line, start), None)
    return kept


@pytest.mark.parametrize("kind", STREAMS)
def test_watches_tell_the_tail(kind: Callable[[np.random.Generator, int], Addresses]) -> None:
    address = kind(np.random.default_rng(1), 6_000_000)
    horizon = BURST // 2
    tail = watched(Stream(address), WATCHES, 2).read(accesses).beyond(horizon)
    assert tail is not None
    assert tail.middle.horizon_accesses > PATIENCE_ACCESSES / 2
    distances = [60_000, 120_000, 250_000, 500_000, 700_000]
    exact = exact_tail(address, horizon, distances)
    assert np.all(np.abs(tail.middle(distances) - exact) <= TOLERANCE)
    assert np.all(tail.low(distances) - TOLERANCE / 2 <= exact)
    assert np.all(exact <= tail.high(distances) + TOLERANCE / 2)


def test_one_word_of_a_line_tells_less() -> None:
    """Others may have been touched: the bounds hold that, and a touch tells nothing."""
    address = table(np.random.default_rng(1), 6_000_000)
    horizon, distances = BURST // 2, [60_000, 80_000]
    exact = exact_tail(address, horizon, distances)
    tail = watched(Stream(address), WATCHES, 2, 1).read(accesses).beyond(horizon)
    assert tail is not None
    assert np.all(tail.low(distances) <= exact)
    assert np.all(exact <= tail.high(distances))
    returns = Stream(nodes(np.random.default_rng(1), 6_000_000))
    assert watched(returns, 32, 2, 1).read(accesses).beyond(horizon) is None


def test_one_word_of_lines_that_never_return_tells_that() -> None:
    address = np.arange(4_000_000, dtype=np.uint64) << np.uint64(6)
    tail = watched(Stream(address), WATCHES, 2, 1).read(accesses).beyond(BURST // 2)
    assert tail is not None
    assert tail.middle(90_000) == 1
    assert tail.low(90_000) > 0.9
    assert tail.middle.horizon_accesses < PATIENCE_ACCESSES / 8


def test_few_watches_know_little() -> None:
    stream = Stream(nodes(np.random.default_rng(1), 4_000_000))
    of_one_burst, few = watched(stream, 8, 3), watched(stream, 16, 3)
    assert of_one_burst.read(accesses).beyond(BURST // 2) is None
    tail = few.read(accesses).beyond(BURST // 2)
    assert tail is not None
    assert tail.high(100_000) - tail.low(100_000) > 0.4
    none = PhaseWatches()
    assert none.read(accesses).beyond(BURST // 2) is None


def test_bounds_hold_the_truth() -> None:
    """Of 16 watches, again and again."""
    address = mixed(np.random.default_rng(1), 6_000_000)
    horizon, distances = BURST // 2, [60_000, 250_000, 700_000]
    exact = exact_tail(address, horizon, distances)
    held, stream = 0, Stream(address)
    for seed in range(20):
        tail = watched(stream, 16, seed).read(accesses).beyond(horizon)
        assert tail is not None
        held += int(np.sum((tail.low(distances) <= exact) & (exact <= tail.high(distances))))
    assert held >= 0.9 * 20 * len(distances)


def record(*cpu_seconds: float, end: str = "returned", least: int = 1000) -> WatchRecord:
    """A watch of one word with hits at these moments, the first and last being begin and end."""
    return WatchRecord(
        window=0,
        phase=0,
        tid=1,
        least_accesses=least,
        times_seconds=cpu_seconds,
        cpu_seconds=cpu_seconds,
        patience_seconds=1.0,
        end=end,
        hit_words=(0,) * (len(cpu_seconds) - 2),
    )


@pytest.mark.parametrize(
    ("watch", "expected"),
    [
        (record(0, 0.5, 0.6, 0.7), [(1e7, True)]),
        (record(0, 0.5, 0.5 + 1e-6, 0.6, 0.7), [(1e7, True)]),  # the first pause is too short
        (record(0, 0.1, 0.2, 0.4, 0.9, end="patience"), [(1e7, True), (2e7, True), (5e7, False)]),
        (record(0, 1.0, end="patience"), [(1e8, False)]),  # never touched
        (record(0, 0.5, 1.5, end="patience"), [(1e8, False)]),
        (record(0, 1e-6, end="evicted"), []),
        (record(0, 0.5, 0.5 + 1e-6, 0.5 + 2e-6, end="hits"), []),
    ],
)
def test_pauses_are_read(watch: WatchRecord, expected: list[tuple[float, bool]]) -> None:
    said = read_watch(watch, accesses)
    assert (said is None) == (not expected)
    if said is not None:
        assert said.sight == pytest.approx(RATE)
        assert [each.accesses for each in said.pauses] == pytest.approx(
            [distance for distance, _ in expected], rel=1e-4
        )
        assert [each.returned for each in said.pauses] == [returned for _, returned in expected]


def of_one_word(*cpu_seconds: float, end: str = "patience") -> WatchRecord:
    """A watch of one word of a line of which only that had been touched."""
    return msgspec.structs.replace(record(*cpu_seconds, end=end), touched=1, is_sampled=True)


def test_a_touch_of_one_word_of_many_tells_how_soon_the_line_may_have_returned() -> None:
    touched, silent = of_one_word(0, 0.8, 1.6), of_one_word(0, 1.0)
    said = read_watch(touched, accesses)
    assert said is not None
    assert [(each.accesses, each.returned) for each in said.pauses] == [(0.8 * RATE / 16, True)]
    assert read_watch(of_one_word(0, 1e-5, 1.0), accesses) is None
    told = [PhaseWatches(), PhaseWatches()]
    for watches, number in zip(told, (0, 4), strict=True):
        for watch in (*[silent] * 20, *[touched] * number):
            watches.add(watch, None)
    without, with_touched = (watches.read(accesses).beyond(2000) for watches in told)
    assert without is not None
    assert with_touched is not None
    early, late = 0.1 * RATE / 16, 0.9 * RATE / 16
    # By as many more watches they have not returned before the touch; later they may have.
    assert with_touched.low(early) > without.low(early)
    assert with_touched.low(late) < without.low(late)
    assert with_touched.high(late) == 1.0


def test_of_a_sampled_access_all_pauses_count() -> None:
    """A burst's line was chosen for its long pauses; a sampled one may have a few among many."""
    watch = record(0, 0.5, *(0.5 + 1e-6 * each for each in range(1, 10)), 0.6, 0.7)
    watch = msgspec.structs.replace(watch, resolution_seconds=4e-5, least_accesses=1)
    burst, sampled = (
        read_watch(msgspec.structs.replace(watch, is_sampled=each), accesses)
        for each in (False, True)
    )
    assert burst is not None
    assert sampled is not None
    assert [each.accesses for each in sampled.pauses] == pytest.approx([1e7], rel=1e-3)
    assert sampled.entry == pytest.approx(4e-5 * RATE)
    assert sampled.count == 10
    assert (burst.entry, burst.count) == (1, 10)  # the short ones are bounded, not left out
    assert len(burst.pauses) == 10


def test_counted_pauses_need_no_rate_and_are_never_too_short() -> None:
    """What was counted has the second touch in it."""
    watch = msgspec.structs.replace(
        record(0, 0.5, 0.5 + 1e-6, 0.6, 0.7, end="patience"),
        resolution_seconds=4e-5,
        counted=(0.0, 7e7, 7e7 + 5001, 9e7, 14e7),
    )
    said = read_watch(watch, Course().accesses)  # which knows of none
    assert said is not None
    assert [each.accesses for each in said.pauses] == [5000, 2e7 - 5002, 5e7 - 1]
    assert [each.returned for each in said.pauses] == [True, True, False]
    assert all(each.from_accesses is None for each in said.pauses)
    assert said.sight == pytest.approx(2e8)  # a second of CPU time, as fast as it went


def test_without_a_rate_nothing_is_concluded() -> None:
    assert read_watch(record(0, 0.5, 0.6, 0.7), Course().accesses) is None


def test_seconds_are_worth_what_their_windows_tell() -> None:
    course = Course()
    for index, rate in enumerate((1e6, 1e6, 4e6, 2e6)):
        course.begin(index, 0.1 * (index + 1))
        course.tell_rates(np.array([index]), np.array([rate]))
    assert course.accesses(0.0, 0.15, 2.0) == pytest.approx(2e6)
    assert course.accesses(0.25, 0.28, 1.0) == pytest.approx(4e6)
    assert course.accesses(0.25, 0.35, 1.0) == pytest.approx(3e6)
    assert course.accesses(5.0, 6.0, 1.0) == pytest.approx(2e6)  # after the last: as it was
    assert course.present_rate() == 2e6
    course.tell_rates(np.array([2]), np.array([8e6]))  # known better by now
    assert course.accesses(0.25, 0.28, 1.0) == pytest.approx(8e6)


def test_the_course_is_remembered_for_long_and_not_for_ever() -> None:
    course = Course()
    for index in range(10_000):
        course.begin(index, float(index + 1))
        course.tell_rates(np.array([index]), np.array([float(index)]))
    assert course.accesses(9_500.5, 9_500.6, 1.0) == 9_500
    course.tell_rates(np.array([3]), np.array([7.0]))  # no longer known: no harm
    assert course.present_rate() == 9_999


@pytest.mark.parametrize(
    "changes",
    [
        {"times_seconds": (0.0,), "cpu_seconds": (0.0,)},
        {"times_seconds": (0.0, 2.0, 1.0)},
        {"cpu_seconds": (0.0, 2.0, 1.0)},
        {"hit_words": ()},
        {"hit_words": (1,)},
        {"words": 0, "hit_words": (0,)},
        {"touched": 0},
        {"counted": (0.0, 1.0)},
        {"counted": (0.0, 2.0, 1.0)},
    ],
)
def test_impossible_watches_are_refused(changes: dict[str, object]) -> None:
    good = msgspec.structs.asdict(record(0.0, 0.5, 1.0))
    assert WatchRecord(**good)
    with pytest.raises(ValueError, match=r"watch|hit|moments"):
        WatchRecord(**{**good, **changes})


def at_moment(seconds: float) -> WatchRecord:
    """A watch of a line that returned after a tenth of a second, which ended then."""
    moments = (seconds - 0.2, seconds - 0.1, seconds, seconds)
    watch = record(0, 0.1, 0.2, 0.2)
    return msgspec.structs.replace(watch, window=int(10 * seconds), times_seconds=moments)


def test_bursts_are_modelled_again_seldom_where_there_are_many_watches() -> None:
    kept, bursts = PhaseWatches(), 50
    moments = [0.1 * (at + 10) for at in range(6000)]
    news = [each for each in moments if kept.add(at_moment(each), None, bursts)]
    assert moments.index(news[0]) == 3  # the first four tell something at once
    assert moments.index(news[1]) == 11
    pauses = np.diff(news[1:])
    assert pauses.min() >= 0.2 * bursts - 1e-9
    assert pauses.max() <= 12.9  # a quarter of those that are remembered
    assert kept.count - kept.told < 129


def test_watches_whose_rates_are_known_for_good_are_read_once() -> None:
    kept, asked = PhaseWatches(), []

    def counted(begin: float, end: float, cpu_seconds: float) -> float:
        asked.append(end)
        return cpu_seconds * RATE

    for at in range(20):
        kept.add(at_moment(at + 1.0), None)
    first = kept.read(counted, settled_seconds=10.0).beyond(1000)
    assert max(asked) == 20.0
    asked.clear()
    kept.add(at_moment(21.0), None)
    again = kept.read(counted, settled_seconds=10.0).beyond(1000)
    assert min(asked) > 10.0
    assert max(asked) == 21.0
    assert first is not None
    assert again is not None
    assert again.count == first.count + 1
    asked.clear()
    assert kept.read(counted, settled_seconds=10.0).beyond(1000) is again  # nothing has come
    assert not asked


def test_a_watch_without_a_rate_is_read_until_there_is_one() -> None:
    kept = PhaseWatches()
    for at in range(4):
        kept.add(at_moment(at + 1.0), None)
    assert kept.read(lambda *_: math.nan, settled_seconds=10.0).beyond(1000) is None
    kept.add(at_moment(5.0), None)
    assert kept.read(accesses, settled_seconds=10.0).beyond(1000) is not None


def test_rates_are_settled_once_many_windows_have_followed() -> None:
    course = Course()
    assert course.settled_seconds == -math.inf
    for index in range(3000):
        course.begin(index, float(index + 1))
        assert course.settled_seconds == (index - 63 if index >= 64 else -math.inf)
