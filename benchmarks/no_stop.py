"""Accesses without a stop: what they cost a server, and how far the curves are from exact ones.

usage: python benchmarks/no_stop.py [--quick] [--only PART...] [--rounds N] [--json FILE]
                                    [--memsampd PATH]

- ``redis``: under load, in rounds, each in changing order: alone, observed with
  ``--accesses watchpoints``, observed with bursts. Throughput as fast as can be, and the times to
  an answer at a quarter of that. Compared within a round; medians over rounds.
- ``calls``: ``strace -f`` of memsampd while it observes redis: its calls of ptrace.
- ``loops``: loops whose lines all return after the same distance: the size at which the misses
  have become half as many, against the exact one.

Whole runs of programs with exact references are judged by the experiment ``sources`` of the
evaluation (docs/evaluation.md).

Goals, without a stop: p99.9 at most 1 ms later and throughput at most 3 % less, with a walk or
burst at least; no call of ptrace by a memsampd that opened events and ended well; the size of a
loop from 1 MiB on within 30 %. Exit status 1 if one is missed.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from long_distances import LINE_BYTES, build, looping
from memsampd.exporters.analysis import analyse
from memsampd.exporters.recording import Recording, read_recording
from programs.workload import find_program
from targets.agent import observing
from targets.launching import LaunchError
from targets.options import rotated
from targets.servers import SERVERS, Load, Server, Start
from verdict import add_options, finish

WATCHPOINTS = ("--accesses", "watchpoints")
WAYS: dict[str, tuple[str, ...] | None] = {
    "alone": None,
    "watchpoints": WATCHPOINTS,
    "bursts": ("--accesses", "bursts"),
}
ROUNDS, QUICK_ROUNDS = 10, 3
# In the first ten seconds memsampd may use a second of CPU time at once.
LEAD_IN_SECONDS, QUICK_LEAD_IN_SECONDS = 12.0, 2.0
SECONDS, QUICK_SECONDS = 4.0, 3.0
PACED_SHARE = 0.25
LOOPS = ((1_000, 0), (10_000, 0), (100_000, 0), (1_000_000, 0), (1_000_000, 9))
QUICK_LOOPS = LOOPS[1:4]
LOOP_SECONDS = 12.0
# Goals.
LATER_SECONDS, LOSS = 0.001, 0.03
KNEE_FROM_BYTES, KNEE_ERROR = 1 << 20, 30.0
PARTS = ("redis", "calls", "loops")


# -- a server ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Served:
    """One turn: as fast as can be, and at a quarter of that; bursts or walks that were taken."""

    rate: float
    p50_seconds: float
    p99_seconds: float
    p999_seconds: float
    worst_seconds: float
    bursts: int = 0


def redis_server() -> Server:
    """Return the server.

    Raises:
        LaunchError: it is not installed.
    """
    redis = next(each for each in SERVERS if each.name == "redis")
    if why := redis.lacks():
        raise LaunchError(why)
    return redis


def measure_redis(
    memsampd: Path, rounds: int, seconds: float, lead_in_seconds: float
) -> list[dict[str, Served]]:
    """Ask a server in turns, each round beginning with another way.

    Raises:
        LaunchError: it, or memsampd, failed.
    """
    found: list[dict[str, Served]] = []
    with redis_server().started(Start(is_small=True)) as served:
        calm = served.client.ask(lead_in_seconds).rate * PACED_SHARE
        for number in range(rounds):
            turn = {}
            for name, options in rotated(list(WAYS.items()), number):
                watching = (
                    nullcontext()
                    if options is None
                    else observing(memsampd, served.pid, options=options)
                )
                with watching as observation:
                    served.client.ask(lead_in_seconds)
                    fast = served.client.ask(seconds)
                    paced = served.client.ask(seconds, calm)
                turn[name] = _served(fast, paced, observation.last.bursts if observation else 0)
            found.append(turn)
            told = "  ".join(_line(*each) for each in turn.items())
            print(f"round {number}: {told}", flush=True)
    return found


def _served(fast: Load, paced: Load, bursts: int) -> Served:
    return Served(
        fast.rate,
        paced.p50_seconds,
        paced.p99_seconds,
        paced.p999_seconds,
        paced.worst_seconds,
        bursts,
    )


def _line(name: str, told: Served) -> str:
    return f"{name} {told.rate:,.0f}/s, p99.9 {1e3 * told.p999_seconds:.2f} ms;"


def judge_redis(rounds: Sequence[dict[str, Served]]) -> list[str]:
    """Print the comparison; which goals are missed."""
    missed = []
    for way in ("watchpoints", "bursts"):
        pairs = [(each["alone"], each[way]) for each in rounds]
        loss = statistics.median(1 - other.rate / alone.rate for alone, other in pairs)
        later = {
            name: statistics.median(getattr(b, name) - getattr(a, name) for a, b in pairs)
            for name in ("p50_seconds", "p99_seconds", "p999_seconds", "worst_seconds")
        }
        print(
            f"redis, {way}: throughput {-100 * loss:+.1f} %  "
            + "  ".join(f"{name[:-8]} {1e3 * value:+.3f} ms" for name, value in later.items())
        )
        if way == "watchpoints" and later["p999_seconds"] > LATER_SECONDS:
            missed.append("p99.9")
        if way == "watchpoints" and loss > LOSS:
            missed.append("throughput")
        if statistics.median(other.bursts for _, other in pairs) < 1:
            missed.append(f"{way}: nothing was observed")
    return missed


def count_calls(memsampd: Path, folder: Path) -> int:
    """Calls of ptrace while redis is observed.

    Raises:
        LaunchError: it, or memsampd, failed.
    """
    with redis_server().started(Start(is_small=True)) as served:
        command = attach_command(memsampd, served.pid, "--duration", "5")
        return traced_calls(command, folder, lambda: served.client.ask(0.5))


def attach_command(memsampd: Path, pid: int, *options: str) -> list[str]:
    """Return the command that observes a process without a stop."""
    return [str(memsampd), "attach", str(pid), "--no-listen", *options, *WATCHPOINTS]


def traced_calls(command: Sequence[str], folder: Path, meanwhile: Callable[[], object]) -> int:
    """Count calls of ptrace by a command, which is to observe something.

    Args:
        command: it.
        folder: for what it says.
        meanwhile: done again and again until it ends.

    Raises:
        LaunchError: it failed, or opened no event: then it observed nothing.
    """
    if find_program("strace") is None:
        raise LaunchError("not installed: apt-get install strace")
    log, said = folder / "calls", folder / "said"
    strace = ["strace", "-f", "-qq", "-e", "trace=ptrace,perf_event_open", "-o", str(log)]
    with (
        said.open("wb") as to,
        subprocess.Popen([*strace, *command], stdout=subprocess.DEVNULL, stderr=to) as process,
    ):
        while process.poll() is None:
            meanwhile()
    if process.returncode:
        text = said.read_text(errors="replace").strip()
        raise LaunchError(f"status {process.returncode} of {command[0]}: {text[-500:]}")
    calls = log.read_text()
    if not re.search(r"\bperf_event_open\b.*= \d+$", calls, re.MULTILINE):
        raise LaunchError(f"{command[0]} observed nothing")
    return calls.count("ptrace(")


# -- loops ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Knee:
    """The size at which the misses of a loop have become half as many; bytes, percent."""

    lines: int
    near: int
    exact_bytes: int
    told_bytes: float
    error: float


def measure_loops(memsampd: Path, loops: Sequence[tuple[int, int]], folder: Path) -> list[Knee]:
    """Observe each loop for a while.

    Raises:
        LaunchError: memsampd failed.
    """
    program, found = build(folder), []
    for lines, near in loops:
        path = folder / f"loop-{lines}-{near}.mem"
        with looping(program, lines, near) as (pid, _, _):
            time.sleep(0.5)
            options = ("--force", "-o", str(path), "--duration", str(LOOP_SECONDS))
            command = attach_command(memsampd, pid, *options)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise LaunchError(f"status {done.returncode} of {memsampd}: {done.stderr.strip()}")
        told_bytes = knee_of(read_recording(path), 1 / (near + 1))
        exact_bytes = lines * LINE_BYTES
        found.append(
            Knee(lines, near, exact_bytes, told_bytes, 100 * (told_bytes / exact_bytes - 1))
        )
        print(
            f"loop over {exact_bytes / 1024:10,.0f} KiB, {near} near: "
            f"{told_bytes / 1024:10,.0f} KiB  {found[-1].error:+.0f} %",
            flush=True,
        )
    return found


def knee_of(recording: Recording, most: float) -> float:
    """The size at which the miss ratio has come down to half of what it is for small caches."""
    sizes = (2 ** np.arange(13, 28, 1 / 32)).astype(np.int64) // LINE_BYTES * LINE_BYTES
    curve = analyse(recording, "lru", sizes).overall
    if curve is None:
        return float("nan")
    return float(sizes[int(np.argmax(curve.miss_ratio < most / 2))])


# -- parts ---------------------------------------------------------------------------------------


def part_redis(args: argparse.Namespace, folder: Path) -> tuple[object, list[str]]:
    """Measure and judge a server; what was found, and what is missed."""
    rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    seconds = QUICK_SECONDS if args.quick else SECONDS
    lead_in_seconds = QUICK_LEAD_IN_SECONDS if args.quick else LEAD_IN_SECONDS
    served = measure_redis(args.memsampd, rounds, seconds, lead_in_seconds)
    return served, judge_redis(served)


def part_calls(args: argparse.Namespace, folder: Path) -> tuple[object, list[str]]:
    """Count calls of ptrace; how many, and what is missed."""
    calls = count_calls(args.memsampd, folder)
    print(f"calls of ptrace: {calls}")
    return calls, ["ptrace"] if calls else []


def part_loops(args: argparse.Namespace, folder: Path) -> tuple[object, list[str]]:
    """Measure and judge loops; what was found, and what is missed."""
    knees = measure_loops(args.memsampd, QUICK_LOOPS if args.quick else LOOPS, folder)
    far = [each for each in knees if each.exact_bytes >= KNEE_FROM_BYTES]
    return knees, ["loops"] if any(not abs(each.error) <= KNEE_ERROR for each in far) else []


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure accesses without a stop.")
    add_options(parser, "three rounds, fewer loops")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--rounds", type=int, metavar="N", help="of redis")
    parser.add_argument(
        "--memsampd", type=Path, default=Path(sys.executable).with_name("memsampd"), metavar="PATH"
    )
    args = parser.parse_args()
    told: dict[str, Any] = {}
    missed: list[str] = []
    parts = {"redis": part_redis, "calls": part_calls, "loops": part_loops}
    with tempfile.TemporaryDirectory(prefix="memsampd-no-stop-") as temporary:
        folder = Path(temporary)
        for name in args.only:
            try:
                told[name], missed_here = parts[name](args, folder)
            except LaunchError as error:
                told[name], missed_here = None, [f"{name}: {error}"]
            missed += missed_here
    return finish(args.json, told, missed)


if __name__ == "__main__":
    sys.exit(main())
