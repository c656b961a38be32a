"""How late counters are to count windows: what a Prometheus would have stored with other delays.

usage: python -m evaluation.delays [--seconds S...] [--programs NAME...] [--held-out] FOLDER|FILE...

Run it in ``benchmarks/``, or with that in PYTHONPATH. Live recordings are told to an estimator
again, and its counters are read once a second, and at the end. Printed is the CDF error of the
intervals, in percent: of each program the median, for each delay; and, for comparison, with what is
known of windows at the end of the run.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from evaluation.counters import judge_counters
from evaluation.replay import parse_chosen
from evaluation.scraping import SCRAPE_SECONDS, Scrape
from memsampd.estimate.estimator import Estimator
from memsampd.estimate.events import WindowRecord
from memsampd.exporters.analysis import analyse, estimator_of
from memsampd.exporters.recording import Recording, read_recording
from reference import store
from reference.windows import ERROR_SIZES_BYTES

DELAYS_SECONDS = (0.3, 0.5, 1.0, 1.5)
_SIZES_BYTES = np.array(ERROR_SIZES_BYTES, np.int64)


def delayed(recording: Recording, delay_seconds: float) -> list[Scrape]:
    """Return what is read of counters that count windows so late."""
    estimator = estimator_of(recording.header, _SIZES_BYTES, count_after_seconds=delay_seconds)
    read, due = [], SCRAPE_SECONDS
    for event in recording.events:
        while isinstance(event, WindowRecord) and event.end_seconds > due:
            read.append(_scrape(estimator, due))
            due += SCRAPE_SECONDS
        estimator.add(event)
    estimator.finish()
    return [*read, _scrape(estimator, due)]


def _scrape(estimator: Estimator, seconds: float) -> Scrape:
    totals = estimator.estimate().totals
    return Scrape(seconds, totals.accesses, totals.misses["lru"], 0.0, 0.0)


def known_at_the_end(recording: Recording) -> list[Scrape]:
    """Return the same as if all that is known in the end had been known at once."""
    windows = analyse(recording, "lru", _SIZES_BYTES).windows
    pieces = int(windows[-1].record.end_seconds // SCRAPE_SECONDS) + 1
    accesses, misses = np.zeros(pieces), np.zeros((pieces, len(_SIZES_BYTES)))
    for window in windows:
        if window.accesses and window.curve is not None:
            piece = int(window.record.end_seconds // SCRAPE_SECONDS)
            accesses[piece] += window.accesses
            misses[piece] += window.accesses * window.curve.miss_ratio
    sums = zip(np.cumsum(accesses).tolist(), np.cumsum(misses, axis=0), strict=True)
    return [Scrape(float(at), *each, 0.0, 0.0) for at, each in enumerate(sums, 1)]


def _line(name: str, figures: Sequence[float]) -> str:
    return f"{name:16}" + "".join(f"{figure:10.2f}" for figure in figures)


def main() -> int:
    """Print a line a program."""
    parser = argparse.ArgumentParser(prog="evaluation.delays", description="Judge counters.")
    parser.add_argument("--seconds", nargs="+", type=float, default=DELAYS_SECONDS, metavar="S")
    args, found = parse_chosen(parser)
    rows: dict[str, list[list[float]]] = defaultdict(list)
    for name, file in found:
        recording, reference = read_recording(file), store.load(store.path_of(name))
        ways = [delayed(recording, each) for each in args.seconds] + [known_at_the_end(recording)]
        rows[name].append([judge_counters(each, reference).cdf for each in ways])
    if not rows:
        parser.error("no recording of a program that has a reference")
    print(f"{'CDF, %':16}" + "".join(f"{each:9g}s" for each in args.seconds) + "    at end")
    medians = {name: np.median(each, axis=0) for name, each in rows.items()}
    for name, each in medians.items():
        print(_line(name, each.tolist()))
    print(_line("mean", np.mean(list(medians.values()), axis=0).tolist()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
