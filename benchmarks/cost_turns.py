"""What it costs a program to be observed, in turns of one process, whose memory stays where it is.

usage: python benchmarks/cost_turns.py [--quick] [--busy] [--rounds N] [--only NAME...]
                                       [--after SECONDS] [--json FILE] [--memsampd PATH]
                                       [--other PATH] [-- OPTION...]

Whole runs (``cost.py``) differ by 5 to 30 % as the host gives them other memory or a slower CPU. So
each program here does the same work again and again, and a server (with --only) is asked as fast as
it answers; a round is a turn alone and one observed by each installation, in changing order, of ten
seconds each, from the start of ``memsampd attach`` on, or from --after SECONDS later. What a piece
of work, or a request, took is compared within a round.

``charged`` is what memsampd itself says that it took in this time, and its CPU time what it says.
--busy keeps every CPU busy besides. What follows ``--`` goes to ``memsampd attach``: ``--schedule
none --no-watchpoints`` leaves samples. ``--other targets/beside.py`` shows what any process takes
that uses 1.5 % of a CPU.

Goals, for medians over rounds: CPU and wall time of a piece, or CPU time of a request, at most 2 %
more, throughput at most 2 % less; charged within a factor of 1.5 of what was lost, where that
stands out of the noise (idle machine); a burst at least, unless options are given after ``--``; and
each of these measured. Exit status 1 if one is missed. The other installation is measured, not
judged.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

from cost import watched
from targets import options
from targets.agent import Observation
from targets.comparing import Figures, Kind, Round, Row, charged_row, report
from targets.endless import WORK
from targets.launching import child, every_cpu_busy, read_counters
from targets.rows import BURSTS, CPU_A_REQUEST, RATE
from targets.servers import SERVERS, Served, Start
from verdict import finish

ROUNDS, QUICK_ROUNDS = 24, 4
TURN_SECONDS, QUICK_TURN_SECONDS = 10.0, 3.0
_WARM_SECONDS = 2.0
_SERVERS = {each.name: each for each in SERVERS}
_OWN_SHARE = Row("own_share", "memsampd's CPU, %", 100, 2)


class Span(NamedTuple):
    """A turn: how long after the attach what is done begins to count, and for how long it does."""

    after_seconds: float
    seconds: float


# Takes who observes, when, and further options.
_Turn = Callable[[Path | None, Span, Sequence[str]], Figures]


class Piece(NamedTuple):
    """A piece of work: when it ended, and what it took, seconds."""

    end_seconds: float
    cpu_seconds: float
    wall_seconds: float


def agent_rows(given: Sequence[str]) -> list[Row]:
    """Return what is told of memsampd; with options given it need not take bursts."""
    return [_OWN_SHARE, replace(BURSTS, kind=Kind.SHOWN) if given else BURSTS]


def server_rows(is_busy: bool, given: Sequence[str] = ()) -> list[Row]:
    """Return what is told of a server, observed with these options."""
    return [
        RATE,
        CPU_A_REQUEST,
        Row("p999_seconds", "p99.9, ms", 1e3, 3),
        charged_row("cpu_a_request", is_busy=is_busy),
        *agent_rows(given),
    ]


def program_rows(is_busy: bool, given: Sequence[str] = ()) -> list[Row]:
    """Return what is told of a program, observed with these options."""
    return [
        Row("cpu_seconds", "CPU time of a piece, ms", 1e3, 3, Kind.GAIN, 0.02),
        Row("wall_seconds", "wall time of a piece, ms", 1e3, 3, Kind.GAIN, 0.02),
        charged_row("cpu_seconds", is_busy=is_busy),
        *agent_rows(given),
        Row("pieces", "pieces", 1, 0),
    ]


class Worker:
    """A program that is told of by its pieces.

    Args:
        process: it.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self._process = process
        self._pieces: list[Piece] = []
        assert process.stdout is not None
        # A descriptor of its own: who started the process closes the other one, perhaps too soon.
        lines = os.fdopen(os.dup(process.stdout.fileno()))
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: TextIO) -> None:
        with lines:
            for line in lines:
                self._pieces.append(Piece(*map(float, line.split())))

    def between(self, begin_seconds: float, end_seconds: float) -> list[Piece]:
        """Return what was begun and ended between two moments.

        Raises:
            SystemExit: the program has ended.
        """
        if self._process.poll() is not None:
            sys.exit(f"the program ended with status {self._process.returncode}")
        pieces, self._pieces = self._pieces, []
        return [
            each
            for each in pieces
            if each.end_seconds - each.wall_seconds >= begin_seconds
            and each.end_seconds <= end_seconds
        ]


def server_turn(
    served: Served, memsampd: Path | None, span: Span, given: Sequence[str] = ()
) -> Figures:
    """Ask a server for a turn, alone or observed with these options; what came of it."""
    with watched(memsampd, served.pid, given) as observation:
        if observation is not None and span.after_seconds:
            served.client.ask(span.after_seconds)
        before = read_counters(served.pid)
        load = served.client.ask(span.seconds)
        cpu_seconds = read_counters(served.pid).cpu_seconds - before.cpu_seconds
    figures: Figures = {
        "rate": load.rate,
        "cpu_a_request": cpu_seconds / load.requests,
        "p999_seconds": load.p999_seconds,
    }
    return figures | said(observation, span)


def turn(worker: Worker, memsampd: Path | None, span: Span, given: Sequence[str] = ()) -> Figures:
    """Let it work for a turn, alone or observed with these options; what a piece of it took."""
    with watched(memsampd, worker.pid, given) as observation:
        if observation is not None:
            time.sleep(span.after_seconds)
        begin = time.monotonic()
        time.sleep(span.seconds)
        pieces = worker.between(begin, time.monotonic())
    count = len(pieces)
    figures: Figures = {"wall_seconds": span.seconds, "pieces": 0}  # it took longer than that
    if count:
        figures = {
            "cpu_seconds": sum(each.cpu_seconds for each in pieces) / count,
            "wall_seconds": sum(each.wall_seconds for each in pieces) / count,
            "pieces": count,
        }
    return figures | said(observation, span)


def said(observation: Observation | None, span: Span) -> Figures:
    """Return what memsampd said of a turn."""
    if observation is None:
        return {}
    shares = observation.shares_after(span.after_seconds)
    return {
        "charged_share": shares.charged,
        "own_share": shares.own,
        "bursts": observation.last.bursts,
    }


@contextmanager
def turns_of(name: str) -> Iterator[_Turn]:
    """Run a program or a server; what has it work for a turn."""
    if (server := _SERVERS.get(name)) is not None:
        with server.started(Start(is_small=True)) as served:
            served.client.ask(_WARM_SECONDS)
            yield partial(server_turn, served)
        return
    command = (sys.executable, "-m", "targets.endless", name)
    folder = Path(__file__).parent
    with child(command, stdout=subprocess.PIPE, stderr=None, cwd=folder) as process:
        worker = Worker(process)
        time.sleep(_WARM_SECONDS)
        yield partial(turn, worker)


def measure(
    name: str, installations: dict[str, Path], rounds: int, span: Span, given: Sequence[str]
) -> list[Round]:
    """Measure a program or a server in all rounds."""
    found: list[Round] = []
    with turns_of(name) as take_turn:
        for number in range(rounds):
            order = options.in_turn(installations, number)
            found.append({each: take_turn(path, span, given) for each, path in order})
    return found


def main() -> int:
    """Measure, print, judge."""
    read = options.parser(__doc__, [*WORK, *_SERVERS], f"{QUICK_ROUNDS} rounds of short turns")
    read.add_argument("--rounds", type=int, metavar="N")
    read.add_argument("--after", type=float, default=0.0, metavar="SECONDS", help="of the attach")
    read.add_argument("options", nargs="*", metavar="OPTION", help="of memsampd attach, after --")
    args = read.parse_args()
    installations = options.installations(args)
    rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    span = Span(args.after, QUICK_TURN_SECONDS if args.quick else TURN_SECONDS)
    asked = [_SERVERS[name] for name in args.only if name in _SERVERS]
    if lacking := [why for server in asked if (why := server.lacks())]:
        sys.exit("; ".join(lacking))
    kept: dict[str, list[Round]] = {}
    problems = []
    with every_cpu_busy(args.busy):
        for name in args.only or WORK:
            kept[name] = measure(name, installations, rounds, span, args.options)
            server = _SERVERS.get(name)
            what = server.what if server else (WORK[name].__doc__ or "").rstrip(".")
            rows = (server_rows if server else program_rows)(args.busy, args.options)
            titles = report(f"{name}: {what}", rows, kept[name], [*installations])
            problems += [f"{name}: {title}" for title in titles]
    return finish(args.json, kept, problems)


if __name__ == "__main__":
    sys.exit(main())
