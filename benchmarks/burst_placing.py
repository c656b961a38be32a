"""Where bursts are put that memsampd's own CPU time allows: simulated sessions on exact references.

The references are replayed at the speed of the programs, in windows of 0.1 s: phases, schedule and
ledger are the product's own. What is simulated is the tracer, whose bursts take 0.03 s of own CPU
time each and tell the exact curve of their window, and how windows are shared out among these. So
the error that is left is that of the choice of windows. Each run is repeated as if it took two and
three times as long, for nobody knows how long a program will run.

Three ways: each burst as soon as it is due by the phase's age ("age"), paced, and paced by need.
Goal: the last one's whole-run error, mean of programs and lengths, is at most 0.5 %, and less than
the first one's.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from evaluation.clusterings import Merges
from evaluation.offline import PRODUCT, OfflineWindows, offline_windows
from memsampd.daemon.attach import burst_shape
from memsampd.daemon.ledger import Ledger
from memsampd.estimate.scatter import phase_scatter
from memsampd.estimate.sharing import burst_shares
from memsampd.phases.leader import LeaderFollower
from memsampd.phases.predictor import RunLengthMarkov
from memsampd.phases.schedule import make_schedule
from memsampd.sampler.records import BurstCost
from reference import store
from reference.metrics import cdf_error, whole_run_error
from reference.programs import judged
from verdict import add_options, finish

WINDOW_SECONDS = PRODUCT.window_seconds
WAYS = ("age", "paced", "paced by need")
GOAL = 0.5  # %

START_SECONDS = 0.3  # of own CPU time
TURN_CPU_SECONDS = 0.004
TURN_SECONDS, BURST_TURN_SECONDS = 0.25, 0.12
BURST = BurstCost(stop_seconds=0.004, stops=1, replica_cpu_seconds=0.03)
LIKE_CODE = 0.1  # what bursts of other phases count
USUAL_RATE = 5e8  # accesses per CPU second: by it runs last about as long as they do here


@dataclass(frozen=True)
class Row:
    """Mean of some sessions of one program."""

    program: str
    way: str
    length: int
    whole_run: float
    cdf: float
    bursts: float


class Session:
    """A session of one run.

    Args:
        windows: the run.
        way: one of ``WAYS``.
        seed: of all chance.
    """

    def __init__(self, windows: OfflineWindows, way: str, seed: int) -> None:
        self._windows, self._way, self._seed = windows, way, seed
        self._hits = windows.hits(seed)
        self._clusterer, self._predictor = LeaderFollower(), RunLengthMarkov()
        self._merges = Merges()
        self._labels: list[int] = []
        self._schedule = make_schedule(
            PRODUCT.schedule,
            random.Random(seed),
            window_seconds=WINDOW_SECONDS,
            share=PRODUCT.budget_share,
            shape=burst_shape(PRODUCT.burst_accesses),
        )
        self._ledger = Ledger(PRODUCT.budget_share, PRODUCT.own_cpu_share, 0.0)
        self._ledger.tell_time(0.0, 0.0, START_SECONDS)
        self._bursts = {0: PRODUCT.burst_accesses}  # accesses by window; the first one at once
        self._ordered: int | None = 0

    def run(self) -> tuple[NDArray[np.float64], int]:
        """Observe the whole run.

        Returns:
            Estimated miss ratios of its windows at ``SIZES_BYTES``, shape (w, s), and how many
            bursts there were.
        """
        now_seconds, own_seconds = TURN_SECONDS, START_SECONDS
        while len(self._labels) < len(self._hits):
            own_seconds += TURN_CPU_SECONDS
            self._schedule.elapse(self._ledger.tell_time(now_seconds, now_seconds, own_seconds))
            ended = self._end_windows(now_seconds)
            self._take_burst()
            for label in self._labels[len(self._labels) - ended + 1 :] if ended else ():
                self._schedule.skip(self._merges.final(label))
            if self._ordered is None and ended:
                self._order()
            now_seconds += TURN_SECONDS if self._ordered is None else BURST_TURN_SECONDS
        return self._shared_out(), len(self._bursts)

    def _shared_out(self) -> NDArray[np.float64]:
        """Give each window the exact curves of profiled windows that ran its code."""
        phases = np.array([self._merges.final(label) for label in self._labels])
        profiled = np.array([*self._bursts])
        shares = burst_shares(
            np.arange(len(phases)),
            self._hits,
            profiled,
            self._windows.hits(self._seed, samples=None)[profiled],
            np.where(phases[:, None] == phases[profiled][None, :], 1.0, LIKE_CODE),
        )
        return np.asarray(shares @ self._windows.miss_ratio[profiled])

    def _end_windows(self, now_seconds: float) -> int:
        """Put windows that have ended into phases; returns how many."""
        before = len(self._labels)
        until = min(int(now_seconds / WINDOW_SECONDS + 1e-9), len(self._hits))
        for vector in self._hits[before:until]:
            assignment = self._clusterer.learn_counts(vector)
            self._merges.add(assignment.merged)
            for gone, into in assignment.merged:
                for keeper in (self._predictor, self._schedule):
                    keeper.merge(gone, into)
            self._predictor.observe(assignment.phase)
            self._labels.append(assignment.phase)
        return until - before

    def _take_burst(self) -> None:
        """Take in the burst that was ordered, once its window has ended."""
        if self._ordered is None or self._ordered >= len(self._labels):
            return
        accesses = self._bursts[self._ordered]
        self._ledger.add_burst(BURST)
        self._schedule.spend(accesses, BURST.target_seconds)
        phase = self._merges.final(self._labels[self._ordered])
        self._schedule.record(phase, accesses, BURST.replica_cpu_seconds)
        self._ordered = None
        if self._way == "paced by need":
            self._schedule.weigh(self._scatter(), {})

    def _scatter(self) -> dict[int, float]:
        profiled = np.array([*self._bursts])
        phases = np.array([self._merges.final(self._labels[window]) for window in profiled])
        accesses, ratios = self._windows.accesses[profiled], self._windows.miss_ratio[profiled]
        overall = np.average(ratios, axis=0, weights=accesses)
        rates = accesses / WINDOW_SECONDS
        return phase_scatter(
            phases, np.ones(len(phases)), rates, ratios, np.zeros_like(ratios), overall
        )

    def _order(self) -> None:
        """Order a burst of the next window, if it is worth it."""
        phase, expected = self._merges.final(self._labels[-1]), self._predictor.predict()
        if self._schedule.is_new(phase) and not self._schedule.is_new(expected):
            expected = phase
        if not self._ledger.allows_burst(is_urgent=self._schedule.is_new(expected)):
            return
        if self._way != "age":
            self._schedule.pace(*self._ledger.bursts_ahead(), WINDOW_SECONDS)
        window = len(self._labels)
        decision = self._schedule.decide(window, expected)
        if decision.profile and window < len(self._hits):
            self._bursts[window], self._ordered = decision.max_accesses, window


@cache
def _run(program: str, length: int) -> OfflineWindows:
    reference = store.load(store.path_of(program))
    seconds = length * float(np.clip(reference.total_accesses / USUAL_RATE, 2.0, 5.0))
    return offline_windows(reference, round(seconds / WINDOW_SECONDS))


def measure(program: str, way: str, length: int, seeds: int) -> Row:
    """Judge some sessions of a program, as if it took ``length`` times as long as usual."""
    windows, found = _run(program, length), []
    for seed in range(seeds):
        curves, bursts = Session(windows, way, seed).run()
        overall = np.average(curves, axis=0, weights=windows.accesses)
        cdf = cdf_error(curves, windows.accesses, windows.miss_ratio, windows.accesses)
        whole = whole_run_error(overall, windows.overall)
        found.append((whole, cdf, float(bursts)))
    return Row(program, way, length, *np.mean(found, axis=0).tolist())


def main() -> int:
    """Print the table; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, "fewer sessions")
    options = parser.parse_args()
    names = [each.name for each in judged([], False) if store.path_of(each.name).exists()]
    seeds = 2 if options.quick else 8
    rows = [
        measure(name, way, length, seeds) for length in (1, 2, 3) for way in WAYS for name in names
    ]
    print("length way              whole run %    CDF %   bursts")
    for length in (1, 2, 3):
        for way in WAYS:
            mine = [row for row in rows if (row.way, row.length) == (way, length)]
            means = np.mean([(row.whole_run, row.cdf, row.bursts) for row in mine], axis=0)
            print(f"{length:>6} {way:<16} {means[0]:>11.2f} {means[1]:>8.2f} {means[2]:>8.1f}")
    errors = {way: float(np.mean([r.whole_run for r in rows if r.way == way])) for way in WAYS}
    print("mean: " + ", ".join(f"{way} {error:.3f} %" for way, error in errors.items()))
    first, last = errors[WAYS[0]], errors[WAYS[-1]]
    is_met = last <= GOAL and last < first
    goal = f"{last:.3f} %, goal {GOAL:g} % and less than {first:.3f} %"
    return finish(options.json, rows, [] if is_met else [goal])


if __name__ == "__main__":
    raise SystemExit(main())
