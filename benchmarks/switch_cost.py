"""What perf events take when a thread is switched to and away from, though none of them fires.

Two processes on one CPU wake each other (``programs/sources/ping_pong.c``). The CPU time of both a
round, with events on one of them, less that without: medians over turns, each of which begins with
another way, of what is compared within a turn.

Goals: what samples are charged for a switch, as it is measured when a session begins, is within a
factor of 1.5 of what it takes here, all the time and for an eighth of it; what watches are charged
(``SWITCH_SECONDS``) within one of 3, beside sampling. Exit status 1 if one is missed.

Run: ``python benchmarks/switch_cost.py [--quick] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from operator import attrgetter
from pathlib import Path
from typing import IO, NamedTuple

from memsampd import _core
from memsampd.sampler.perf.costs import SwitchCost, measure_switch_cost
from memsampd.sampler.perf.source import TaskClockSource
from memsampd.sampler.perf.switches import shortened
from memsampd.sampler.perf.watch import SWITCH_SECONDS
from memsampd.sampler.process.maps import read_maps
from programs.preparing import compiled
from targets.options import rotated
from verdict import add_options, finish


class Way(NamedTuple):
    """What is opened: seconds between samples, 0: none; words watched; part of the time."""

    period_seconds: float = 0.0
    words: int = 0
    share: float = 1.0


ALONE, SAMPLED, THINNED = Way(), Way(0.002), Way(0.002, share=1 / 8)
PERIODS = (SAMPLED, Way(0.0005), Way(0.004), Way(0.01), Way(0.02))
WORDS = (Way(words=4), Way(0.002, 1), Way(0.002, 4))
WAYS = (ALONE, *PERIODS, THINNED, *WORDS)
TURNS, QUICK_TURNS = 40, 12
ROUNDS, THINNED_ROUNDS = 4000, 80_000
CALIBRATIONS = 5
FACTOR, WORDS_FACTOR = 1.5, 3.0
NOISE_SECONDS = 0.3e-6


def words_of(pid: int, count: int) -> list[tuple[int, int]]:
    """Words at the far end of a stack, which nobody touches."""
    begin = next(each.start for each in read_maps(pid).mappings if each.path == "[stack]")
    return [(_core.BREAKPOINT_ACCESS, begin + 64 * each) for each in range(count)]


@contextmanager
def ping_pong(folder: Path) -> Iterator[tuple[int, IO[str], IO[str]]]:
    """Two processes that wake each other when they are told to: the first one's id, its pipes."""
    program = compiled(folder, "ping_pong.c", "ping_pong", ("cc", "-O2"))
    with subprocess.Popen(
        [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.stdin, process.stdout
        process.stdin.close()


def measure(folder: Path, turns: int) -> dict[Way, list[float]]:
    """Seconds of CPU time a round, of each turn."""
    found: dict[Way, list[float]] = defaultdict(list)
    with ping_pong(folder) as (pid, told, tells):
        for turn in range(turns):
            for way in rotated(WAYS, turn):
                with ExitStack() as stack:
                    if way.period_seconds:
                        source = TaskClockSource(pid, period_seconds=way.period_seconds)
                        stack.enter_context(closing(source))
                        source.thin(way.share)
                    if way.words:
                        points = _core.Breakpoints(pid, words_of(pid, way.words), 1)
                        stack.enter_context(closing(points))
                        points.arm()
                    told.write(f"{ROUNDS if way.share == 1 else THINNED_ROUNDS}\n")
                    told.flush()
                    took = float(tells.readline())
                found[way].append(took * 1e-9)
    return found


def more_seconds(found: Mapping[Way, Sequence[float]], way: Way, than: Way) -> float:
    """How much more a round takes in one way than in another: the median over turns."""
    return statistics.median(a - b for a, b in zip(found[way], found[than], strict=True))


def charged(way: Way, cost: SwitchCost, alone_seconds: float) -> float:
    """What a switch is charged with: one of the two is always busy."""
    period_seconds = shortened(way.period_seconds, way.share)
    return cost.mean_seconds(period_seconds, way.share, 1 / alone_seconds)


def told(way: Way) -> str:
    words = f"a sample every {1e3 * way.period_seconds:g} ms, " if way.period_seconds else ""
    return f"{words}{way.words} words watched, {100 * way.share:g} % of the time"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what events take at switches.")
    add_options(parser, "fewer turns")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memsampd-switch-") as folder:
        found = measure(Path(folder), QUICK_TURNS if args.quick else TURNS)
    alone = statistics.median(found[ALONE])
    calibrated = [measure_switch_cost() for _ in range(CALIBRATIONS)]
    cost = sorted(calibrated, key=attrgetter("timer_seconds"))[CALIBRATIONS // 2]
    print(f"two switches to and away, alone: {1e6 * alone:.2f} us; calibrated: {cost}")
    missed = []
    for way in WAYS:
        took = more_seconds(found, way, ALONE)
        line = f"{told(way)}: {1e6 * took:+.2f} us"
        if way.period_seconds and not way.words:
            as_charged = charged(way, cost, alone)
            line += f", charged {1e6 * as_charged:.2f}"
            if not is_near(as_charged, took, FACTOR):
                missed.append(told(way))
        print(line)
    for words in (1, 4):
        took = more_seconds(found, Way(0.002, words), SAMPLED)
        as_charged = (1 + words) * SWITCH_SECONDS
        print(f"{words} words beside samples: {1e6 * took:.2f} us, charged {1e6 * as_charged:.2f}")
        if not is_near(as_charged, took, WORDS_FACTOR):
            missed.append(f"{words} words")
    figures = [
        way._asdict()
        | {
            "seconds": statistics.median(found[way]),
            "more_seconds": more_seconds(found, way, ALONE),
        }
        for way in WAYS
    ]
    return finish(args.json, figures, missed)


def is_near(as_charged: float, took: float, factor: float) -> bool:
    """Whether a charge is right, but for noise."""
    return (as_charged - NOISE_SECONDS) / factor <= took <= as_charged * factor + NOISE_SECONDS


if __name__ == "__main__":
    sys.exit(main())
