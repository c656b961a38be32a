"""What a target loses while words of its memory are watched, if it copies much.

Some CPUs move lines by ``rep movs`` and ``rep stos``, but bytes while a thread has a data
breakpoint, wherever that is: in ``memcpy``, in system calls that copy, in page faults. A program
(``programs/sources/copier.c``) looks up words of a large table, so that there are long distances
to be measured, and copies memory in one of these ways beside that. Its rounds a CPU second: alone,
with one breakpoint all the time on a word that it does not touch, and while ``memsampd attach``
observes it, in turns; medians of ratios.

Goal: while it is observed it is at most 5 % slower than alone, whatever it copies. Exit status 1 if
that is missed. Run: ``python benchmarks/watch_cost.py [--quick] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from memsampd import _core
from memsampd.sampler.perf.watching_cost import WatchingCost
from memsampd.sampler.process.maps import read_maps
from targets.agent import observing
from targets.launching import compiled_c
from verdict import add_options, finish

MEMSAMPD = Path(sys.executable).with_name("memsampd")
WAYS = ("none", "memcpy", "read", "fault")
ROUNDS, QUICK_ROUNDS = 5, 2
TURN_SECONDS, START_SECONDS = 5.0, 2.0
MOST_LOST = 0.05


class Lost(msgspec.Struct, frozen=True):
    """What one way of copying loses.

    Attributes:
        way: which.
        watched: share of its pace lost with a breakpoint, median.
        observed: the same while memsampd observes it.
        charged: what memsampd says that it cost, share of the target's CPU time, median.
    """

    way: str
    watched: float
    observed: float
    charged: float


@contextmanager
def copier(way: str) -> Iterator[tuple[int, Callable[[float], float]]]:
    """The program: its process id, and what has it work for some seconds and tells its pace."""
    command = [str(compiled_c("copier")), way]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        told, tells = process.stdin, process.stdout
        assert told is not None
        assert tells is not None

        def work(seconds: float) -> float:
            told.write(f"{seconds}\n")
            told.flush()
            return float(tells.readline())

        yield int(tells.readline()), work
        told.close()


def untouched_word(pid: int) -> tuple[int, int]:
    """A word at the far end of its stack."""
    begin = next(each.start for each in read_maps(pid).mappings if each.path == "[stack]")
    return _core.BREAKPOINT_ACCESS, begin + 64


def measure(way: str, rounds: int) -> Lost:
    """Compare, in turns."""
    watched, observed, charged = [], [], []
    with copier(way) as (pid, work):
        work(START_SECONDS)
        for _ in range(rounds):
            alone = work(TURN_SECONDS)
            with closing(_core.Breakpoints(pid, [untouched_word(pid)], 1)) as points:
                points.arm()
                watched.append(1 - work(TURN_SECONDS) / alone)
            with observing(MEMSAMPD, pid) as observation:
                work(START_SECONDS)
                pace = work(TURN_SECONDS)
            observed.append(1 - pace / alone)
            charged.append(observation.last.charged_share or 0.0)
    return Lost(way, *map(statistics.median, (watched, observed, charged)))


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what watching words costs a target.")
    add_options(parser, "fewer rounds")
    args = parser.parse_args()
    cost = WatchingCost.measure()
    more_ns = 1e9 * cost.repeat_seconds
    print(f"a copied byte takes {cost.times:.1f} times as long: {more_ns:.2f} ns more", flush=True)
    figures, missed = [], []
    for way in WAYS:
        lost = measure(way, QUICK_ROUNDS if args.quick else ROUNDS)
        figures.append(lost)
        print(
            f"{way:8} slower by {100 * lost.watched:5.1f} % with a breakpoint, "
            f"by {100 * lost.observed:5.1f} % while observed (charged {100 * lost.charged:.2f} %)",
            flush=True,
        )
        if lost.observed > MOST_LOST:
            missed.append(f"{way}: {100 * lost.observed:.1f} % slower while observed")
    return finish(args.json, [msgspec.to_builtins(each) for each in figures], missed)


if __name__ == "__main__":
    sys.exit(main())
