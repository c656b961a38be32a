"""Watches as a session has them, without a kernel: time, lines and debug registers are simulated.

What chooses, begins, ends and reads watches is what a session has: ``WatchPlan``, ``Watchpoints``
and ``Tails``. Only perf events and the clock are made up.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from memsampd.daemon.watching import OPEN_LINES, WatchPlan
from memsampd.estimate.events import WatchRecord
from memsampd.models.open_lines import OpenLine
from memsampd.sampler.perf import watch, watchpoints
from memsampd.sampler.perf.arrival import HIT_SECONDS

RATE = 1e8
"""Accesses a second."""
OPEN = 100_000
"""For so many accesses lines were open when their burst ended: no pause is shorter."""
PATIENCE = watchpoints.PATIENCE_SECONDS * RATE
_NOBODY = -1  # a thread of which /proc tells nothing
_TURN_SECONDS = 0.1
_SOUGHT_TURNS = 3  # in which nothing is watched, when code is sought
_PHASE = 1
_SAMPLED_A_TURN = 2
_NEAR = 1000.0  # accesses: the distance of lines that return soon

Pauses = Callable[[random.Random], Iterator[float]]
"""The pauses of a line, accesses, from its last touch in a burst on: the first is a distance."""


class Kind(msgspec.Struct, frozen=True):
    """Lines whose distances are known.

    Attributes:
        pauses: draws a line: chosen as accesses choose lines, and gone on with.
        survival: share of the distances above OPEN that are at least so long.
    """

    pauses: Pauses
    survival: Callable[[float], float]


class _Line:
    """When a line is touched, seconds."""

    def __init__(self, pauses: Iterator[float], left_seconds: float) -> None:
        self._pauses = pauses
        self._next_seconds = left_seconds + next(pauses) / RATE

    def skip(self, until_seconds: float) -> None:
        while self._next_seconds < until_seconds:
            self._next_seconds += next(self._pauses) / RATE

    def take(self) -> float:
        taken = self._next_seconds
        self._next_seconds += next(self._pauses) / RATE
        return taken


class _NearLine(_Line):
    """A line that always returns soon: how often it was touched meanwhile is worked out."""

    def __init__(self, since_seconds: float) -> None:
        super().__init__(itertools.repeat(_NEAR), since_seconds)

    def skip(self, until_seconds: float) -> None:
        missed = math.ceil((until_seconds - self._next_seconds) * RATE / _NEAR)
        self._next_seconds += max(missed, 0) * _NEAR / RATE


class _World:
    """The time, and the lines by their numbers: line n is at address 64 n."""

    def __init__(self) -> None:
        self.now_seconds = 0.0
        self.lines: dict[int, _Line] = {}

    def breakpoints(
        self,
        tid: int,
        words: Sequence[tuple[int, int]],
        hits: int,
        counters: Sequence[object],
        *how: object,
    ) -> _Breakpoints:
        ((_, address),) = words
        return _Breakpoints(self, self.lines[address // 64], hits)


class _Breakpoints:
    """In place of those of ``_core``: one word, whose hits take what hits take."""

    def __init__(self, world: _World, line: _Line, most_hits: int) -> None:
        self._world, self._line, self._most_hits = world, line, most_hits
        self._hits: list[tuple[int, ...]] = []

    def arm(self) -> None:
        self._began_seconds = self._world.now_seconds
        self._line.skip(self._began_seconds)
        self._upcoming_seconds = self._line.take()

    def clock(self) -> tuple[int, bool, int, bool]:
        return round(1e9 * (self._world.now_seconds - self._began_seconds)), True, 0, False

    def ended_ns(self) -> int:
        return 0

    def hits(self) -> bytes:
        while len(self._hits) < self._most_hits:
            taken = HIT_SECONDS * len(self._hits)
            at = self._upcoming_seconds + taken
            if at > self._world.now_seconds:
                break
            moments = round(1e9 * (at - self._began_seconds)), round(1e9 * at)
            self._hits.append((*moments, 0, 0, 0, 0))
            self._upcoming_seconds = self._line.take()
        return np.array(self._hits, watch._HIT).tobytes()

    def close(self) -> None:
        pass


@contextmanager
def _simulated(world: _World) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        fake = SimpleNamespace(Breakpoints=world.breakpoints, BREAKPOINT_ACCESS=3)
        patch.setattr(watch, "_core", fake)
        for module in (watch, watchpoints):
            patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: world.now_seconds))
        yield


class Sampled(msgspec.Struct, frozen=True):
    """Accesses that a PMU samples, each with the same chance.

    Attributes:
        near: share of them that are of lines which always return soon; the others are of lines of
            the kind.
        alone: no burst tells lines.
    """

    near: float
    alone: bool = False


def session(
    kind: Kind,
    rng: random.Random,
    seconds: float,
    between_evictions_seconds: float = math.inf,
    sampled: Sampled | None = None,
) -> list[WatchRecord]:
    """Watch lines of a kind, four at a time, until the session ends.

    Args:
        kind: of all lines.
        rng: draws them.
        seconds: length of the session.
        between_evictions_seconds: mean time until code is sought again, for which all debug
            registers are needed.
        sampled: a PMU tells lines, too; None: it does not.
    """
    world, plan = _World(), WatchPlan(0.1, rng)
    points, numbers = watchpoints.Watchpoints(), itertools.count()
    records: list[WatchRecord] = []

    def told() -> None:
        found = [plan.record(each, lambda now: now) for each in points.poll()]
        records.extend(each for each in found if each is not None)

    def burst() -> None:
        window, opened = next(numbers), [next(numbers) for _ in range(OPEN_LINES)]
        for each in opened:
            world.lines[each] = _Line(kind.pauses(rng), world.now_seconds - OPEN / RATE)
        lines = [OpenLine((64 * each,), 8, OPEN, 1) for each in opened]
        plan.offer(lines, _NOBODY, window, _PHASE)

    def sample(near: float) -> None:
        number = next(numbers)
        if rng.random() < near:
            world.lines[number] = _NearLine(world.now_seconds)
        else:
            pauses = kind.pauses(rng)
            for _ in range(rng.randrange(20)):  # any of its accesses
                next(pauses)
            world.lines[number] = _Line(pauses, world.now_seconds)
        plan.offer_sampled(OpenLine((64 * number,), 8, 1, 1), _NOBODY, number, _PHASE)

    sought = between_evictions_seconds * rng.expovariate(1.0)
    with _simulated(world):
        while world.now_seconds < seconds:
            world.now_seconds += _TURN_SECONDS
            told()
            plan.elapse(_TURN_SECONDS)
            if world.now_seconds >= sought:
                points.suspend()
                world.now_seconds += _SOUGHT_TURNS * _TURN_SECONDS
                sought = world.now_seconds + between_evictions_seconds * rng.expovariate(1.0)
                continue
            if plan.wants_lines(_PHASE) and not (sampled and sampled.alone):
                burst()
            for _ in range(_SAMPLED_A_TURN if sampled else 0):
                sample(sampled.near if sampled else 0.0)
            for order in plan.orders(_PHASE, points.free, lambda: RATE):
                points.start(order)
        points.close()
        told()
    return records
