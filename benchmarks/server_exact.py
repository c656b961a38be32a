"""Miss ratios of servers under load against exact ones of the same load.

usage: python benchmarks/server_exact.py [--quick] [--only NAME...] [--json FILE]
                                         [--memsampd PATH] [--other PATH]

A server runs under our valgrind tool (``reference/memtrace``), with the client that loads it as
fast as it answers, and every line that it accesses goes through exact LRU caches of 1 KiB to 64
MiB; those are warm when counting begins. Then it runs by itself, under the same load, and memsampd
observes it. What a request does is the same; how many are answered at once may differ a little.

Goals, at each of the machine's cache levels: at most 1 point apart, by bounds at most 2 points
apart. Exit status 1 if one is missed, or no level is known. The other installation is measured, not
judged.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from memsampd.exporters.analysis import analyse
from memsampd.exporters.curves import at_size
from memsampd.exporters.recording import read_recording
from memsampd.machines.machine import read_machine
from memsampd.models.exact import ExactLru
from memsampd.models.records import MissRatioCurve
from memsampd.models.sizes import format_size
from reference import tracer
from reference.programs import BUILD, environment
from reference.records import LINE_BYTES, Block
from targets import options
from targets.launching import LaunchError
from targets.servers import SERVERS, Server, Start
from verdict import finish

GOAL, WIDTH_GOAL = 0.01, 0.02
SIZES_BYTES = tuple(1 << bits for bits in range(10, 27))
WARM_SECONDS = 4.0
SECONDS, QUICK_SECONDS = 30.0, 10.0
# The tool makes a server so much slower: as many requests must have warmed the caches.
TRACED_SECONDS, QUICK_TRACED_SECONDS = 60.0, 20.0
TRACEABLE = ("redis", "nginx")
"""Servers of one process and thread, which the tool can follow."""


class Trace:
    """Takes in a trace as it comes, in a thread of its own, and counts misses of exact caches.

    Args:
        stream: what the tool writes.
        sizes_bytes: of the caches, ascending.
    """

    def __init__(self, stream: BinaryIO, sizes_bytes: Sequence[int]) -> None:
        self._stream = stream
        self._lru = ExactLru([size // LINE_BYTES for size in sizes_bytes])
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="trace")
        self._thread.start()

    def _run(self) -> None:
        blocks: list[Block] = []
        # A server that is killed leaves half a frame.
        with contextlib.suppress(tracer.TracerError):
            for stretch in tracer.read_stretches(self._stream, blocks):
                blocks.clear()
                with self._lock:
                    self._lru.feed_runs(stretch.runs)

    def take(self) -> tuple[int, list[float]]:
        """Return the accesses since the last take, and by size the share of them that missed."""
        with self._lock:
            taken = self._lru.take_misses()
        return taken.accesses, taken.miss_ratio.tolist()

    def join(self) -> None:
        """Wait until there is no more."""
        self._thread.join()


@dataclass(frozen=True, slots=True)
class Exact:
    """What a server did while it was traced.

    Attributes:
        accesses: counted,
        requests: answered meanwhile.
        miss_ratio: by size.
    """

    accesses: int
    requests: int
    miss_ratio: list[float]


@dataclass(frozen=True, slots=True)
class Row:
    """A cache size: the exact miss ratio and what memsampd says.

    Attributes:
        size_bytes: the cache.
        exact: its exact miss ratio.
        told: what memsampd says; None if it says nothing.
        low: its lower bound,
        high: its upper bound.
    """

    size_bytes: int
    exact: float
    told: float | None
    low: float
    high: float

    def missed(self) -> list[str]:
        """Return which goals are missed here, in words."""
        size = format_size(self.size_bytes)
        if self.told is None:
            return [f"{size}: nothing is told"]
        error, width = abs(self.told - self.exact), self.high - self.low
        found = [] if error <= GOAL else [f"{size}: {error:.2%} off"]
        return found + ([] if width <= WIDTH_GOAL else [f"{size}: bounds {width:.2%} apart"])


def trace(server: Server, quick: bool, sizes_bytes: Sequence[int]) -> Exact:
    """Count the misses of a server under load, its caches warm.

    Raises:
        LaunchError: it cannot be started.
        TracerError: the tool cannot be built.
    """
    library = tracer.build(BUILD)
    read, write = os.pipe()
    seconds = QUICK_TRACED_SECONDS if quick else TRACED_SECONDS
    with open(read, "rb", buffering=0) as stream:
        traced = Trace(stream, sizes_bytes)
        try:
            env = {**environment(), "VALGRIND_LIB": str(library)}
            start = Start(True, tracer.words(write), {"env": env, "pass_fds": (write,)})
            with server.started(start) as served:
                served.client.ask(seconds)
                traced.take()
                load = served.client.ask(seconds)
                accesses, miss_ratio = traced.take()
        finally:
            os.close(write)
            traced.join()
    return Exact(accesses, load.requests, miss_ratio)


def observe(server: Server, memsampd: Path, quick: bool) -> MissRatioCurve | None:
    """Return what memsampd says of the same server, under the same load.

    Raises:
        LaunchError: the server or memsampd failed.
    """
    seconds = QUICK_SECONDS if quick else SECONDS
    with (
        tempfile.TemporaryDirectory(prefix="memsampd-") as folder,
        server.started(Start(True, options={"env": environment()})) as served,
    ):
        served.client.ask(WARM_SECONDS)
        recording = Path(folder) / "server.memsampd"
        words = ("--duration", str(seconds), "--no-listen", "-o", str(recording))
        with subprocess.Popen(
            [memsampd, "attach", str(served.pid), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as observer:
            served.client.ask(seconds + 1)
            _, said = observer.communicate()
        if observer.returncode != 0:
            raise LaunchError(f"memsampd: {said.strip()}")
        return analyse(read_recording(recording), "lru", np.array(SIZES_BYTES)).overall


def rows_of(exact: Exact, sizes_bytes: Sequence[int], curve: MissRatioCurve | None) -> list[Row]:
    """Put both side by side."""
    rows = []
    for size_bytes, ratio in zip(sizes_bytes, exact.miss_ratio, strict=True):
        point = None if curve is None else at_size(curve, size_bytes)
        told = (None, 0.0, 1.0) if point is None else (point.miss_ratio, point.low, point.high)
        rows.append(Row(size_bytes, ratio, *told))
    return rows


def judged(rows: Sequence[Row], levels: Sequence[int]) -> list[str]:
    """Return which goals are missed at the machine's cache levels."""
    if not levels:
        return ["no cache level is known"]
    return [each for row in rows if row.size_bytes in levels for each in row.missed()]


def table(rows: Sequence[Row], levels: Sequence[int]) -> str:
    """Return lines for people."""
    lines = []
    for row in rows:
        told = "unknown" if row.told is None else f"{row.told:7.2%}  {row.low:.2%}..{row.high:.2%}"
        mark = " *" if row.size_bytes in levels else ""
        lines.append(f"  {format_size(row.size_bytes):>8} {row.exact:8.2%} {told}{mark}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, judge."""
    args = options.parser(__doc__, TRACEABLE, "shorter turns").parse_args(argv)
    levels = [
        size
        for size in read_machine().cache_sizes_bytes().values()
        if SIZES_BYTES[0] <= size <= SIZES_BYTES[-1]
    ]
    sizes_bytes = sorted({*SIZES_BYTES, *levels})
    found: dict[str, dict[str, list[Row]]] = {}
    missed: list[str] = []
    for name in args.only or TRACEABLE:
        server = next(each for each in SERVERS if each.name == name)
        try:
            if why := server.lacks():
                raise LaunchError(why)
            exact = trace(server, args.quick, sizes_bytes)
            print(
                f"{name}: exact over {exact.accesses / 1e6:.0f} M accesses, {exact.requests:,} "
                f"requests, {exact.accesses / max(exact.requests, 1):,.0f} each",
                flush=True,
            )
            for installation, memsampd in options.installations(args).items():
                rows = rows_of(exact, sizes_bytes, observe(server, memsampd, args.quick))
                wrong = judged(rows, levels)
                if installation == "memsampd":
                    missed += [f"{name}: {each}" for each in wrong]
                print(
                    f"{installation}: size, exact, told, bounds (*: caches of this machine)\n"
                    f"{table(rows, levels)}\n  at these: {', '.join(wrong) or 'goals met'}",
                    flush=True,
                )
                found.setdefault(name, {})[installation] = rows
        except (LaunchError, tracer.TracerError) as error:
            missed.append(f"{name}: {error}")
    return finish(args.json, found, missed)


if __name__ == "__main__":
    sys.exit(main())
