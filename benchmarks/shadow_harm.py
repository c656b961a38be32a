"""What shadows do to the program that is observed: its speed, its results, what is left of us.

usage: python benchmarks/shadow_harm.py [--quick] [--json FILE] [--only PART...]
                                        [--mib N...] [--pairs N] [--seed N] [--pool FILE...]

slowdown    pairs of equal pieces of work of a quarter of a second, one with a burst of a million
            accesses in it, in random order: how much longer that one takes, which is the slowdown
            at one burst a second, by resident memory; beside it stops, page copies, and what the
            default --max-stop does with such a target. (Pieces so short, since the machine's speed
            drifts; pairs in which other programs took more than a fifth of a CPU are made again.)
            --pool adds the pairs that earlier runs wrote with --json.
results     programs of the catalogue print the same, byte for byte, left alone and observed.
rounds      attach, burst, detach, over and over, on a threaded program and on a shell that forks.
kills       memsampd killed (SIGKILL) at random moments.

Goals: a slowdown of at most 1.5 % at 100 MB; every result the same; no process, descriptor, mapping
or trace left, in the target or here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memsampd.daemon.config import SessionConfig
from memsampd.errors import CaptureError
from memsampd.sampler.records import BurstCost, BurstRequest
from memsampd.sampler.shadow.source import ShadowSource
from programs.catalogue import CATALOGUE, find
from programs.executors import add_option, make_executor
from programs.observing import (
    Tally,
    attacker,
    observed,
    orphans,
    traces_left,
    wait_until_clean,
)
from programs.preparing import WARNINGS, compiled
from programs.running import FOLDER, resolved
from programs.workload import Workload, environment

GOAL_SLOWDOWN = 0.015
GOAL_MIB = 100
GOAL_ROUNDS = 1000
GOAL_KILLS = 200

PIECE_SECONDS = 0.25
BURSTS_A_SECOND = 1.0
FOREIGN_MAXIMUM_SECONDS = PIECE_SECONDS / 5
DISTURBED_MAXIMUM = 1000
REFUSED_MAXIMUM = 100
BURST_ACCESSES = 1_000_000
STEPPED_ACCESSES = 2000  # by the stepper, a million would take a minute
SMALL_ACCESSES = 20_000
KILL_WITHIN_SECONDS = 0.3
THREADED, FORKING = "threads", "pipeline"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to do: sizes of the resident memory, pairs at each, programs, rounds, kills.

    Attributes:
        earlier: pairs of earlier runs, by size.
    """

    mib: tuple[int, ...]
    pairs: int
    results: tuple[str, ...]
    rounds: int
    kills: int
    earlier: dict[int, list[list[float]]] = field(default_factory=dict)


QUICK = Effort((GOAL_MIB,), 30, ("gzip", "sqlite3", "exceptions"), 40, 10)
FULL = Effort(
    (GOAL_MIB, 1024, 4096),
    150,
    tuple(w.name for w in CATALOGUE if w.result is not None),
    GOAL_ROUNDS,
    GOAL_KILLS,
)


@dataclass(slots=True)
class Part:
    """What one part found: figures, and what was wrong, for people."""

    figures: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of work.

    Attributes:
        wall_seconds: for which it lasted.
        cpu_seconds: CPU time of it.
        checksum: its result.
        cost: of the burst in it; nothing if it was left alone.
        foreign_seconds: CPU time that neither it nor we used meanwhile.
    """

    wall_seconds: float
    cpu_seconds: float
    checksum: str
    cost: BurstCost
    foreign_seconds: float


def busy_seconds() -> float:
    """CPU time that all programs have used."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    ticks = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    used = sum(n for name, n in zip(names, ticks, strict=True) if name not in ("idle", "iowait"))
    return used / os.sysconf("SC_CLK_TCK")


class Resident:
    """A program that holds memory and computes on demand.

    Args:
        mib: how much it holds.
        executor: name of what runs the shadows.
    """

    def __init__(self, mib: int, executor: str) -> None:
        flags = ("gcc", "-std=gnu11", "-O2", *WARNINGS)
        program = compiled(FOLDER, "resident.c", "resident", flags)
        self._executor = executor
        self._accesses = STEPPED_ACCESSES if executor == "step" else BURST_ACCESSES
        self._child = subprocess.Popen(
            [str(program), str(mib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._rounds = 200
        self._rounds = max(int(200 * PIECE_SECONDS / self.run(None).cpu_seconds), 1)
        self.source = ShadowSource(self._child.pid, make_executor(executor))
        with suppress(CaptureError):
            self.run(self.source)  # translates

    def run(self, source: ShadowSource | None) -> Piece:
        """Do a piece of work, with a burst some way into it or without."""
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        busy_before, own_before = busy_seconds(), time.process_time()
        child.stdin.write(f"{self._rounds}\n")
        child.stdin.flush()
        time.sleep(PIECE_SECONDS / 10)
        cost = BurstCost()
        try:
            if source is not None:
                burst = source.capture(BurstRequest(child.pid, self._accesses, PIECE_SECONDS))
                cost = burst.cost
                if burst.accesses < self._accesses:
                    raise CaptureError("short", f"a burst ended early: {burst.end}")
        finally:
            wall_ns, cpu_ns, checksum = child.stdout.readline().split()
        foreign_seconds = (
            (busy_seconds() - busy_before)
            - (time.process_time() - own_before)
            - int(cpu_ns) * 1e-9
            - cost.shadow_cpu_seconds
        )
        return Piece(int(wall_ns) * 1e-9, int(cpu_ns) * 1e-9, checksum, cost, foreign_seconds)

    def default_refusal(self) -> str:
        """Why the default --max-stop allows no burst; empty if it does."""
        source = ShadowSource(
            self._child.pid,
            make_executor(self._executor),
            max_stop_seconds=SessionConfig().max_stop_seconds,
        )
        try:
            self.run(source)
        except CaptureError as error:
            return str(error)
        finally:
            source.close()
        return ""

    def close(self) -> None:
        """Leave it, then end it."""
        self.source.close()
        self._child.kill()
        self._child.communicate()


def slowdown(executor: str, effort: Effort, order: random.Random) -> Part:
    """Pairs of pieces of work, one with a burst, by size of the memory."""
    part = Part()
    for mib in effort.mib:
        rows, refusal = [list(row) for row in effort.earlier.get(mib, [])], ""
        if effort.pairs:
            program = Resident(mib, executor)
            try:
                rows += [_row(*_pair(program, order, part)) for _ in range(effort.pairs)]
                refusal = program.default_refusal()
            finally:
                program.close()
        quartiles = _quartiles(rows)
        part.figures[f"{mib} MiB"] = {
            **quartiles,
            "pairs": rows,
            "columns": list(COLUMNS),
            "default_refusal": refusal,
        }
        _print_slowdown(mib, quartiles, len(rows), refusal)
        slowdown = BURSTS_A_SECOND * quartiles["wall_seconds"][1]
        if mib == GOAL_MIB and slowdown > GOAL_SLOWDOWN:
            part.problems.append(f"slowdown {slowdown:.2%} > {GOAL_SLOWDOWN:.1%} at {mib} MiB")
    return part


# Of a pair: by how much the piece with a burst took longer in wall time, and in CPU time with the
# stop added; the stop; and the target's page faults meanwhile.
COLUMNS = ("wall_seconds", "cpu_and_stop_seconds", "stop_seconds", "faults_seconds")


def _row(alone: Piece, with_us: Piece) -> list[float]:
    stop_seconds = with_us.cost.stop_seconds
    return [
        with_us.wall_seconds - alone.wall_seconds,
        with_us.cpu_seconds + stop_seconds - alone.cpu_seconds,
        stop_seconds,
        with_us.cost.cow_seconds,
    ]


def _quartiles(rows: list[list[float]]) -> dict[str, list[float]]:
    columns = zip(*rows, strict=True)
    return {
        name: statistics.quantiles(column, n=4)
        for name, column in zip(COLUMNS, columns, strict=True)
    }


def _print_slowdown(mib: int, of: dict[str, list[float]], pairs: int, refusal: str) -> None:
    low, median, high = (BURSTS_A_SECOND * seconds for seconds in of["wall_seconds"])
    cpu = [BURSTS_A_SECOND * seconds for seconds in of["cpu_and_stop_seconds"]]
    print(
        f"  {mib:5d} MiB: slowdown {median:+.2%} (quartiles {low:+.2%}, {high:+.2%}); by CPU time "
        f"and stop {cpu[1]:+.2%} ({cpu[0]:+.2%}, {cpu[2]:+.2%}); "
        f"stop {1e3 * of['stop_seconds'][1]:.1f} ms, "
        f"page copies {1e3 * of['faults_seconds'][1]:.1f} ms; {pairs} pairs; "
        f"with the default --max-stop: {refusal or 'observed'}",
        flush=True,
    )


def _pair(program: Resident, order: random.Random, part: Part) -> tuple[Piece, Piece]:
    """One piece alone, one with a burst; others if that was refused, or they were disturbed."""
    while True:
        pieces: dict[bool, Piece] = {}
        try:
            for with_us in order.sample((False, True), 2):
                pieces[with_us] = program.run(program.source if with_us else None)
        except CaptureError as error:
            part.figures["refused"] = part.figures.get("refused", 0) + 1
            if part.figures["refused"] > REFUSED_MAXIMUM:
                raise error
            continue
        if pieces[False].checksum != pieces[True].checksum:
            part.problems.append("a checksum changed")
        if any(piece.foreign_seconds > FOREIGN_MAXIMUM_SECONDS for piece in pieces.values()):
            part.figures["disturbed"] = part.figures.get("disturbed", 0) + 1
            if part.figures["disturbed"] <= DISTURBED_MAXIMUM:
                continue
            raise SystemExit("other programs use the CPUs all the time: nothing can be measured")
        return pieces[False], pieces[True]


@contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def digest(
    workload: Workload, observe_with: str | None, accesses: int, pause_seconds: float
) -> tuple[str, Tally]:
    """SHA-256 of what a run prints, with its exit status; and how it was observed.

    Args:
        workload: one that has a result.
        observe_with: name of an executor; None: it is left alone.
        accesses: of each burst.
        pause_seconds: between bursts.
    """
    assert workload.result is not None
    with _started(resolved(workload.result(FOLDER).command)) as process:
        assert process.stdout is not None
        tally = Tally()
        if observe_with is None:
            text = process.stdout.read()
        else:
            with observed(
                process.pid,
                max_accesses=accesses,
                bursts_an_attach=1,
                every_thread=True,
                pause_seconds=pause_seconds,
                executor=observe_with,
            ) as tally:
                text = process.stdout.read()
                process.wait()
        return f"{hashlib.sha256(text).hexdigest()}, status {process.wait()}", tally


def results(executor: str, effort: Effort, order: random.Random) -> Part:
    """Compare what programs print, alone and observed."""
    part = Part()
    accesses = STEPPED_ACCESSES if executor == "step" else BURST_ACCESSES
    for workload in find(effort.results):
        if problem := workload.lacks():
            part.problems.append(f"{workload.name} {problem}")
            continue
        alone, _ = digest(workload, None, 0, 0)
        with_us, tally = digest(workload, executor, accesses, pause_seconds=0.05)
        same = alone == with_us and bool(tally.bursts)
        part.figures[workload.name] = {"same": alone == with_us, "bursts": tally.bursts}
        print(
            f"  {workload.name:12} {'same' if same else 'WRONG'}, {tally.bursts} bursts", flush=True
        )
        if alone != with_us:
            part.problems.append(f"{workload.name} printed something else")
        elif not tally.bursts:
            part.problems.append(f"{workload.name} was never observed")
    return part


def footprint() -> dict[str, int]:
    """What this process holds: descriptors, threads, children, megabytes of address space."""
    status = Path("/proc/self/status").read_text()
    threads = int(status.partition("\nThreads:")[2].split()[0])
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threads,
        "children": len(children),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
    }


# Allocators and numpy map memory now and then; a leak a round would be a thousand.
MAPPINGS_SLACK = 40


def grown(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """What of a footprint grew, for people."""
    slack = {"mappings": MAPPINGS_SLACK}
    return [
        f"{name}: {before[name]} before, {after[name]} after"
        for name in before
        if after[name] > before[name] + slack.get(name, 0)
    ]


def rounds(executor: str, effort: Effort, order: random.Random) -> Part:
    """Attach and detach over and over, run after run, each of which must end with its result."""
    part = Part()
    accesses = 300 if executor == "step" else SMALL_ACCESSES
    for workload in find((FORKING, THREADED)):
        if problem := workload.lacks():
            part.problems.append(f"{workload.name} {problem}")
            continue
        right, _ = digest(workload, None, 0, 0)
        digest(workload, executor, accesses, 0)  # so that what is made once is there
        before, total, runs = footprint(), Tally(), 0
        while total.attaches < effort.rounds:
            got, tally = digest(workload, executor, accesses, 0)
            runs += 1
            total.attaches += tally.attaches
            total.bursts += tally.bursts
            if got != right:
                part.problems.append(f"{workload.name} printed something else in run {runs}")
            if left := orphans():
                part.problems.append(f"{workload.name} left {left}")
            if not tally.attaches or part.problems:
                part.problems = part.problems or [f"no attach to {workload.name}"]
                break
        part.problems += [f"{workload.name}: {text}" for text in grown(before, footprint())]
        part.figures[workload.name] = {
            "attaches": total.attaches,
            "bursts": total.bursts,
            "runs": runs,
        }
        print(
            f"  {workload.name:12} {total.attaches} attaches, {total.bursts} bursts, {runs} runs",
            flush=True,
        )
    return part


def kills(executor: str, effort: Effort, order: random.Random) -> Part:
    """Kill observers of a program that checks itself."""
    part = Part()
    accesses = 300 if executor == "step" else BURST_ACCESSES
    program = compiled(FOLDER, "checksum.c", "checksum", ("gcc", "-O1"))
    with _started([str(program)]) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for number in range(effort.kills):
            with attacker(process.pid, executor, accesses) as observer:
                assert observer.stdout is not None
                observer.stdout.readline()
                time.sleep(order.uniform(0, KILL_WITHIN_SECONDS))
                observer.kill()
            if left := wait_until_clean(process.pid):
                part.problems.append(f"kill {number} left {left}")
            if process.poll() is not None:
                part.problems.append(f"kill {number} ended the program")
                break
        part.problems += [f"left at the end: {text}" for text in traces_left(process.pid)]
        process.send_signal(signal.SIGTERM)
        answer = process.stdout.read().decode().strip()
        if process.wait() != 0 or answer != "right":
            part.problems.append(f"the program says {answer!r}")
    part.problems += [f"orphan {orphan}" for orphan in orphans()]
    part.figures = {"kills": effort.kills, "answer": answer}
    print(f"  {effort.kills} kills; the program says {answer!r}", flush=True)
    return part


PARTS: dict[str, Callable[[str, Effort, random.Random], Part]] = {
    "slowdown": slowdown,
    "results": results,
    "rounds": rounds,
    "kills": kills,
}


def pooled(files: list[Path]) -> dict[int, list[list[float]]]:
    """Pairs that earlier runs wrote, by size of the memory."""
    found: dict[int, list[list[float]]] = {}
    for file in files:
        for size, figures in json.loads(file.read_text())["slowdown"].items():
            if size.endswith(" MiB"):
                found.setdefault(int(size.split()[0]), []).extend(figures["pairs"])
    return found


def main() -> int:
    """Do all parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--mib", nargs="+", type=int, metavar="N", help="sizes for slowdown")
    parser.add_argument("--pairs", type=int, metavar="N", help="pairs of each size; 0: only --pool")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the order of pairs")
    parser.add_argument("--pool", nargs="+", type=Path, default=[], metavar="FILE")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    add_option(parser)
    args = parser.parse_args()
    effort, order = QUICK if args.quick else FULL, random.Random(args.seed)
    effort = replace(
        effort,
        mib=effort.mib if args.mib is None else tuple(args.mib),
        pairs=effort.pairs if args.pairs is None else args.pairs,
        earlier=pooled(args.pool),
    )
    done = {}
    for name in args.only:
        print(f"{name}:", flush=True)
        done[name] = PARTS[name](args.executor, effort, order)
    if args.json:
        figures = {name: {**p.figures, "problems": p.problems} for name, p in done.items()}
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    problems = [f"{name}: {text}" for name, part in done.items() for text in part.problems]
    print(*(problems or ["goals: met"]), sep="\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
