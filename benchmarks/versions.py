"""Miss ratios of whole runs as several versions of memsampd tell them, against exact ones.

usage: python benchmarks/versions.py NAME=MEMSAMPD NAME=MEMSAMPD... [--quick] [--programs NAME...]
           [--rounds N] [--keep FOLDER] [--judge] [--markdown FILE] [--json FILE]
           [--options="OPTIONS OF MEMSAMPD RUN"]

Each version is the ``memsampd`` of an environment of its own (``make`` in a clone). Programs with
exact references run under each in turn, in an order drawn anew; a version exports its own
recordings, so that these may differ in their format. The first one named is what the last one is
compared with.

Recordings stay in FOLDER/NAME/PROGRAM-ROUND.mem (``--keep``); ``--judge`` runs nothing.

Exit status 1 if, at 4 MiB and more, the last version's bounds are more than half as wide as those
of the first or hold less than 95 % of the exact figures, or if its error is larger than at the
sizes below.
"""

from __future__ import annotations

import argparse
import datetime
import random
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from evaluation.page import Page
from reference import store
from reference.documents import machine_text, replace_section
from reference.estimates import told_ratios
from reference.judging import bounds_hold
from reference.programs import BUILD, environment, find
from reference.whole_runs import LARGE_BYTES, LARGE_PROGRAMS
from reference.windows import LRU_SIZES_BYTES
from verdict import add_options, finish

QUICK_PROGRAMS = ("sorting", "graph", "solver")
LARGE = np.array(LRU_SIZES_BYTES) >= LARGE_BYTES
# Goals.
WIDTH_SHARE = 0.5
HELD_GOAL = 95.0


class ExportedCurve(msgspec.Struct):
    """A curve as ``memsampd export`` writes it."""

    miss_ratio: list[float | None]
    low: list[float]
    high: list[float]


class Exported(msgspec.Struct):
    """What is read of an export."""

    overall: ExportedCurve


@dataclass(frozen=True, slots=True)
class Version:
    """A version of memsampd.

    Attributes:
        name: what it is called here.
        executable: its command.
    """

    name: str
    executable: Path

    @classmethod
    def of(cls, text: str) -> Version:
        """Read NAME=MEMSAMPD.

        Raises:
            ValueError: it is something else.
        """
        name, equals, path = text.partition("=")
        if not equals:
            raise ValueError(text)
        return cls(name, Path(path).absolute())

    def record(self, command: Sequence[str], path: Path, options: Sequence[str]) -> None:
        """Observe a program from its begin to its end."""
        path.parent.mkdir(parents=True, exist_ok=True)
        under = ("run", "-o", str(path), "--force", "--no-listen", *options, "--", *command)
        subprocess.run(
            (str(self.executable), *under),
            env=environment(),
            cwd=BUILD,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def exported(self, path: Path) -> ExportedCurve:
        """Return the curve of the whole run, at ``LRU_SIZES_BYTES``."""
        sizes = ",".join(f"{size >> 10}KiB" for size in LRU_SIZES_BYTES)
        command = (str(self.executable), "export", str(path), "--format", "json", "--sizes", sizes)
        done = subprocess.run(command, capture_output=True, check=True)
        return msgspec.json.decode(done.stdout, type=Exported).overall


@dataclass(frozen=True, slots=True)
class Score:
    """One run of a program; lists have a figure for each of ``LRU_SIZES_BYTES``, in points.

    Attributes:
        program: its name.
        version: whose run it is.
        errors: of the miss ratio.
        widths: of its bounds.
        holds: whether these hold the exact figure.
    """

    program: str
    version: str
    errors: list[float]
    widths: list[float]
    holds: list[bool]


@dataclass(frozen=True, slots=True)
class Means:
    """Over runs and sizes, in points; how many bounds hold in percent.

    Attributes:
        small: error at sizes below 4 MiB.
        error: error from there on.
        width: of the bounds there.
        held: of these.
    """

    small: float
    error: float
    width: float
    held: float

    @classmethod
    def of(cls, scores: Sequence[Score]) -> Means:
        """Take the means."""
        errors = np.array([each.errors for each in scores])
        widths = np.array([each.widths for each in scores])
        holds = np.array([each.holds for each in scores])
        return cls(
            small=float(errors[:, ~LARGE].mean()),
            error=float(errors[:, LARGE].mean()),
            width=float(widths[:, LARGE].mean()),
            held=100 * float(holds[:, LARGE].mean()),
        )


def score(reference: store.Reference, version: str, curve: ExportedCurve) -> Score:
    """Judge a curve; where nothing is told, the estimate is the middle of the bounds."""
    exact = reference.lru.sum(axis=0) / reference.total_accesses
    low, high = np.array(curve.low), np.array(curve.high)
    told = told_ratios(msgspec.structs.asdict(curve))
    return Score(
        program=reference.name,
        version=version,
        errors=(100 * np.abs(told - exact)).tolist(),
        widths=(100 * (high - low)).tolist(),
        holds=bounds_hold(low, high, exact).tolist(),
    )


def record_all(
    versions: Sequence[Version],
    names: Sequence[str],
    rounds: int,
    folder: Path,
    options: Sequence[str],
) -> None:
    """Run each program under each version, so many times."""
    rng = random.Random(rounds)
    for number in range(rounds):
        for program in find(names):
            command = program.command(BUILD / "programs")
            for version in rng.sample(versions, len(versions)):
                path = folder.absolute() / version.name / f"{program.name}-{number}.mem"
                version.record(command, path, options)


def judge_all(versions: Sequence[Version], names: Sequence[str], folder: Path) -> list[Score]:
    """Judge all recordings of a folder."""
    return [
        score(store.load(store.path_of(name)), version.name, version.exported(path))
        for name in names
        for version in versions
        for path in sorted((folder / version.name).glob(f"{name}-*.mem"))
    ]


def page_of(versions: Sequence[Version], scores: Sequence[Score], options: Sequence[str]) -> Page:
    """One table: each program under each version, and the means of these."""
    page = Page()
    with_options = f", with {' '.join(options)}" if options else ""
    date = datetime.datetime.now(datetime.UTC).date()
    page.text(f"Measured {date} on {machine_text()}{with_options}.")
    header = (
        "program",
        "version",
        "runs",
        "error to 2 MiB",
        "error from 4 MiB",
        "width",
        "held, %",
    )
    rows = []
    for name in [*dict.fromkeys(each.program for each in scores), "**mean**"]:
        for version in versions:
            own = [
                each
                for each in scores
                if each.version == version.name and name in (each.program, "**mean**")
            ]
            if not own:
                continue
            means = Means.of(own)
            figures = (means.small, means.error)
            told = (*(f"{each:.2f}" for each in figures), f"{means.width:.1f}", f"{means.held:.0f}")
            rows.append((name, version.name, str(len(own)), *told))
    page.table(header, rows)
    return page


def missed_goals(before: Means, now: Means) -> list[str]:
    """Return the goals that are missed."""
    goals = {
        f"width {now.width:.1f}, before {before.width:.1f}": now.width
        <= WIDTH_SHARE * before.width,
        f"bounds that hold: {now.held:.1f} %": now.held >= HELD_GOAL,
        f"error {now.error:.2f} from 4 MiB, {now.small:.2f} below": now.error <= now.small,
    }
    return [goal for goal, is_met in goals.items() if not is_met]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare versions of memsampd.")
    add_options(parser, "three programs")
    parser.add_argument("--programs", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=1, metavar="N")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where recordings are kept")
    parser.add_argument("--judge", action="store_true", help="only judge those that are there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="put the table there")
    parser.add_argument("--options", default="", metavar="OPTIONS", help="of memsampd run")
    parser.add_argument("versions", nargs="+", type=Version.of, metavar="NAME=MEMSAMPD")
    args = parser.parse_args()
    if len(args.versions) < 2:
        parser.error("at least two versions")
    names = args.programs or (QUICK_PROGRAMS if args.quick else LARGE_PROGRAMS)
    options = args.options.split()
    with tempfile.TemporaryDirectory(prefix="memsampd-versions-") as temporary:
        folder = args.keep or Path(temporary)
        if not args.judge:
            record_all(args.versions, names, args.rounds, folder, options)
        scores = judge_all(args.versions, names, folder)
    page = page_of(args.versions, scores, options)
    print(page.markdown())
    if args.markdown:
        replace_section(args.markdown, "versions", page.markdown())
    before, *_, now = (
        Means.of([each for each in scores if each.version == version.name])
        for version in args.versions
    )
    return finish(args.json, scores, missed_goals(before, now))


if __name__ == "__main__":
    raise SystemExit(main())
