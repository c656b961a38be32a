"""What holds and the end of memsampd at any moment do to a program that checks itself.

usage: python benchmarks/replica_harm.py [--quick] [--kills N] [--holds N] [--hostile SECONDS]
                                         [--seed N] [--json FILE]

kills    memsampd killed (SIGKILL) at random moments while it observes: nothing may be left of it.
holds    so many holds of one program, attaching anew now and then.
hostile  programs that write over all that they can reach, for so long, in ways drawn at random.

Goal: every result right; no tracer, stop, descriptor, child or mapping left, in the target or here;
neither memsampd nor a hostile target ends before it is told to.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memsampd.errors import CaptureError
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.source import ReplicaSource
from programs.hostility import ALL_WAYS, WAYS, area_of, compiled_hostile, harm
from programs.observing import attacker, traces_left, wait_until_clean
from programs.preparing import compiled
from programs.running import FOLDER
from verdict import add_options, finish

# By what is done: how often, or for how many seconds.
AMOUNTS = {"kills": 200, "holds": 10_000, "hostile": 600.0}
QUICK_AMOUNTS = {"kills": 20, "holds": 1000, "hostile": 30.0}
KILL_WITHIN_SECONDS = 0.5
HOLDS_AN_ATTACH = 50
ACCESSES = 20_000
ENOUGH_PROBLEMS = 10


@contextmanager
def checked() -> Iterator[subprocess.Popen[bytes]]:
    """A program that compares its registers and memory with what they should be, round by round."""
    program = compiled(FOLDER, "checksum.c", "checksum", ("gcc", "-O1"))
    process = subprocess.Popen([str(program)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def verdict(process: subprocess.Popen[bytes]) -> list[str]:
    """What is wrong with it, and with us, at its end."""
    problems = [f"left: {text}" for text in wait_until_clean(process.pid)]
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    answer = process.stdout.read().decode().strip()
    if process.wait() != 0 or answer != "right":
        problems.append(f"the program says {answer!r}, status {process.returncode}")
    return problems


Done = tuple[dict[str, float], list[str]]
"""Figures, and what was wrong."""


def kills(number: int, order: random.Random) -> Done:
    """Kill observers."""
    problems = []
    with checked() as process:
        for round_number in range(number):
            with attacker(process.pid, 100_000) as observer:
                time.sleep(order.uniform(0, KILL_WITHIN_SECONDS))
                observer.kill()
            if left := wait_until_clean(process.pid):
                problems.append(f"kill {round_number} left {left}")
        problems += verdict(process)
    print(f"kills: {number}", flush=True)
    return {"kills": number}, problems


def footprint() -> tuple[int, int]:
    """Descriptors and children of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return len(os.listdir("/proc/self/fd")), len(children)


def holds(number: int) -> Done:
    """Hold it over and over, attaching anew now and then."""
    done, refused = 0, 0
    longest_seconds = held_seconds = 0.0
    before = footprint()
    with checked() as process:
        while done < number:
            source = ReplicaSource(process.pid)
            for _ in range(HOLDS_AN_ATTACH):
                with suppress(CaptureError):
                    cost = source.capture(BurstRequest(process.pid, ACCESSES)).cost
                    done += cost.stops
                    held_seconds += cost.stop_seconds
                    longest_seconds = max(longest_seconds, cost.longest_stop_seconds)
                    continue
                refused += 1
            source.close()
        problems = [f"left while it runs: {text}" for text in traces_left(process.pid)]
        problems += verdict(process)
    if footprint() != before:
        problems.append(f"descriptors and children: {before} before, {footprint()} after")
    print(
        f"holds: {done}, {1e6 * held_seconds / done:.0f} us in the mean, "
        f"{1e3 * longest_seconds:.1f} ms at most; {refused} refused",
        flush=True,
    )
    figures = {"held_seconds": held_seconds, "longest_seconds": longest_seconds}
    return {"holds": done, "refused": refused, **figures}, problems


def hostile(seconds: float, order: random.Random) -> Done:
    """Observe hostile programs, each way as often as the others."""
    program = compiled_hostile(FOLDER)
    area, end = area_of(program), time.monotonic() + seconds
    problems: list[str] = []
    ends: Counter[str] = Counter()
    rounds = 0
    ways: list[int] = []
    while time.monotonic() < end and len(problems) < ENOUGH_PROBLEMS:
        if not ways:
            ways = [*range(WAYS), *[ALL_WAYS] * 5]
            order.shuffle(ways)
        way, seed, bursts = ways.pop(), order.randrange(1 << 32), order.randrange(10, 120)
        told, wrong = harm(program, area, way, bursts, seed)
        ends.update(told)
        problems += [f"way {way}, seed {seed}, {bursts} bursts: {text}" for text in wrong]
        rounds += 1
    kinds = ", ".join(f"{name} {count}" for name, count in ends.most_common())
    print(f"hostile: {rounds} targets, {ends.total()} bursts: {kinds}", flush=True)
    return {"targets": rounds, **ends}, problems


def main() -> int:
    """Do all that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add_options(parser, "fewer kills and holds, half a minute of hostile programs")
    parser.add_argument("--kills", type=int, metavar="N")
    parser.add_argument("--holds", type=int, metavar="N")
    parser.add_argument("--hostile", type=float, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of all that is drawn")
    args = parser.parse_args()
    amounts = dict(QUICK_AMOUNTS if args.quick else AMOUNTS)
    amounts |= {name: asked for name in amounts if (asked := vars(args)[name]) is not None}
    parts: dict[str, Callable[[], Done]] = {
        "holds": lambda: holds(int(amounts["holds"])),
        "kills": lambda: kills(int(amounts["kills"]), random.Random(args.seed)),
        "hostile": lambda: hostile(amounts["hostile"], random.Random(args.seed)),
    }
    told, problems = {}, []
    for name, do in parts.items():
        if amounts[name]:
            told[name], wrong = do()
            problems += wrong
    return finish(args.json, told, problems)


if __name__ == "__main__":
    sys.exit(main())
