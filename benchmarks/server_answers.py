"""How soon ``memsampd attach`` answers for servers under load, and for a program of 12 GB.

usage: python benchmarks/server_answers.py [--quick] [--busy] [--seconds S] [--rounds N]
                                           [--only NAME...] [--json FILE] [--memsampd PATH]
                                           [--other PATH]

Each target is warm and fully loaded when memsampd is started. From the metrics that it serves: when
there was a first number (a band at L1d that leaves at most half open), when the bands at L1d and L2
had become at most 2 points wide for good, and what they were at the end. With --quick the program
of 12 GB has 512 MiB.

Goals, for medians over rounds: a first number within 2 s of the start of memsampd, both bands at
most 2 points wide within 30 s (who observes for less is not judged by bands that are not there
yet). Exit status 1 if one is missed. The other installation is measured, not judged.
"""

from __future__ import annotations

import argparse
import itertools
import math
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from programs.workload import environment
from targets import options
from targets.agent import Answer, Observation, first_seconds, observing
from targets.launching import (
    LaunchError,
    available_bytes,
    every_cpu_busy,
    launched,
    read_memory_bytes,
)
from targets.programs import MIB, endless_spread
from targets.servers import SERVERS, Start
from verdict import finish

GOAL_FIRST_SECONDS = 2.0
GOAL_SECONDS = 30.0
GOAL_WIDTH = 0.02
LEVELS = ("L1d", "L2")
WARM_SECONDS = 4.0
POLL_SECONDS = 1.0
HUGE = "random12"
HUGE_MIB, QUICK_HUGE_MIB = 12288, 512
SPARE_BYTES = 1 << 30
_FILL_SECONDS = 120.0

# A loaded target: its process, and what keeps it loaded for some seconds.
Loaded = tuple[int, Callable[[float], object]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of memsampd told of one target.

    Attributes:
        first_seconds: when there was a first number; None: never.
        settled_seconds: from when on the bands were narrow enough; None: never.
        last: what it said last.
        own_cpu_seconds: what its processes used.
        said: the end of what it told people.
        observed_seconds: for which the target was observed.
    """

    first_seconds: float | None
    settled_seconds: float | None
    last: Answer
    own_cpu_seconds: float
    said: str
    observed_seconds: float


def missed(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what is not as it is to be, in the median of a target's runs; nothing of none."""
    if not outcomes:
        return []
    first, settled = (
        statistics.median(math.inf if each is None else each for each in moments)
        for moments in (
            [each.first_seconds for each in outcomes],
            [each.settled_seconds for each in outcomes],
        )
    )
    # What is not narrow yet may be within the goal.
    is_early = settled == math.inf and any(e.observed_seconds < GOAL_SECONDS for e in outcomes)
    found = ["first number"] if first > GOAL_FIRST_SECONDS else []
    return [*found, "bands"] if settled > GOAL_SECONDS and not is_early else found


def settled_seconds(answers: Sequence[Answer], widest: float = GOAL_WIDTH) -> float | None:
    """Return from when on the bands at all levels were at most so wide; None: not at the end."""
    since = None
    for answer in answers:
        widths = [answer.width(level) for level in LEVELS]
        if any(width is None or width > widest for width in widths):
            since = None
        elif since is None:
            since = answer.seconds
    return since


def outcome_of(observation: Observation, seconds: float) -> Outcome:
    """Sum up an observation of so many seconds that has ended."""
    assert observation.usage is not None
    return Outcome(
        first_seconds(observation.answers),
        settled_seconds(observation.answers),
        observation.last,
        observation.usage.cpu_seconds,
        observation.said,
        seconds,
    )


@contextmanager
def loaded(name: str, quick: bool) -> Iterator[Loaded]:
    """Run a target until it is warm.

    Raises:
        LaunchError: it cannot be had here.
    """
    if name == HUGE:
        with _huge(QUICK_HUGE_MIB if quick else HUGE_MIB) as pid:
            yield pid, time.sleep
        return
    server = next(each for each in SERVERS if each.name == name)
    if why := server.lacks():
        raise LaunchError(why)
    with server.started(Start(quick)) as served:
        served.client.ask(WARM_SECONDS)
        yield served.pid, served.client.ask


@contextmanager
def _huge(mib: int) -> Iterator[int]:
    if mib * MIB + SPARE_BYTES > available_bytes():
        raise LaunchError(f"needs {mib} MiB of memory")
    with launched(endless_spread(mib), environment()) as program:
        give_up = time.monotonic() + _FILL_SECONDS
        while read_memory_bytes(program.pid, "VmRSS") < mib * MIB:
            if time.monotonic() > give_up:
                raise LaunchError("does not fill its memory")
            time.sleep(0.05)
        yield program.pid


def measure(name: str, memsampd: Path, seconds: float, quick: bool) -> Outcome:
    """Observe a target that has just become warm.

    Raises:
        LaunchError: it, or memsampd, failed.
    """
    with loaded(name, quick) as (pid, load):
        with observing(memsampd, pid, POLL_SECONDS) as observation:
            load(seconds)
        return outcome_of(observation, seconds)


def line_of(name: str, installation: str, outcome: Outcome) -> str:
    """Return what is told of one target."""

    def moment(seconds: float | None) -> str:
        return "never" if seconds is None else f"{seconds:.1f} s"

    def band(level: str) -> str:
        known = outcome.last.bands.get(level)
        return f"{level} " + (f"{known[0]:.2%}..{known[1]:.2%}" if known else "unknown")

    last = outcome.last
    each = last.sampled_accesses / last.bursts if last.bursts else 0
    refused = ", ".join(f"{reason} {n}" for reason, n in sorted(last.errors.items()))
    missed_here = missed([outcome])
    return (
        f"{name:9} {installation:9} first number {moment(outcome.first_seconds):>6}, narrow "
        f"{moment(outcome.settled_seconds):>6}, {', '.join(map(band, LEVELS))}, "
        f"{last.bursts} bursts of {each:,.0f}, own CPU {outcome.own_cpu_seconds:.1f} s"
        + (f", not possible: {refused}" if refused else "")
        + (f"  MISSED: {', '.join(missed_here)}" if missed_here else "")
    )


NAMES = (*(server.name for server in SERVERS), HUGE)


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    read = options.parser(__doc__, NAMES, "small targets, 10 s")
    read.add_argument("--seconds", type=float, metavar="S", help="how long to observe")
    read.add_argument("--rounds", type=int, metavar="N", default=1, help="runs of each target")
    return read


def main(argv: list[str] | None = None) -> int:
    """Measure, print, judge."""
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends with us
    installations = options.installations(args)
    seconds = args.seconds or (10.0 if args.quick else GOAL_SECONDS + 4)
    found: dict[str, dict[str, list[Outcome]]] = {}
    problems: list[str] = []
    with every_cpu_busy(args.busy):
        turns = itertools.product(range(args.rounds), args.only or NAMES, installations.items())
        for _, name, (installation, memsampd) in turns:
            title = title_of(name, args.quick)
            try:
                outcome = measure(name, memsampd, seconds, args.quick)
            except LaunchError as error:
                print(f"{title:9} {installation:9} {error}", flush=True)
                problems += [f"{title}: {error}"] if installation == "memsampd" else []
                continue
            print(line_of(title, installation, outcome), flush=True)
            found.setdefault(title, {}).setdefault(installation, []).append(outcome)
    told = [
        f"{title}: {what}"
        for title, outcomes in found.items()
        for what in missed(outcomes.get("memsampd", []))
    ]
    return finish(args.json, {"busy": args.busy, "targets": found}, problems + told)


def title_of(name: str, quick: bool) -> str:
    """Return what is told of a target: its name, and its size where that is not what it says."""
    return f"{name} ({QUICK_HUGE_MIB} MiB)" if quick and name == HUGE else name


if __name__ == "__main__":
    sys.exit(main())
