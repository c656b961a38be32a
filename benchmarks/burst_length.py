"""How long bursts get, with and without chains over system calls, and what ends them.

usage: python benchmarks/burst_length.py [--quick] [--json FILE] [--accesses N]
                                         [--max-stop SECONDS] [TARGET ...]

Without chains a burst ends at its first system call; with them the target makes the call itself
and is held again behind it, as long as the sum of all holds allows. Goal: every target yields
bursts both ways, and whatever call ends one is known by name. Lengths are printed, not judged.
Targets that are not installed are left out, and named.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memsampd.errors import CaptureError
from memsampd.sampler.process.status import read_threads
from memsampd.sampler.records import Burst, BurstEnd, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource
from reference.programs import find

_ACCESSES = 200_000
_SEED = 3
_PAUSE_SECONDS = 0.02
_TABLE_CALLS = 4  # shown of those that end bursts

# One keep-alive connection that asks for a small and a large file by turns.
_CLIENT = """
import http.client, itertools, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
for turn in itertools.count():
    connection.request("GET", ("/small", "/large")[turn % 8 == 0])
    connection.getresponse().read()
"""
_SCHEMA = (
    "create table item(id integer primary key, name, price);create index by_price on item(price);"
)
_SQL = (
    "insert into item(name, price) values (hex(randomblob(30)), abs(random()) % 1000);"
    "select count(*), sum(price) from item where price = abs(random()) % 1000;"
    "delete from item where id < (select max(id) from item) - 20000;"
)


@dataclass
class Lengths:
    """What the bursts of one target were like."""

    accesses: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    hold_seconds: list[float] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)

    def add(self, burst: Burst) -> None:
        """Count one burst."""
        self.accesses.append(burst.accesses)
        self.calls.append(burst.calls)
        self.hold_seconds.append(burst.cost.stop_seconds)
        self.ends[f"{burst.end} {burst.end_detail}".rstrip()] += 1

    def summary(self) -> dict[str, object]:
        """As JSON: deciles of the accesses a burst, means, ends and refusals by count."""
        deciles = (
            statistics.quantiles(self.accesses, n=10, method="inclusive")
            if len(self.accesses) > 1
            else []
        )
        return {
            "bursts": len(self.accesses),
            "accesses_deciles": deciles,
            "accesses_mean": statistics.mean(self.accesses) if self.accesses else None,
            "calls_mean": statistics.mean(self.calls) if self.calls else None,
            "hold_seconds_mean": statistics.mean(self.hold_seconds) if self.accesses else None,
            "ends": dict(self.ends.most_common()),
            "refusals": dict(self.refusals.most_common()),
        }

    def is_named(self) -> bool:
        """Whether there are bursts, and each call that ended one has a name."""
        calls = (end.split()[1:] for end in self.ends if end.split()[0] == BurstEnd.SYSCALL)
        return bool(self.accesses) and all(name and not name[0].isdigit() for name in calls)


class Unchained(ReplicaSource):
    """Ends every burst at the first system call."""

    def _burst(self, tid: int, accesses: int, hold_seconds: float, **options: Any) -> Any:
        taken = super()._burst(tid, accesses, hold_seconds, **{**options, "chain_seconds": 0.0})
        # A chain that is out of time ends as a hold does: here that is always at a call.
        is_call = taken.end == "hold" and taken.held_seconds < hold_seconds
        return replace(taken, end="syscall") if is_call else taken


@contextmanager
def started(*command: str | Path, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A child that is killed at the end."""
    process = subprocess.Popen(  # type: ignore[call-overload]
        [str(part) for part in command],
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **options},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Again:
    """A target that ends soon: started again whenever it has.

    Args:
        command: its command line.
        stack: ends it.
        options: of Popen.
    """

    def __init__(self, command: Sequence[str], stack: ExitStack, **options: object) -> None:
        self._command, self._stack, self._options = command, stack, options
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Its pid now."""
        if self._process is None or self._process.poll() is not None:
            self._process = self._stack.enter_context(started(*self._command, **self._options))
            time.sleep(0.1)
        return self._process.pid


def _redis(folder: Path, stack: ExitStack) -> Callable[[], int]:
    port = str(random.Random(os.getpid()).randrange(20_000, 30_000))
    server = stack.enter_context(
        started("redis-server", "--port", port, "--save", "", "--dir", folder)
    )
    time.sleep(0.5)
    load = ("-p", port, "-l", "-q", "-c", "8", "-t", "set,get,lpush,zadd", "-r", "100000")
    stack.enter_context(started("nice", "redis-benchmark", *load))
    return lambda: server.pid


def _http(folder: Path, stack: ExitStack) -> Callable[[], int]:
    (folder / "small").write_bytes(b"x" * 500)
    (folder / "large").write_bytes(b"y" * 500_000)
    port = str(random.Random(os.getpid()).randrange(30_000, 40_000))
    options = ("--bind", "127.0.0.1", "--protocol", "HTTP/1.1", "--directory", str(folder))
    server = stack.enter_context(
        started("python3", "-m", "http.server", port, *options, stderr=subprocess.DEVNULL)
    )
    time.sleep(1.0)
    for _ in range(2):
        stack.enter_context(started("nice", sys.executable, "-c", _CLIENT, port))
    return lambda: server.pid


def _sqlite(folder: Path, stack: ExitStack) -> Callable[[], int]:
    database = folder / "items.db"
    subprocess.run(["sqlite3", str(database), _SCHEMA], check=True, stdout=subprocess.DEVNULL)
    feeder = stack.enter_context(started("yes", _SQL, stdout=subprocess.PIPE))
    target = stack.enter_context(started("sqlite3", database, stdin=feeder.stdout))
    assert feeder.stdout is not None
    feeder.stdout.close()
    return lambda: target.pid


def _repository(folder: Path, commits: int = 1500) -> Path:
    draw = random.Random(_SEED)
    words = [f"{draw.randrange(1 << 40):x}" for _ in range(3000)]
    repository = folder / "repository"
    stream = []
    for commit in range(commits):
        for at in draw.sample(range(len(words)), 60):
            words[at] = f"{draw.randrange(1 << 40):x}"
        text = "\n".join(words)
        stream.append(
            f"commit refs/heads/main\ncommitter A <a@b> {1_700_000_000 + commit} +0000\n"
            f"data 1\nx\nM 644 inline words\ndata {len(text)}\n{text}\n"
        )
    subprocess.run(["git", "init", "-q", "-b", "main", str(repository)], check=True)
    subprocess.run(
        ["git", "-C", str(repository), "fast-import", "--quiet"],
        input="".join(stream).encode(),
        check=True,
    )
    return repository


def _git_log(folder: Path, stack: ExitStack) -> Callable[[], int]:
    return Again(("git", "-C", str(_repository(folder)), "log", "-p"), stack)


def _git_gc(folder: Path, stack: ExitStack) -> Callable[[], int]:
    # What git gc spends its time in.
    options = ("--all", "--stdout", "--no-reuse-delta", "--no-reuse-object", "--threads=1")
    command = ("git", "-C", str(_repository(folder)), "pack-objects", *options)
    return Again(command, stack, stderr=subprocess.DEVNULL)


def _cc1(folder: Path, stack: ExitStack) -> Callable[[], int]:
    [program] = find(["cc1"])
    return Again(program.command(folder), stack, stderr=subprocess.DEVNULL)


def _compressor(name: str) -> Callable[[Path, ExitStack], Callable[[], int]]:
    def start(folder: Path, stack: ExitStack) -> Callable[[], int]:
        [program] = find([name])
        return Again(program.command(folder), stack)

    return start


# What must be installed, and how to start it: each returns a function that tells its pid.
TARGETS: dict[str, tuple[str, Callable[[Path, ExitStack], Callable[[], int]]]] = {
    "redis": ("redis-server", _redis),
    "http.server": ("python3", _http),
    "sqlite3": ("sqlite3", _sqlite),
    "git log": ("git", _git_log),
    "git gc": ("git", _git_gc),
    "cc1": ("gcc", _cc1),
    **{name: (name, _compressor(name)) for name in ("gzip", "xz", "bzip2")},
}


def busy_thread(pid: int, draw: random.Random) -> int | None:
    """A thread that runs just now."""
    running = [thread.tid for thread in read_threads(pid) if thread.state == "R"]
    return draw.choice(running) if running else None


class Sources:
    """The two sources, with and without chains, of a target that may be started anew."""

    def __init__(self) -> None:
        self._pid = 0
        self._sources: dict[bool, ReplicaSource] = {}

    def get(self, pid: int, chains: bool) -> ReplicaSource:
        """The source for this target.

        Raises:
            CaptureError: it cannot be observed.
        """
        if pid != self._pid:
            self.close()
            self._pid = pid
        if chains not in self._sources:
            self._sources[chains] = ReplicaSource(pid) if chains else Unchained(pid)
        return self._sources[chains]

    def close(self) -> None:
        """Leave the target."""
        while self._sources:
            self._sources.popitem()[1].close()


def measure(
    target: Callable[[], int], bursts: int, request: BurstRequest, seconds: float
) -> dict[bool, Lengths]:
    """Take bursts both ways by turns, until there are enough or the time is up."""
    results = {False: Lengths(), True: Lengths()}
    draw, sources = random.Random(_SEED), Sources()
    give_up = time.monotonic() + seconds
    try:
        while time.monotonic() < give_up and any(
            len(result.accesses) < bursts for result in results.values()
        ):
            chains = len(results[True].accesses) < len(results[False].accesses)
            pid = target()
            try:
                thread = busy_thread(pid, draw)
                if thread is not None:
                    burst = sources.get(pid, chains).capture(replace(request, tid=thread))
                    results[chains].add(burst)
                    time.sleep(draw.uniform(0, _PAUSE_SECONDS))
            except CaptureError as error:
                results[chains].refusals[error.reason] += 1
                time.sleep(_PAUSE_SECONDS)
    finally:
        sources.close()
    return results


def show(name: str, results: dict[bool, Lengths]) -> None:
    """Print two lines of the table."""
    for chains, lengths in results.items():
        start = f"{name:12} {'yes' if chains else 'no':6}"
        if len(lengths.accesses) < 2:
            print(f"{start} too few bursts {dict(lengths.refusals)}", flush=True)
            continue
        low, *_, high = statistics.quantiles(lengths.accesses, n=10, method="inclusive")
        ends = ", ".join(f"{end} {count}" for end, count in lengths.ends.most_common(_TABLE_CALLS))
        print(
            f"{start} {len(lengths.accesses):6} {low:9.0f} "
            f"{statistics.median(lengths.accesses):9.0f} {high:9.0f} "
            f"{statistics.mean(lengths.calls):8.1f} "
            f"{1e3 * statistics.mean(lengths.hold_seconds):8.2f}  {ends}",
            flush=True,
        )


def main() -> int:
    """Measure all targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--quick", action="store_true", help="fewer bursts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--accesses", type=int, default=_ACCESSES, metavar="N", help="of a full burst"
    )
    parser.add_argument(
        "--max-stop", type=float, default=0.005, metavar="SECONDS", help="hold of a burst"
    )
    args = parser.parse_args()
    request = BurstRequest(0, args.accesses, args.max_stop)
    bursts, seconds = (8, 10.0) if args.quick else (60, 60.0)

    print(f"bursts of at most {args.accesses} accesses and {args.max_stop * 1e3:g} ms of hold")
    print(
        f"{'target':12} {'chains':6} {'bursts':>6} {'10 %':>9} {'median':>9} {'90 %':>9} "
        f"{'calls':>8} {'hold ms':>8}  ends"
    )
    found, is_good = {}, True
    for name in args.targets or TARGETS:
        needed, start = TARGETS[name]
        if shutil.which(needed) is None:
            print(f"{name:12} left out: {needed} is not installed")
            continue
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            results = measure(start(Path(folder), stack), bursts, request, seconds)
        show(name, results)
        found[name] = {("chains" if each else "plain"): r.summary() for each, r in results.items()}
        is_good &= all(result.is_named() for result in results.values())
    if args.json:
        document = {
            "accesses": args.accesses,
            "max_stop_seconds": args.max_stop,
            "targets": found,
        }
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if is_good and found else 1


if __name__ == "__main__":
    sys.exit(main())
