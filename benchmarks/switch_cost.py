"""What perf events take when a thread is switched to and away from, though none of them fires.

Two processes on one CPU wake each other (``programs/sources/ping_pong.c``). The CPU time of both a
round, with events on one of them, less that without: medians over turns, each of which begins with
another way, of what is compared within a turn.

Goals: what samples are charged for a switch, as it is measured when a session begins, is within a
factor of 1.5 of what it takes here, all the time and for an eighth of it; what watches are charged
(``SWITCH_SECONDS``) within one of 3, beside sampling. Exit status 1 if one is missed.

Told besides, without a goal: what it takes memsampd to watch another word, by events opened anew,
as it does, and by ``PERF_EVENT_IOC_MODIFY_ATTRIBUTES`` of one that is open and was not hit.
Run: ``python benchmarks/switch_cost.py [--quick] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import fcntl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
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
REARMINGS = 500
SIZE = 128  # of perf_event_attr in the headers that the core was compiled with
MODIFY_ATTRIBUTES = 0x4008240B  # PERF_EVENT_IOC_
# As in open_event and open_point of _core/perf/point_group.c, but for "disabled": it would stay so.
_FLAGS = 1 << 5 | 1 << 6 | 1 << 25 | 1 << 36
_FIELDS = 1 << 16 | 1 << 0 | 1 << 2 | 1 << 4
_CLOCK_MONOTONIC = 1


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
            for way in in_turn(turn):
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


def in_turn(turn: int) -> Sequence[Way]:
    """All ways, in the order of a turn."""
    first = turn % len(WAYS)
    return WAYS[first:] + WAYS[:first]


def more_seconds(found: Mapping[Way, Sequence[float]], way: Way, than: Way) -> float:
    """How much more a round takes in one way than in another: the median over turns."""
    return statistics.median(a - b for a, b in zip(found[way], found[than], strict=True))


def attributes(address: int) -> bytearray:
    """perf_event_attr of a word, as the core opens it: only the address may be another."""
    attr = bytearray(SIZE)
    struct.pack_into("<IIQQQQQII", attr, 0, 5, len(attr), 0, 1, _FIELDS, 8, _FLAGS, 1, 3)
    struct.pack_into("<QQ", attr, 56, address, 8)
    struct.pack_into("<i", attr, 92, _CLOCK_MONOTONIC)
    depth = int(Path("/proc/sys/kernel/perf_event_max_stack").read_text())
    struct.pack_into("<H", attr, 108, depth)  # which the kernel has put there
    return attr


def measure_rearming(folder: Path) -> dict[str, tuple[float, float]]:
    """CPU time and time that one more word to watch takes us, in a thread that sleeps: medians."""
    with ping_pong(folder) as (pid, _, _):
        words = words_of(pid, 2)

        def anew() -> None:
            with closing(_core.Breakpoints(pid, words[:1], 12)) as points:
                points.arm()

        with closing(_core.Breakpoints(pid, words[:1], 12)) as points:
            points.arm()
            event = points.descriptors()[1]
            others = [attributes(address) for _, address in words]

            def modified() -> None:
                others.reverse()
                fcntl.ioctl(event, MODIFY_ATTRIBUTES, others[0])

            found = {"modified": timed(modified)}
        found["opened anew and closed"] = timed(anew)
    return found


def timed(action: Callable[[], None]) -> tuple[float, float]:
    """CPU time of this thread and time, seconds: medians."""
    took = []
    for _ in range(REARMINGS):
        cpu, begin = time.thread_time(), time.monotonic()
        action()
        took.append((time.thread_time() - cpu, time.monotonic() - begin))
    cpus, times = zip(*took, strict=True)
    return statistics.median(cpus), statistics.median(times)


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
        rearmed = measure_rearming(Path(folder))
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
    for how, (cpu, took) in rearmed.items():
        print(f"another word, {how}: {1e6 * cpu:.1f} us of CPU time, in {1e6 * took:.1f} us")
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
