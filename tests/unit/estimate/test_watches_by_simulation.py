"""Watches as sessions have them, evictions included, on lines whose distances are known.

``pytest --log-cli-level=INFO`` tells the errors of the estimate; docs/long-distances.md has them.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from simulated_watches import OPEN, PATIENCE, RATE, Kind, Pauses, Sampled, session

from memsampd.estimate.events import WatchRecord
from memsampd.estimate.watch_reading import read_watch
from memsampd.estimate.watches import Tails, counts_of
from memsampd.models.tail import Tail

logger = logging.getLogger(__name__)

DISTANCES = (500_000, 2e6, 5e6, 1e7, 2e7, 4e7)
WATCHES = 600
NEVER = 1e18
# Mean time between evictions, length of a session, seconds.
UNDISTURBED, OFTEN, SHORT = (math.inf, 20.0), (0.3, 20.0), (math.inf, 2.0)
SESSIONS = (UNDISTURBED, (1.0, 20.0), OFTEN, SHORT)

Draw = Callable[[random.Random], float]


def own(draw: Draw) -> Pauses:
    """Each line has a distance of its own."""
    return lambda rng: itertools.repeat(draw(rng))


def anew(draw: Draw) -> Pauses:
    """All lines are alike, and each distance is drawn anew."""

    def pauses(rng: random.Random) -> Iterator[float]:
        while True:
            yield draw(rng)

    return pauses


def evenly(low: float, high: float) -> tuple[Draw, Callable[[float], float]]:
    """Evenly in the logarithm."""
    octaves = math.log(high / low)
    return (
        lambda rng: low * math.exp(octaves * rng.random()),
        lambda distance: min(max(1 - math.log(distance / low) / octaves, 0.0), 1.0),
    )


def short_and_long() -> tuple[Draw, Callable[[float], float]]:
    (short, of_short), (long, of_long) = evenly(2e5, 1e6), evenly(1e7, 4e8)
    return (
        lambda rng: short(rng) if rng.random() < 0.5 else long(rng),
        lambda distance: (of_short(distance) + of_long(distance)) / 2,
    )


def heavy_tail() -> tuple[Draw, Callable[[float], float]]:
    """Four times as far, half as many."""
    return (
        lambda rng: OPEN * (1 - rng.random()) ** -2,
        lambda distance: min((OPEN / distance) ** 0.5, 1.0),
    )


def exponential(mean: float) -> tuple[Draw, Callable[[float], float]]:
    return (
        lambda rng: OPEN + mean * rng.expovariate(1.0),
        lambda distance: math.exp(min(OPEN - distance, 0.0) / mean),
    )


def kind(make: Callable[[Draw], Pauses], distances: tuple[Draw, Callable[[float], float]]) -> Kind:
    return Kind(make(distances[0]), distances[1])


def working_set(long: float) -> Kind:
    """Four touches in a row, 300,000 apart, and then none for long."""

    def pauses(rng: random.Random) -> Iterator[float]:
        for number in itertools.count(rng.randrange(4)):
            yield long if number % 4 == 3 else 3e5

    return Kind(pauses, lambda distance: 1.0 if distance < 3e5 else 0.25 * (distance < long))


def half_never() -> Kind:
    draw, survival = exponential(5e6)
    again = anew(draw)
    return Kind(
        lambda rng: itertools.repeat(NEVER) if rng.random() < 0.5 else again(rng),
        lambda distance: 0.5 + 0.5 * survival(distance),
    )


def visits() -> Kind:
    """Five touches a visit: twelve hits do not suffice, and the line is watched again."""
    draw, survival = evenly(2e5, 4e8)

    def pauses(rng: random.Random) -> Iterator[float]:
        pause = draw(rng)
        return itertools.cycle([pause, *4 * [1e4]])

    return Kind(pauses, survival)


# Of these, the pause that a watch begins in is like the next ones, or none is near the patience.
STEADY = {
    "evenly, own": kind(own, evenly(2e5, 4e8)),
    "short and long, own": kind(own, short_and_long()),
    "heavy tail, own": kind(own, heavy_tail()),
    "half never return": half_never(),
    "visits": visits(),
    "working set, 0.6 of patience": working_set(3e7),
    "exponential, 0.1 of patience": kind(anew, exponential(0.1 * PATIENCE)),
}
# Of these a line that returned soon and one that waits for longer than the patience are the same.
CHANGEABLE = {
    "exponential, 0.25 of patience": kind(anew, exponential(0.25 * PATIENCE)),
    "exponential, as patience": kind(anew, exponential(PATIENCE)),
    "evenly, anew": kind(anew, evenly(2e5, 4e8)),
    "short and long, anew": kind(anew, short_and_long()),
    "heavy tail, anew": kind(anew, heavy_tail()),
    "working set, 2 patiences": working_set(2 * PATIENCE),
}
MOST_WRONG = {
    "exponential, 0.25 of patience": 0.12,
    "exponential, as patience": 0.4,
    "evenly, anew": 0.6,
    "short and long, anew": 0.6,
    "heavy tail, anew": 0.8,
    "working set, 2 patiences": 0.5,
}


def sessions(
    of: Kind, seed: int, between: float, seconds: float, sampled: Sampled | None = None
) -> list[WatchRecord]:
    rng = random.Random(seed)
    records: list[WatchRecord] = []
    while len(records) < WATCHES:
        records += session(of, rng, seconds, between, sampled)
    return records


def tail_of(records: list[WatchRecord]) -> Tail | None:
    read = [(each, read_watch(each, lambda begin, end, cpu: cpu * RATE)) for each in records]
    return Tails([(each, said, None) for each, said in read]).beyond(OPEN)


def errors(of: Kind, records: list[WatchRecord]) -> NDArray[np.float64]:
    """Of the estimate, at all distances."""
    tail = tail_of(records)
    assert tail is not None
    assert tail.middle.horizon_accesses >= DISTANCES[-1]
    return np.array([float(tail.middle(each)) - of.survival(each) for each in DISTANCES])


def tell(
    name: str, how: tuple[float, float], records: list[WatchRecord], found: NDArray[np.float64]
) -> None:
    ends = dict(Counter(each.end for each in records))
    what = "%s, evicted every %s s, sessions of %s s, %s: %s"
    logger.info(what, name, *how, ends, found.round(2))


@pytest.mark.parametrize("how", SESSIONS)
@pytest.mark.parametrize("name", STEADY)
def test_the_estimate_is_right_however_watches_end(name: str, how: tuple[float, float]) -> None:
    records = sessions(STEADY[name], 5, *how)
    found = errors(STEADY[name], records)
    tell(name, how, records, found)
    assert np.abs(found).max() <= 0.1


@pytest.mark.parametrize("sampled", [Sampled(0.9), Sampled(0.5, alone=True)])
@pytest.mark.parametrize("name", ["evenly, own", "half never return", "visits"])
def test_lines_that_a_pmu_sampled_tell_the_same(name: str, sampled: Sampled) -> None:
    """Half of the watches, most of them of lines that return at once, or all of them."""
    records = sessions(STEADY[name], 5, *UNDISTURBED, sampled)
    assert {each.is_sampled for each in records} == ({True} if sampled.alone else {False, True})
    found = errors(STEADY[name], records)
    logger.info("%s, %s: %s", name, sampled, found.round(2))
    # Of a line that is not touched while it is watched, nobody knows how many touches a visit has.
    is_told_long = name == "visits" and sampled.alone
    assert found.min() >= -0.1
    assert found.max() <= (0.35 if is_told_long else 0.1)


@pytest.mark.parametrize("name", CHANGEABLE)
def test_distances_that_change_are_told_long(name: str) -> None:
    """What no estimate can tell: a line that was not touched within the patience is one of which
    all distances are so long, or one of others that a long pause came to.
    """
    found = []
    for how in (UNDISTURBED, OFTEN):
        records = sessions(CHANGEABLE[name], 5, *how)
        found.append(errors(CHANGEABLE[name], records))
        tell(name, how, records, found[-1])
        assert found[-1].min() >= -0.05
        assert found[-1].max() <= MOST_WRONG[name]
    assert np.abs(found[1] - found[0]).max() <= 0.1  # evictions have no part in it


def test_watches_that_others_ended_can_be_neither_counted_alike_nor_left_out() -> None:
    """Evicted are those that last long: what they saw by then, or that they are missing."""
    alike = [
        msgspec.structs.replace(each, end="patience" if each.end == "evicted" else each.end)
        for each in sessions(STEADY["working set, 0.6 of patience"], 5, *OFTEN)
    ]
    found = errors(STEADY["working set, 0.6 of patience"], alike)
    logger.info("counted alike: %s", found.round(2))
    assert found.max() > 0.15
    never = sessions(STEADY["half never return"], 5, *OFTEN)
    found = errors(STEADY["half never return"], [each for each in never if each.end != "evicted"])
    logger.info("left out: %s", found.round(2))
    assert found.min() < -0.15


@pytest.mark.parametrize("name", STEADY)
def test_bounds_of_a_few_seconds_hold(name: str) -> None:
    held = []
    for seed in range(30):
        tail = tail_of(session(STEADY[name], random.Random(seed), 3.0, 1.0))
        for distance in DISTANCES if tail is not None else ():
            assert tail is not None
            if distance <= tail.middle.horizon_accesses:
                exact = STEADY[name].survival(distance)
                held.append(float(tail.low(distance)) <= exact <= float(tail.high(distance)))
    assert len(held) > 60
    logger.info("%s: bounds hold in %.2f", name, np.mean(held))
    assert np.mean(held) >= 0.85


def ended(seconds: float, end: str) -> WatchRecord:
    return WatchRecord(
        window=0,
        phase=0,
        tid=1,
        least_accesses=OPEN,
        times_seconds=(0.0, seconds),
        cpu_seconds=(0.0, seconds),
        patience_seconds=0.5,
        end=end,
    )


@pytest.mark.parametrize(
    ("watches", "counts"),
    [
        ([], []),
        ([(0.5, "patience"), (0.1, "returned")], [1, 1]),
        ([(0.1, "returned"), (0.2, "evicted"), (0.5, "patience")], [1, 0, 2]),
        ([(0.5, "patience"), (0.3, "returned"), (0.2, "gone"), (0.1, "hits")], [1.5, 1.5, 0, 1]),
        ([(0.1, "evicted"), (0.2, "evicted"), (0.5, "patience"), (0.4, "hits")], [0, 0, 2, 2]),
        ([(0.5, "patience"), (0.9, "evicted")], [1, 1]),  # nobody went on for longer
        ([(0.1 * n, "evicted") for n in range(1, 6)], [0, 0, 0, 2.5, 2.5]),
    ],
)
def test_who_is_evicted_hands_on_what_it_counts(
    watches: list[tuple[float, str]], counts: list[float]
) -> None:
    assert counts_of([ended(*each) for each in watches]).tolist() == pytest.approx(counts)
