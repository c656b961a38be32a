"""What a branch sample costs a thread, by how much memory it uses between two of them.

A thread follows pointers through an area, at random, in pieces of some 20 ms, in turns with and
without samples of it: by a timer of its own, 0.1, 1 and 4 ms apart, and by the kernel's ticks where
they can be had. CPU time of a piece, less that without, for each sample: medians over pairs.

Goal: what a session measures of a timer's interrupt, and charges for it, is within a factor of 2 of
what is found here 1 ms apart, of the area that makes it dearest. Exit status 1 if it is missed.

Run: ``python benchmarks/sample_cost.py [--quick] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

from memsampd import _core
from memsampd.sampler.perf.costs import SamplingCost
from memsampd.sampler.perf.groups import TASK_CLOCK, close_all, own_thread
from memsampd.sampler.perf.ticks import Ticks, try_ticks
from verdict import add_options, finish

AREAS_KIB = (16, 256, 4096, 102_400)
PERIODS_SECONDS = (1e-4, 1e-3, 4e-3)
PIECE_SECONDS = 0.02
PAIRS, QUICK_PAIRS = 150, 25
RING_BYTES = 256 << 10
FACTOR = 2.0


class Way(NamedTuple):
    """How samples come: so far apart, by a timer or by ticks."""

    period_seconds: float
    ticks: Ticks | None = None

    @property
    def name(self) -> str:
        """For people."""
        return "ticks" if self.ticks else f"timer, {1e3 * self.period_seconds:g} ms"


@contextmanager
def sampled(way: Way) -> Iterator[None]:
    """Have this thread sampled."""
    event, period, fields = TASK_CLOCK, round(way.period_seconds * 1e9), _core.SAMPLE_REGISTERS
    if way.ticks and way.ticks.event:
        event, period, fields = way.ticks.event, 1, fields | _core.SAMPLE_CHAIN
    groups = own_thread(event, period, RING_BYTES, fields)
    try:
        with closing(_core.PerfRing(groups[0][0], RING_BYTES, fields)):
            yield
    finally:
        close_all(groups)


def sample_seconds(way: Way, area: mmap.mmap, pairs: int) -> float:
    """CPU time that a sample takes from this thread while it goes through an area."""
    loads = 20_000
    _core.memory_chase(area, loads, 1)
    loads = max(round(PIECE_SECONDS / _core.memory_chase(area, loads, 2)), 1)
    found = []
    for pair in range(pairs):
        seconds = dict[bool, float]()
        for is_sampled in ((False, True), (True, False))[pair % 2]:
            if is_sampled:
                with sampled(way):
                    seconds[True] = loads * _core.memory_chase(area, loads, pair)
            else:
                seconds[False] = loads * _core.memory_chase(area, loads, pair)
        found.append((seconds[True] - seconds[False]) * way.period_seconds / seconds[True])
    return statistics.median(found)


def main() -> int:
    """Measure all ways on all areas."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, f"{QUICK_PAIRS} pairs each")
    args = parser.parse_args()
    pairs = QUICK_PAIRS if args.quick else PAIRS
    charged = SamplingCost.measure_interrupts()
    ways, ticks = [Way(each) for each in PERIODS_SECONDS], try_ticks()
    if ticks.event:
        ways.append(Way(ticks.seconds, ticks))
    else:
        print(f"no ticks: {ticks.why_not}")
    figures = {"charged": charged.interrupt_seconds, "quick": charged.quick_interrupt_seconds}
    print("| area, KiB | " + " | ".join(f"{way.name}, us" for way in ways) + " |")
    print("|---|" + "---:|" * len(ways))
    for kib in AREAS_KIB:
        with mmap.mmap(-1, kib << 10) as area:
            _core.memory_pass("w", area)
            row = {f"{kib} KiB, {way.name}": sample_seconds(way, area, pairs) for way in ways}
        figures |= row
        print(f"| {kib:,} | " + " | ".join(f"{1e6 * each:.0f}" for each in row.values()) + " |")
    dearest = max(figures[f"{kib} KiB, {ways[1].name}"] for kib in AREAS_KIB)
    print(
        f"charged for an interrupt: {1e6 * charged.interrupt_seconds:.0f} us, found "
        f"{1e6 * dearest:.0f}; in quick succession {1e6 * charged.quick_interrupt_seconds:.0f}"
    )
    missed = []
    if not dearest / FACTOR < charged.interrupt_seconds < dearest * FACTOR:
        missed.append(f"charged within a factor of {FACTOR:g} of what a sample takes")
    return finish(args.json, figures, missed)


if __name__ == "__main__":
    sys.exit(main())
