"""What the store saves: bursts in a program's first minute with and without it.

usage: python benchmarks/store.py [--quick] [--seconds S] [--json FILE] [--programs NAME...]

Each program is started and observed for a minute with an empty store, ended, started again and
observed with what was learned. Told are the bursts that were taken in each of the two, for how
long threads were held, after which time there was a curve, the share of the CPU time without one,
and how far the two curves of the whole run lie apart (a program is not the same from run to run,
nor are bursts). Goals: half of the bursts at most, all programs together, and no more time without
a curve but for half a point, and bursts of each program. Exit status 1 if one is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memsampd.estimate.events import StoreDropRecord
from memsampd.exporters.analysis import Analysis, analyse
from memsampd.exporters.recording import read_recording
from memsampd.models.sizes import default_sizes
from programs.catalogue import find
from programs.preparing import PreparationError
from programs.running import WorkloadError, running
from verdict import add_options, finish

MEMSAMPD = str(Path(sys.executable).with_name("memsampd"))
PROGRAMS = ("sqlite3", "python3", "perl", "gzip", "numpy", "openssl")
QUICK_PROGRAMS = ("sqlite3", "perl", "gzip")
SECONDS, QUICK_SECONDS = 60.0, 15.0
BURSTS_GOAL = 0.5
UNKNOWN_GOAL = 0.005


@dataclass(frozen=True)
class Session:
    """One observation.

    Attributes:
        bursts: that were taken.
        held_seconds: for which threads were held.
        first_seconds: until the first curve, since the attach; None if there was none.
        unknown_share: share of the CPU time without a curve.
        phases: phases found.
        known: bursts from the store.
        drops: phases of which what was stored did not hold.
    """

    bursts: int
    held_seconds: float
    first_seconds: float | None
    unknown_share: float
    phases: int
    known: int
    drops: int


@dataclass(frozen=True)
class Row:
    """A program.

    Attributes:
        program: its name.
        without: with an empty store.
        with_store: with what that one learned.
        apart: mean distance of the two curves of the whole run.
    """

    program: str
    without: Session
    with_store: Session
    apart: float


def observe(program: str, store: Path, recording: Path, seconds: float) -> Analysis:
    """Start a program, and observe it for a while.

    Raises:
        WorkloadError: it, or memsampd, failed.
    """
    with running(find([program])[0]) as pid:
        command = [MEMSAMPD, "attach", str(pid), "--no-listen", "--store", str(store)]
        command += ["--duration", f"{seconds:g}", "-o", str(recording)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise WorkloadError(f"{program}: {done.stderr}")
    return analyse(read_recording(recording), "lru", default_sizes())


def session_of(analysis: Analysis) -> Session:
    """Count what an observation took, and what it came to."""
    recording, estimate = analysis.recording, analysis.estimate
    taken = [each for each in recording.bursts if not each.is_stored]
    known = len(recording.bursts) - len(taken)
    moments = [each.analysed_seconds for each in taken if each.accesses]
    if known:  # as soon as there is a window of a known phase
        moments += [window.record.end_seconds for window in analysis.windows if window.is_known]
    return Session(
        bursts=len(taken),
        held_seconds=sum(each.cost.stop_seconds for each in taken),
        first_seconds=min((each for each in moments if each is not None), default=None),
        unknown_share=estimate.unknown_cpu_seconds / max(estimate.cpu_seconds, 1e-9),
        phases=len(estimate.phases),
        known=known,
        drops=sum(isinstance(each, StoreDropRecord) for each in recording.events),
    )


def measure(program: str, folder: Path, seconds: float) -> Row:
    """Observe a program twice."""
    store = folder / f"{program}.sqlite"
    without, with_store = (
        observe(program, store, folder / f"{program}-{which}", seconds)
        for which in ("without", "with")
    )
    apart = float("nan")
    if without.overall is not None and with_store.overall is not None:
        difference = without.overall.miss_ratio - with_store.overall.miss_ratio
        apart = float(np.abs(difference).mean())
    return Row(program, session_of(without), session_of(with_store), apart)


def line(row: Row) -> str:
    """A program's figures."""
    cells = []
    for name in ("bursts", "held_seconds", "first_seconds", "unknown_share"):
        for each in (row.without, row.with_store):
            value = getattr(each, name)
            scale = {"held_seconds": 1e3, "unknown_share": 100}.get(name, 1)
            cells.append("-" if value is None else f"{scale * value:.4g}")
    more = (row.with_store.phases, row.with_store.known, row.with_store.drops)
    return f"{row.program:10}" + "".join(
        f"{cell:>9}" for cell in (*cells, *map(str, more), f"{100 * row.apart:.2f}")
    )


COLUMNS = ("bursts", "held, ms", "first, s", "unknown %")
HEADING = f"{'':10}" + "".join(
    f"{word:>9}"
    for word in (
        *(word for column in COLUMNS for word in (column, "with")),
        *("phases", "known", "drops", "apart %"),
    )
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and judge; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser, "fewer programs, 15 seconds")
    parser.add_argument("--seconds", type=float, help="how long each observation takes")
    parser.add_argument("--programs", nargs="+", metavar="NAME", help="of the catalogue")
    args = parser.parse_args(arguments)
    programs = args.programs or (QUICK_PROGRAMS if args.quick else PROGRAMS)
    seconds = args.seconds or (QUICK_SECONDS if args.quick else SECONDS)
    rows, problems = [], []
    print(HEADING)
    with tempfile.TemporaryDirectory(prefix="memsampd-store-") as folder:
        for program in programs:
            try:
                rows.append(measure(program, Path(folder), seconds))
            except (WorkloadError, PreparationError) as error:
                problems.append(f"{program}: {error}")
            else:
                print(line(rows[-1]), flush=True)
    document = {"seconds": seconds, "programs": rows}
    return finish(args.json, document, problems + missed_goals(rows))


def missed_goals(rows: Sequence[Row]) -> list[str]:
    """Print both sums; returns the goals that are missed."""
    without = sum(row.without.bursts for row in rows)
    with_store = sum(row.with_store.bursts for row in rows)
    share = with_store / without if without else float("inf")
    shares = [row.with_store.unknown_share - row.without.unknown_share for row in rows]
    more = float(np.mean(shares)) if shares else float("inf")
    bursts = (
        f"{with_store} bursts with the store for {without} without: {share:.0%} (goal: at most "
        f"{BURSTS_GOAL:.0%})"
    )
    unknown = (
        f"{100 * more:+.2f} points more time without a curve (goal: at most {100 * UNKNOWN_GOAL:g})"
    )
    print(bursts, unknown, sep="\n")
    found = (
        (bursts, share <= BURSTS_GOAL),
        (unknown, more <= UNKNOWN_GOAL),
        *((f"{row.program}: no burst", row.without.bursts > 0) for row in rows),
    )
    return [told for told, is_met in found if not is_met]


if __name__ == "__main__":
    sys.exit(main())
