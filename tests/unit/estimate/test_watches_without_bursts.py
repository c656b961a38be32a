"""Distances from watches alone: simulated lines whose distribution of distances is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from memsampd.daemon.watching import RESOLUTION_SECONDS
from memsampd.estimate.events import WatchRecord
from memsampd.estimate.watch_reading import read_watch
from memsampd.estimate.watches import Tails
from memsampd.models.survival import SurvivalFunction
from memsampd.sampler.perf.watch import FEW_HITS, has_seen_enough

RATE = 1e9  # accesses a second
HORIZON = 2000  # of walks
PATIENCE_SECONDS = 0.5
POLL_SECONDS = 0.1
HIT_NOISE_SECONDS = 5e-6  # of what a hit takes, which is taken off as if it were known
LOW, HIGH = 2e3, 2e8


def accesses(begin: float, end: float, cpu_seconds: float) -> float:
    return RATE * cpu_seconds


@dataclass
class Line:
    """Chosen as accesses choose lines: a line that is touched often is met more often."""

    pause: Callable[[], float]  # draws the next distance, accesses
    touches: int = 1  # of a visit


def watched(line: Line, rng: random.Random, number: int) -> WatchRecord:
    """What a watch would tell that begins within a pause, at a moment that does not know of it."""
    delay = rng.uniform(0, 0.1) * RATE
    at = line.pause()
    while at < delay:
        at += line.pause()
    hits: list[float] = []
    moment = (at - delay) / RATE
    polled = POLL_SECONDS
    end = ""
    while not end:
        while moment < polled and len(hits) < FEW_HITS:
            hits += [moment] * min(line.touches, FEW_HITS - len(hits))
            moment += line.pause() / RATE
        if len(hits) >= 2 and has_seen_enough(np.array(hits), RESOLUTION_SECONDS):
            end = "returned"
        elif polled - (hits[-1] if hits else 0.0) >= PATIENCE_SECONDS:
            end = "patience"
        elif len(hits) >= FEW_HITS:
            end = "hits"
        else:
            polled += POLL_SECONDS
    noisy, told = 0.0, []
    for before, each in zip([0.0, *hits], hits, strict=False):
        noisy += max(each - before + rng.gauss(0, HIT_NOISE_SECONDS), 0.0)
        told.append(noisy)
    moments = (0.0, *told, max([polled, *told]))
    return WatchRecord(
        window=number,
        phase=0,
        tid=1,
        least_accesses=HORIZON // 2,
        times_seconds=moments,
        cpu_seconds=moments,
        patience_seconds=PATIENCE_SECONDS,
        end=end,
        hit_words=(0,) * len(told),
        resolution_seconds=RESOLUTION_SECONDS,
        visit_touches=line.touches,
    )


def even(rng: random.Random, low: float, high: float) -> Callable[[], float]:
    return lambda: float(np.exp(rng.uniform(np.log(low), np.log(high))))


def mixture(rng: random.Random) -> Line:
    """All lines alike, and each distance drawn anew, evenly in its logarithm."""
    return Line(even(rng, LOW, HIGH))


def kinds(rng: random.Random) -> Line:
    """Each line has a distance of its own, drawn evenly in its logarithm."""
    own = even(rng, LOW, HIGH)()
    return Line(lambda: own)


def visits(rng: random.Random) -> Line:
    """The same, and each visit touches the word four times in a row."""
    own = even(rng, LOW, HIGH)()
    return Line(lambda: own, touches=4)


def exact(distance: float) -> float:
    share = np.log(max(distance, LOW) / LOW) / np.log(HIGH / LOW)
    return float(np.clip(1 - share, 0, 1))


DISTANCES = (1e5, 3e5, 1e6, 3e6, 1e7, 3e7)


def read(records: list[WatchRecord]) -> Tails:
    none: SurvivalFunction | None = None
    return Tails([(each, read_watch(each, accesses), none) for each in records])


def tail_of(make: Callable[[random.Random], Line], count: int, seed: int) -> Tails:
    rng = random.Random(seed)
    records = [watched(make(rng), rng, number) for number in range(count)]
    return read(records)


@pytest.mark.parametrize("make", [mixture, kinds, visits])
@pytest.mark.parametrize("seed", [1, 2])
def test_many_watches_come_near(make: Callable[[random.Random], Line], seed: int) -> None:
    tail = tail_of(make, 1500, seed).beyond(HORIZON)
    assert tail is not None
    for distance in DISTANCES:
        assert float(tail.middle(distance)) == pytest.approx(exact(distance), abs=0.08), distance


@pytest.mark.parametrize("make", [mixture, kinds, visits])
def test_bounds_of_a_few_watches_hold(make: Callable[[random.Random], Line]) -> None:
    held = told = 0
    for seed in range(60):
        tail = tail_of(make, 12, seed).beyond(HORIZON)
        if tail is None:
            continue
        for distance in DISTANCES:
            if distance <= tail.low.horizon_accesses:
                told += 1
                held += float(tail.low(distance)) <= exact(distance) <= float(tail.high(distance))
    assert told > 100
    assert held / told > 0.9


def test_short_distances_are_bounded_not_told() -> None:
    """What returns faster than hits can be told apart is between the horizon and that."""
    shortest = RATE * RESOLUTION_SECONDS
    rng = random.Random(3)
    own = even(rng, LOW, shortest / 2)
    records = [watched(Line(own), rng, number) for number in range(200)]
    tail = read(records).beyond(HORIZON)
    assert tail is not None
    assert float(tail.low(5000)) < 0.1 < 0.9 < float(tail.high(5000))
    assert float(tail.middle(2 * shortest)) < 0.05


def test_a_visit_is_no_return() -> None:
    """Touches of one visit follow each other faster than can be told: they are no distances."""
    own = 1e7
    rng = random.Random(4)
    records = [watched(Line(lambda: own, touches=4), rng, number) for number in range(50)]
    for each in records:
        said = read_watch(each, accesses)
        assert said is not None
        assert all(pause.accesses == pytest.approx(own, rel=0.05) for pause in said.pauses)
