"""A day of a target in bounded memory: which phases ran when, at three resolutions.

A snapshot tells the CPU time of each phase so far, so the difference of two tells what ran between
them, every window included. Curves are not kept over time: what is read is drawn with the curves of
its phases as they are known now, so that what was learned late holds for what ran early.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memsampd.exporters.past import EMPTY, OTHERS, POLICY, Past, PastRows, PhaseKnowledge
from memsampd.exporters.snapshot import Snapshot
from memsampd.models.combine import combine
from memsampd.models.records import MissRatioCurve

# (seconds of a row, rows): 15 minutes, 3 hours, a day. 72 bytes a row, 260 KB a target.
TIERS = ((1.0, 900), (8.0, 1350), (64.0, 1350))
# What outlives memsampd: an hour, a day.
KEPT_TIERS = ((8.0, 450), (64.0, 1350))
# Phases told apart in a row; the lighter ones are added up as OTHERS.
SLOTS = 6
# Snapshots come every second or so. After a longer pause than this, what ran is taken to have run
# in so much of it.
LONGEST_SECONDS = 120.0
MAX_PHASES = 512
_ROUNDING = 1e-9  # of CPU time that was added up in another order


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of a target's history in columns of equal length.

    Attributes:
        start_seconds: CLOCK_MONOTONIC time at which each column starts, shape (c,), ascending;
            columns in which nobody looked are left out.
        step_seconds: length of a column.
        phases: ids, shape (p,), ascending; OTHERS for light ones together, below EMPTY those of
            sessions before that are not known again.
        cpu_seconds: CPU time of each phase in each column, shape (c, p).
    """

    start_seconds: NDArray[np.float64]
    step_seconds: float
    phases: NDArray[np.int64]
    cpu_seconds: NDArray[np.float64]


class Tier:
    """A ring of rows, each of a fixed length in time.

    Args:
        step_seconds: length of a row.
        rows: how many are kept.
    """

    def __init__(self, step_seconds: float, rows: int) -> None:
        self.step_seconds = step_seconds
        self.rows = rows
        self._numbers = np.zeros(rows, np.int64)  # start / step_seconds
        self._phases = np.full((rows, SLOTS), EMPTY, np.int32)
        self._cpu_seconds = np.zeros((rows, SLOTS), np.float32)
        self._count = 0
        self._open: dict[int, float] = {}
        self._begins_late = False

    @property
    def has_forgotten(self) -> bool:
        """Whether there were rows before those that it has."""
        return self._count > self.rows or self._begins_late

    @property
    def first_seconds(self) -> float:
        """Start of the oldest row; infinity before the first."""
        if not self._count:
            return math.inf
        oldest = self._count % self.rows if self._count > self.rows else 0
        return float(self._numbers[oldest]) * self.step_seconds

    def add(
        self, since_seconds: float, until_seconds: float, cpu_seconds: Mapping[int, float]
    ) -> None:
        """Spread CPU time of phases evenly over a stretch; time does not run backwards."""
        first, last = (math.floor(at / self.step_seconds) for at in (since_seconds, until_seconds))
        span_seconds = until_seconds - since_seconds
        for number in range(max(first, last - self.rows + 1), last + 1):
            start_seconds = number * self.step_seconds
            inside = min(until_seconds, start_seconds + self.step_seconds)
            inside -= max(since_seconds, start_seconds)
            share = inside / span_seconds if span_seconds > 0 else 1.0
            self._add(number, {id: share * used for id, used in cpu_seconds.items()})

    def _add(self, number: int, cpu_seconds: Mapping[int, float]) -> None:
        at = (self._count - 1) % self.rows
        if not self._count or number > self._numbers[at]:
            at = self._count % self.rows
            self._count += 1
            self._numbers[at] = number
            self._open = {}
        for phase, seconds in cpu_seconds.items():
            self._open[phase] = self._open.get(phase, 0.0) + seconds
        self._write(at)

    def _write(self, at: int) -> None:
        ordered = sorted(self._open.items(), key=lambda item: -item[1])
        kept, rest = ordered[:SLOTS], ordered[SLOTS:]
        if rest:
            rest.append(kept.pop())
            kept.append((OTHERS, sum(seconds for _, seconds in rest)))
        self._phases[at], self._cpu_seconds[at] = EMPTY, 0.0
        for slot, (phase, seconds) in enumerate(kept):
            self._phases[at, slot], self._cpu_seconds[at, slot] = phase, seconds

    def rename(self, gone: int, into: int) -> None:
        """A phase was found to be another one."""
        self._phases[self._phases == gone] = into
        if gone in self._open:
            self._open[into] = self._open.get(into, 0.0) + self._open.pop(gone)

    def past(self) -> PastRows:
        """Return all rows."""
        kept = min(self._count, self.rows)
        order = np.argsort(self._numbers[:kept])
        return PastRows(
            self.step_seconds,
            self._numbers[order],
            self._phases[order],
            self._cpu_seconds[order],
            self.has_forgotten,
        )

    def restore(self, past: PastRows | None) -> None:
        """Begin with these rows, before all others; None: those that there were are not known."""
        self._begins_late = True
        if past is None or past.phases.shape[1] != SLOTS:
            return
        rows = len(past.numbers[-self.rows :])
        self._begins_late = past.begins_late or rows < len(past.numbers)
        self._numbers[:rows] = past.numbers[-rows:]
        self._phases[:rows] = past.phases[-rows:]
        self._cpu_seconds[:rows] = past.cpu_seconds[-rows:]
        self._count = rows
        if rows:
            last = zip(past.phases[-1].tolist(), past.cpu_seconds[-1].tolist(), strict=True)
            self._open = {phase: seconds for phase, seconds in last if phase != EMPTY}

    def read(self, since_seconds: float, until_seconds: float, points: int) -> Slice:
        """Return what ran, in at most so many columns; they start at multiples of their length."""
        first, last = (math.floor(at / self.step_seconds) for at in (since_seconds, until_seconds))
        every = math.ceil((last - first + 1) / max(points - 1, 1))
        if points > 1:  # always the same edges, so that a picture does not flicker
            first = first // every * every
        kept = min(self._count, self.rows)
        chosen = (self._numbers[:kept] >= first) & (self._numbers[:kept] <= last)
        columns, column = np.unique(
            (self._numbers[:kept][chosen] - first) // every, return_inverse=True
        )
        held = self._phases[:kept][chosen]
        phases, phase = np.unique(held, return_inverse=True)
        table = np.zeros((len(columns), len(phases)))
        np.add.at(
            table,
            (np.repeat(column.reshape(-1), SLOTS), phase.reshape(-1)),
            self._cpu_seconds[:kept][chosen].reshape(-1),
        )
        real = phases != EMPTY
        return Slice(
            start_seconds=((first + columns * every) * self.step_seconds).astype(np.float64),
            step_seconds=every * self.step_seconds,
            phases=phases[real].astype(np.int64),
            cpu_seconds=table[:, real],
        )


class History:
    """What one target did, as far as its snapshots tell.

    Args:
        tiers: seconds of a row and number of rows, the finest first.
    """

    def __init__(self, tiers: tuple[tuple[float, int], ...] = TIERS) -> None:
        self._tiers = [Tier(*tier) for tier in tiers]
        self._known: dict[int, PhaseKnowledge] = {}
        self._cpu_seconds: dict[int, float] | None = None  # by phase, as told last
        self._program = ("", "")  # its names, as told last
        self.first_seconds = math.inf
        self.last_seconds = -math.inf
        self.stored_until_seconds = -math.inf  # what is told until then was restored

    def past(self) -> Past | None:
        """Return what is to outlive memsampd; None: nothing has been told."""
        if self.last_seconds == -math.inf:
            return None
        tiers = tuple(tier.past() for tier in self._tiers)
        return Past(self.last_seconds, tiers, dict(self._known))

    def restore(self, past: Past) -> None:
        """Begin with what was kept, with ids of phases as they are now, before anything is added.

        Curves of the past and of what is added have to have the same sizes.
        """
        rows = {each.step_seconds: each for each in past.tiers}
        for tier in self._tiers:
            tier.restore(rows.get(tier.step_seconds))
        started = [tier.first_seconds for tier in self._tiers]
        self.first_seconds = min(*started, past.until_seconds)
        self.last_seconds = self.stored_until_seconds = past.until_seconds
        self._known = dict(past.known)

    def begin_session(self) -> None:
        """What is added from now on is of another attach: its phases have ids of their own."""
        past = self.past()
        if past is None:
            return
        past = past.renamed({})
        for tier, rows in zip(self._tiers, past.tiers, strict=True):
            tier.restore(rows)
        self._known = past.known
        self._cpu_seconds = None

    def add(self, snapshot: Snapshot) -> None:
        """Learn what ran since the snapshot before."""
        estimate, now_seconds = snapshot.estimate, max(snapshot.time_seconds, self.last_seconds)
        now = {phase.id: phase.cpu_seconds for phase in estimate.phases}
        program = (snapshot.target.command, snapshot.target.executable)
        ran = self._ran(now, is_renamed=program != self._program)
        self._program = program
        since_seconds = now_seconds
        if self.last_seconds > -math.inf:
            since_seconds = max(self.last_seconds, now_seconds - LONGEST_SECONDS)
        for tier in self._tiers:
            tier.add(since_seconds, now_seconds, ran)
        self._cpu_seconds = now
        self.first_seconds = min(self.first_seconds, now_seconds)
        self.last_seconds = now_seconds
        for phase in estimate.phases:
            # At the end of the dict, so that those not heard of for longest go first.
            self._known.pop(phase.id, None)
            self._known[phase.id] = PhaseKnowledge(
                phase.curves.get(POLICY), phase.rate.accesses_per_cpu_second
            )
        while len(self._known) > MAX_PHASES:
            del self._known[next(iter(self._known))]

    def _ran(self, now: Mapping[int, float], *, is_renamed: bool) -> dict[int, float]:
        """Return the CPU time of each phase since the snapshot before.

        Of the first snapshot we cannot know when it ran: nothing is returned. Phases that are gone
        were merged, or were another program's (a session uses no id again): that has none of the
        old ones, and another name, or less CPU time in all.
        """
        before, self._cpu_seconds = self._cpu_seconds, None
        if before is None:
            return {}
        spent_seconds = sum(now.values()) - sum(before.values())
        is_less = spent_seconds < -_ROUNDING * sum(before.values())
        if now.keys().isdisjoint(before) and (is_renamed or is_less or not now):
            return {id: seconds for id, seconds in now.items() if seconds > 0}
        before = self._merged(dict(before), now)
        ran = {id: max(used - before.get(id, 0.0), 0.0) for id, used in now.items()}
        told_seconds = sum(ran.values())
        # Where it was not seen right what went into what, there was no more time all the same.
        share = min(max(spent_seconds, 0.0) / told_seconds, 1.0) if told_seconds > 0 else 0.0
        return {id: share * seconds for id, seconds in ran.items() if seconds > 0}

    def _merged(self, before: dict[int, float], now: Mapping[int, float]) -> dict[int, float]:
        """Rename phases that are no more, the longest first.

        What each was went to the one that grew most, beside what others already brought there.
        """
        for gone in sorted(before.keys() - now.keys(), key=lambda id: -before[id]):
            into = max(now, key=lambda id: now[id] - before.get(id, 0.0))
            before[into] = before.get(into, 0.0) + before.pop(gone)
            self._known.pop(gone, None)
            for tier in self._tiers:
                tier.rename(gone, into)
        return before

    def read(self, since_seconds: float, until_seconds: float, points: int) -> Slice:
        """Return a stretch from the finest rows that reach back so far.

        Args:
            since_seconds: CLOCK_MONOTONIC time.
            until_seconds: the same.
            points: columns at most.
        """
        since_seconds = max(since_seconds, self.first_seconds)
        until_seconds = min(until_seconds, self.last_seconds)
        for tier in self._tiers:
            if not tier.has_forgotten or tier.first_seconds <= since_seconds:
                break
        since_seconds = max(since_seconds, tier.first_seconds)
        return tier.read(min(since_seconds, until_seconds), until_seconds, points)

    def curves(self, part: Slice) -> list[MissRatioCurve | None]:
        """Return the curve of each column of a slice, weighted by accesses; None: nothing known.

        Phases without a curve widen the bounds. Where no phase has a rate, CPU time weighs.
        """
        known = [self._known.get(int(id), PhaseKnowledge(None, None)) for id in part.phases]
        rates = [phase.accesses_per_cpu_second for phase in known]
        told = [rate for rate in rates if rate is not None]
        mean = sum(told) / len(told) if told else 1.0
        accesses = part.cpu_seconds * np.array([mean if rate is None else rate for rate in rates])
        return [
            combine(zip(row, (phase.curve for phase in known), strict=True))
            for row in accesses.tolist()
        ]

    def unknown_cpu_seconds(self, part: Slice) -> NDArray[np.float64]:
        """Return the CPU time of each column in unknown phases, shape (c,).

        One without accesses has no curve, and is known.
        """
        nothing = PhaseKnowledge(None, None)
        known = [self._known.get(int(id), nothing) for id in part.phases]
        blank = [each.curve is None and each.accesses_per_cpu_second != 0 for each in known]
        return np.asarray(part.cpu_seconds[:, blank].sum(axis=1), np.float64)
