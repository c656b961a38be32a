"""How soon ``memsampd attach`` answers for servers under load, and for a program of 12 GB.

usage: python benchmarks/server_answers.py [--quick] [--busy] [--seconds S] [--only NAME...]
                                           [--json FILE] [--memsampd PATH] [--other PATH]

Each target is warm and fully loaded when memsampd is started. From the metrics that it serves: when
there was a first number (a band at L1d that leaves at most half open), when the bands at L1d and L2
had become at most 2 points wide for good, and what they were at the end.

Goals: a first number within 2 s of the start of memsampd, both bands at most 2 points wide within
30 s. Exit status 1 if one is missed. The other installation is measured, not judged.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """

    first_seconds: float | None
    settled_seconds: float | None
    last: Answer
    own_cpu_seconds: float
    said: str

    def missed(self) -> list[str]:
        """Return what is not as it is to be."""
        found = []
        if self.first_seconds is None or self.first_seconds > GOAL_FIRST_SECONDS:
            found.append("first number")
        if self.settled_seconds is None or self.settled_seconds > GOAL_SECONDS:
            found.append("bands")
        return found


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


def outcome_of(observation: Observation) -> Outcome:
    """Sum up an observation that has ended."""
    assert observation.usage is not None
    return Outcome(
        first_seconds(observation.answers),
        settled_seconds(observation.answers),
        observation.last,
        observation.usage.cpu_seconds,
        observation.said,
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
        return outcome_of(observation)


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
    missed = outcome.missed()
    return (
        f"{name:9} {installation:9} first number {moment(outcome.first_seconds):>6}, narrow "
        f"{moment(outcome.settled_seconds):>6}, {', '.join(map(band, LEVELS))}, "
        f"{last.bursts} bursts of {each:,.0f}, own CPU {outcome.own_cpu_seconds:.1f} s"
        + (f", not possible: {refused}" if refused else "")
        + (f"  MISSED: {', '.join(missed)}" if missed else "")
    )


NAMES = (*(server.name for server in SERVERS), HUGE)


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    read = options.parser(__doc__, NAMES, "small targets, 10 s")
    read.add_argument("--seconds", type=float, metavar="S", help="how long to observe")
    return read


def main(argv: list[str] | None = None) -> int:
    """Measure, print, judge."""
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends with us
    installations = options.installations(args)
    seconds = args.seconds or (10.0 if args.quick else GOAL_SECONDS + 4)
    found: dict[str, Any] = {}
    missed: list[str] = []
    with every_cpu_busy(args.busy):
        for name in args.only or NAMES:
            for installation, memsampd in installations.items():
                try:
                    outcome = measure(name, memsampd, seconds, args.quick)
                except LaunchError as error:
                    print(f"{name:9} {installation:9} {error}", flush=True)
                    missed += [f"{name}: {error}"] if installation == "memsampd" else []
                    continue
                print(line_of(name, installation, outcome), flush=True)
                if installation == "memsampd":
                    missed += [f"{name}: {what}" for what in outcome.missed()]
                found.setdefault(name, {})[installation] = outcome
    return finish(args.json, {"busy": args.busy, "targets": found}, missed)


if __name__ == "__main__":
    sys.exit(main())
