"""What a target loses while words of its memory are watched, if it copies much.

Some CPUs move lines by ``rep movs`` and ``rep stos``, but bytes while a thread has a data
breakpoint, wherever that is: in ``memcpy``, in system calls that copy, in page faults. A program
(``programs/sources/copier.c``) looks up words of a large table, so that there are long distances
to be measured, and copies memory in one of these ways beside that. Its rounds a CPU second: alone,
with one breakpoint all the time on a word that it does not touch, and while ``memsampd attach``
observes it, in turns, each round beginning with another one; medians of ratios.

Goals: while it is observed, with a burst at least, it is at most 5 % slower than alone, whatever it
copies. Exit status 1 if one is missed.
Run: ``python benchmarks/watch_cost.py [--quick] [--json FILE] [--other PATH]``.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from memsampd import _core
from memsampd.sampler.perf.watching_cost import WatchingCost
from switch_cost import words_of
from targets import options
from targets.agent import observing
from targets.comparing import ALONE
from targets.launching import compiled_c, every_cpu_busy
from verdict import finish

WAYS = ("none", "memcpy", "read", "fault")
ROUNDS, QUICK_ROUNDS = 5, 2
TURN_SECONDS, START_SECONDS = 5.0, 2.0
MOST_LOST = 0.05
WATCHED = "with a breakpoint"


class Lost(msgspec.Struct, frozen=True):
    """What one way of copying loses, shares of its pace, medians.

    Attributes:
        way: which.
        watched: with a breakpoint.
        observed: while it is observed, by installation.
        charged: what that said that it cost, share of the target's CPU time, by installation.
        bursts: that it took, by installation.
    """

    way: str
    watched: float
    observed: dict[str, float]
    charged: dict[str, float]
    bursts: dict[str, float]

    def missed(self) -> list[str]:
        """Goals that memsampd misses."""
        found = []
        if not self.observed["memsampd"] <= MOST_LOST:
            found.append(f"{self.way}: {100 * self.observed['memsampd']:.1f} % slower")
        if self.bursts["memsampd"] < 1:
            found.append(f"{self.way}: nothing was observed")
        return found


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


def measure(way: str, rounds: int, installations: dict[str, Path]) -> Lost:
    """Compare, in turns."""
    lost: dict[str, list[float]] = defaultdict(list)
    charged: dict[str, list[float]] = defaultdict(list)
    bursts: dict[str, list[float]] = defaultdict(list)
    with copier(way) as (pid, work):
        work(START_SECONDS)
        ways = [(ALONE, None), (WATCHED, None), *installations.items()]
        for number in range(rounds):
            paces: dict[str, float] = {}
            for name, memsampd in options.rotated(ways, number):
                if name == WATCHED:
                    with closing(_core.Breakpoints(pid, words_of(pid, 1), 1)) as points:
                        points.arm()
                        paces[name] = work(TURN_SECONDS)
                elif memsampd is None:
                    paces[name] = work(TURN_SECONDS)
                else:
                    with observing(memsampd, pid) as observation:
                        work(START_SECONDS)
                        paces[name] = work(TURN_SECONDS)
                    charged[name].append(observation.last.charged_share or 0.0)
                    bursts[name].append(observation.last.bursts)
            for name, pace in paces.items():
                lost[name].append(1 - pace / paces[ALONE])
    observed = {name: lost[name] for name in installations}
    watched = statistics.median(lost[WATCHED])
    return Lost(way, watched, medians(observed), medians(charged), medians(bursts))


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
            missed += lost.missed()
    return finish(args.json, [msgspec.to_builtins(each) for each in figures], missed)


if __name__ == "__main__":
    sys.exit(main())
