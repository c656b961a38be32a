"""What a target loses while words of its memory are watched, if it copies much.

Some CPUs move lines by ``rep movs`` and ``rep stos``, but bytes while a thread has a data
breakpoint, wherever that is: in ``memcpy``, in system calls that copy, in page faults. A program
(``programs/sources/copier.c``) looks up words of a large table, so that there are long distances
to be measured, and copies memory in one of these ways beside that. Its rounds a CPU second: alone,
with one breakpoint all the time on a word that it does not touch, and while ``memsampd attach``
observes it, in turns; medians of ratios.

Goal: while it is observed it is at most 5 % slower than alone, whatever it copies. Exit status 1 if
that is missed. Run: ``python benchmarks/watch_cost.py [--quick] [--json FILE] [--other PATH]``.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from memsampd import _core
from memsampd.sampler.perf.watching_cost import WatchingCost
from switch_cost import words_of
from targets import options
from targets.agent import observing
from targets.launching import compiled_c, every_cpu_busy
from verdict import finish

WAYS = ("none", "memcpy", "read", "fault")
ROUNDS, QUICK_ROUNDS = 5, 2
TURN_SECONDS, START_SECONDS = 5.0, 2.0
MOST_LOST = 0.05


class Lost(msgspec.Struct, frozen=True):
    """What one way of copying loses, shares of its pace, medians.

    Attributes:
        way: which.
        watched: with a breakpoint.
        observed: while it is observed, by installation.
        charged: what that said that it cost, share of the target's CPU time, by installation.
    """

    way: str
    watched: float
    observed: dict[str, float]
    charged: dict[str, float]


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


def measure(way: str, rounds: int, installations: Mapping[str, Path]) -> Lost:
    """Compare, in turns."""
    watched: list[float] = []
    observed: dict[str, list[float]] = {name: [] for name in installations}
    charged: dict[str, list[float]] = {name: [] for name in installations}
    with copier(way) as (pid, work):
        work(START_SECONDS)
        for _ in range(rounds):
            alone = work(TURN_SECONDS)
            with closing(_core.Breakpoints(pid, words_of(pid, 1), 1)) as points:
                points.arm()
                watched.append(1 - work(TURN_SECONDS) / alone)
            for name, memsampd in installations.items():
                with observing(memsampd, pid) as observation:
                    work(START_SECONDS)
                    observed[name].append(1 - work(TURN_SECONDS) / alone)
                charged[name].append(observation.last.charged_share or 0.0)
    return Lost(way, statistics.median(watched), medians(observed), medians(charged))


def medians(values: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(each) for name, each in values.items()}


def told(lost: Lost) -> str:
    """A line for people."""
    ways = [
        f"by {100 * share:5.1f} % while {name} observes it "
        f"(charged {100 * lost.charged[name]:.2f} %)"
        for name, share in lost.observed.items()
    ]
    slower = f"{lost.way:8} slower by {100 * lost.watched:5.1f} % with a breakpoint"
    return ", ".join([slower, *ways])


def main() -> int:
    args = options.parser(__doc__, WAYS, "fewer rounds").parse_args()
    cost = WatchingCost.measure()
    more_ns = 1e9 * cost.repeat_seconds
    print(f"a copied byte takes {cost.times:.1f} times as long: {more_ns:.2f} ns more", flush=True)
    figures, missed = [], []
    rounds = QUICK_ROUNDS if args.quick else ROUNDS
    with every_cpu_busy(args.busy):
        for way in args.only or WAYS:
            lost = measure(way, rounds, options.installations(args))
            figures.append(lost)
            print(told(lost), flush=True)
            if lost.observed["memsampd"] > MOST_LOST:
                missed.append(f"{way}: {100 * lost.observed['memsampd']:.1f} % slower")
    return finish(args.json, [msgspec.to_builtins(each) for each in figures], missed)


if __name__ == "__main__":
    sys.exit(main())
