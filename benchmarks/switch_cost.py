"""What perf events take when a thread is switched to and away from, though none of them fires.

Two processes on one CPU wake each other (``programs/sources/ping_pong.c``). The CPU time of both a
round, with events on one of them, less that without: medians of rounds taken in turn.

Goal: what watches are charged for a switch (``SWITCH_SECONDS``) is within a factor of 3 of what it
takes here, beside sampling. Exit status 1 if it is missed.
Run: ``python benchmarks/switch_cost.py [--quick] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack, closing
from pathlib import Path

from memsampd import _core
from memsampd.sampler.perf.source import TaskClockSource
from memsampd.sampler.perf.watchpoints import SWITCH_SECONDS
from memsampd.sampler.process.maps import read_maps
from programs.preparing import compiled

# Seconds between samples, 0: none; words that are watched.
WAYS = ((0.0, 0), (0.002, 0), (0.004, 0), (0.01, 0), (0.02, 0), (0.0, 4), (0.002, 1), (0.002, 4))
TURNS, QUICK_TURNS = 40, 12
ROUNDS = 4000
FACTOR = 3.0


def words_of(pid: int, count: int) -> list[tuple[int, int]]:
    """Words at the far end of a stack, which nobody touches."""
    begin = next(each.start for each in read_maps(pid).mappings if each.path == "[stack]")
    return [(_core.BREAKPOINT_ACCESS, begin + 64 * each) for each in range(count)]


def measure(folder: Path, turns: int) -> dict[tuple[float, int], float]:
    """Seconds of CPU time a round."""
    program = compiled(folder, "ping_pong.c", "ping_pong", ("cc", "-O2"))
    found: dict[tuple[float, int], list[float]] = defaultdict(list)
    with subprocess.Popen(
        [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        for _ in range(turns):
            for period_seconds, words in WAYS:
                with ExitStack() as stack:
                    if period_seconds:
                        source = TaskClockSource(pid, period_seconds=period_seconds)
                        stack.enter_context(closing(source))
                    if words:
                        points = _core.Breakpoints(pid, words_of(pid, words), 1)
                        stack.enter_context(closing(points))
                        points.arm()
                    process.stdin.write(f"{ROUNDS}\n")
                    process.stdin.flush()
                    took = float(process.stdout.readline())
                found[period_seconds, words].append(took * 1e-9)
        process.stdin.close()
    return {way: statistics.median(each) for way, each in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what events take at switches.")
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memsampd-switch-") as folder:
        found = measure(Path(folder), QUICK_TURNS if args.quick else TURNS)
    alone = found[0.0, 0]
    print(f"two switches to and away, alone: {1e6 * alone:.2f} us")
    for (period_seconds, words), took in found.items():
        what = f"a sample every {1e3 * period_seconds:.0f} ms, " if period_seconds else ""
        print(f"{what}{words} words watched: {1e6 * (took - alone):+.2f} us")
    sampled = found[0.002, 0]
    missed = []
    for words in (1, 4):
        took = found[0.002, words] - sampled
        charged = (1 + words) * SWITCH_SECONDS
        print(f"{words} words beside samples: {1e6 * took:.2f} us, charged {1e6 * charged:.2f}")
        if not charged / FACTOR <= took <= charged * FACTOR:
            missed.append(words)
    if args.json:
        told = [{"period_seconds": p, "words": w, "seconds": s} for (p, w), s in found.items()]
        args.json.write_text(json.dumps(told, indent=1))
    print("MISSED" if missed else "the goal is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
