"""What it costs a program to be observed, in turns of one process, whose memory stays where it is.

usage: python benchmarks/cost_turns.py [--quick] [--busy] [--rounds N] [--only NAME...]
                                       [--json FILE] [--memsampd PATH] [--other PATH]
                                       [-- OPTION...]

Whole runs (``cost.py``) differ by 5 to 30 % as the host gives them other memory or a slower CPU. So
each program here does the same work again and again; a round is a turn alone and one observed by
each installation, in changing order, of ten seconds each, from the start of ``memsampd attach`` on.
What a piece of work took is compared within a round.

``charged`` is what memsampd itself says that it took. --busy keeps every CPU busy besides. What
follows ``--`` goes to ``memsampd attach``: ``--schedule none --no-watchpoints`` leaves samples.

Goals, for medians over rounds: CPU and wall time of a piece at most 2 % more; charged within a
factor of 1.5 of what was lost, where that stands out of the noise (idle machine). Exit status 1 if
one is missed. The other installation is measured, not judged. memsampd's own CPU time is high in
its first ten seconds, which is all there is here: ``cost.py`` judges it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cost import agent_figures, watched
from targets import options
from targets.comparing import Figures, Kind, Round, Row, charged_row, report
from targets.endless import WORK
from targets.launching import child, every_cpu_busy
from verdict import finish

ROUNDS, QUICK_ROUNDS = 24, 4
TURN_SECONDS, QUICK_TURN_SECONDS = 10.0, 3.0
_WARM_SECONDS = 2.0


class Piece(NamedTuple):
    """A piece of work: when it ended, and what it took, seconds."""

    end_seconds: float
    cpu_seconds: float
    wall_seconds: float


def rows(is_busy: bool) -> list[Row]:
    """Return what is told of a program."""
    return [
        Row("cpu_seconds", "CPU time of a piece, ms", 1e3, 3, Kind.GAIN, 0.02),
        Row("wall_seconds", "wall time of a piece, ms", 1e3, 3, Kind.GAIN, 0.02),
        charged_row("cpu_seconds", is_busy=is_busy),
        Row("own_share", "memsampd's CPU, %", 100, 2),
        Row("bursts", "bursts", 1, 0),
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
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
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


def turn(
    worker: Worker, memsampd: Path | None, seconds: float, given: Sequence[str] = ()
) -> Figures:
    """Let it work for a turn, alone or observed with these options; what a piece of it took."""
    begin = time.monotonic()
    with watched(memsampd, worker.pid, given) as observation:
        time.sleep(seconds)
        pieces = worker.between(begin, time.monotonic())
    count = len(pieces)
    if not count:
        return {}
    cpu_seconds = sum(each.cpu_seconds for each in pieces)
    figures: Figures = {
        "cpu_seconds": cpu_seconds / count,
        "wall_seconds": sum(each.wall_seconds for each in pieces) / count,
        "pieces": count,
    }
    return figures | agent_figures(observation, cpu_seconds)


def measure(
    name: str, installations: dict[str, Path], rounds: int, seconds: float, given: Sequence[str]
) -> list[Round]:
    """Measure a program in all rounds."""
    command = (sys.executable, "-m", "targets.endless", name)
    found: list[Round] = []
    folder = Path(__file__).parent
    with child(command, stdout=subprocess.PIPE, stderr=None, cwd=folder) as process:
        worker = Worker(process)
        time.sleep(_WARM_SECONDS)
        for number in range(rounds):
            order = options.in_turn(installations, number)
            found.append({each: turn(worker, path, seconds, given) for each, path in order})
    return found


def main() -> int:
    """Measure, print, judge."""
    read = options.parser(__doc__, list(WORK), f"{QUICK_ROUNDS} rounds of short turns")
    read.add_argument("--rounds", type=int, metavar="N")
    read.add_argument("options", nargs="*", metavar="OPTION", help="of memsampd attach, after --")
    args = read.parse_args()
    installations = options.installations(args)
    rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    seconds = QUICK_TURN_SECONDS if args.quick else TURN_SECONDS
    kept: dict[str, list[Round]] = {}
    problems = []
    with every_cpu_busy(args.busy):
        for name in args.only or WORK:
            kept[name] = measure(name, installations, rounds, seconds, args.options)
            heading = f"{name}: {(WORK[name].__doc__ or '').rstrip('.')}"
            titles = report(heading, rows(args.busy), kept[name], [*installations])
            problems += [f"{name}: {title}" for title in titles]
    return finish(args.json, kept, problems)


if __name__ == "__main__":
    sys.exit(main())
