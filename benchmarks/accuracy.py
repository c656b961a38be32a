"""How good memsampd's estimates are, and what they cost: against exact references.

usage: python benchmarks/accuracy.py [--quick] [--programs NAME...] [--held-out] [--repeat N]
                                     [--json FILE] [--markdown FILE] [-- MEMSAMPD-RUN-OPTIONS...]

Every program runs --repeat times without and with ``memsampd run``, in alternating order. Each
recording's estimate is compared with the exact reference in ``benchmarks/reference/data``:

  whole run   mean over 12 sizes, 1 KiB .. 2 MiB, of the absolute error of the miss ratio
  CDF         mean over these sizes of the area between the cumulative distributions of the
              windows' miss ratios, weighted by accesses (Sembrant et al. 2011, section 5.1)
  band        mean width of memsampd's own bounds of the whole run
  slowdown    of the program's wall time, median of the pairs

Exit status 1 if the mean over programs of an error or the slowdown misses its goal.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reference import store
from reference.documents import machine_text, replace_section
from reference.estimates import Estimate, parse_estimate
from reference.judging import judge
from reference.programs import BUILD, PROGRAMS, Program, judged
from reference.running import RunError, Timing, memsampd_command, run_alone, run_recorded
from reference.windows import ERROR_SIZES_BYTES
from verdict import add_options, finish

# Goals: means over all programs, in percent.
WHOLE_RUN_ERROR_GOAL = 5.0
CDF_ERROR_GOAL = 5.0
SLOWDOWN_GOAL = 5.0

QUICK_PROGRAMS = ("gzip", "kernels", "python3")


@dataclass(frozen=True, slots=True)
class Score:
    """One program's result: medians over its runs; errors, band and slowdowns in percent."""

    program: str
    whole_run_error: float
    cdf_error: float
    band: float
    slowdown: float
    extra_cpu: float
    alone_wall_seconds: float
    recorded_wall_seconds: float
    phases: float
    bursts: float | None
    sampled_accesses: float
    windows: float
    unknown_windows: float
    runs: int


@dataclass(frozen=True, slots=True)
class Pair:
    """One run without and one with memsampd, and what the latter estimated."""

    alone: Timing
    recorded: Timing
    estimate: Estimate


def export(recording: Path, policy: str) -> Estimate:
    """Have memsampd work out the curves of a recording."""
    sizes = ",".join(str(size) for size in ERROR_SIZES_BYTES)
    arguments = ("export", str(recording), "--format", "json", "--policy", policy, "--sizes", sizes)
    done = subprocess.run(memsampd_command(*arguments), stdout=subprocess.PIPE, check=True)
    return parse_estimate(json.loads(done.stdout), ERROR_SIZES_BYTES)


def measure_pair(
    command: Sequence[str], recorded_first: bool, policy: str, options: Sequence[str]
) -> Pair:
    """Run a program with and without memsampd, in the order asked for."""
    with tempfile.TemporaryDirectory(prefix="memsampd-accuracy-") as folder:
        recording = Path(folder) / "recording"
        if recorded_first:
            recorded = run_recorded(command, recording, BUILD, options)
            alone = run_alone(command, BUILD)
        else:
            alone = run_alone(command, BUILD)
            recorded = run_recorded(command, recording, BUILD, options)
        return Pair(alone, recorded, export(recording, policy))


def score(program: str, pairs: Sequence[Pair], reference: store.Reference, policy: str) -> Score:
    """Judge the runs of one program."""
    estimates = [pair.estimate for pair in pairs]
    errors = [judge(estimate, reference, policy) for estimate in estimates]
    bursts = [e.bursts for e in estimates if e.bursts is not None]
    median = statistics.median
    return Score(
        program=program,
        whole_run_error=median(each.whole_run for each in errors),
        cdf_error=median(each.fine_cdf for each in errors),
        band=100 * median(e.band for e in estimates),
        slowdown=median(100 * (p.recorded.wall_seconds / p.alone.wall_seconds - 1) for p in pairs),
        extra_cpu=median(
            100 * (p.recorded.total_cpu_seconds / p.alone.total_cpu_seconds - 1) for p in pairs
        ),
        alone_wall_seconds=median(p.alone.wall_seconds for p in pairs),
        recorded_wall_seconds=median(p.recorded.wall_seconds for p in pairs),
        phases=median(e.phases for e in estimates),
        bursts=median(bursts) if bursts else None,
        sampled_accesses=median(e.sampled_accesses for e in estimates),
        windows=median(len(e.windows) for e in estimates),
        unknown_windows=median(e.unknown_windows for e in estimates),
        runs=len(pairs),
    )


COLUMNS = (
    *("program", "whole run %", "CDF %", "band %", "slowdown %", "extra CPU %", "alone s"),
    *("bursts", "sampled M", "phases", "windows", "unknown"),
)


def cells(result: Score) -> list[str]:
    """Return the row of one program."""
    return [
        result.program,
        f"{result.whole_run_error:.2f}",
        f"{result.cdf_error:.2f}",
        f"{result.band:.2f}",
        f"{result.slowdown:+.1f}",
        f"{result.extra_cpu:+.0f}",
        f"{result.alone_wall_seconds:.1f}",
        "?" if result.bursts is None else f"{result.bursts:.0f}",
        f"{result.sampled_accesses / 1e6:.1f}",
        f"{result.phases:.0f}",
        f"{result.windows:.0f}",
        f"{result.unknown_windows:.0f}",
    ]


def means(scores: Sequence[Score]) -> dict[str, float]:
    """Return the means over programs that the goals speak of."""
    names = ("whole_run_error", "cdf_error", "slowdown")
    return {name: statistics.mean(getattr(each, name) for each in scores) for name in names}


def print_table(scores: Sequence[Score]) -> None:
    rows = [list(COLUMNS), *(cells(each) for each in scores)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *others]))


def markdown(scores: Sequence[Score]) -> str:
    """Return the table for docs/accuracy.md."""
    mean = means(scores)
    rows = [list(COLUMNS), ["---", *["---:"] * (len(COLUMNS) - 1)]]
    rows += [cells(each) for each in scores]
    rows.append(
        [
            *("**mean**", f"{mean['whole_run_error']:.2f}", f"{mean['cdf_error']:.2f}", ""),
            f"{mean['slowdown']:+.1f}",
            *[""] * (len(COLUMNS) - 5),
        ]
    )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def caption(scores: Sequence[Score], policy: str) -> str:
    """Say when and where the table was measured."""
    runs = sorted({each.runs for each in scores})
    return (
        f"Measured {datetime.date.today().isoformat()} on {machine_text()}; "
        f"{'/'.join(map(str, runs))} pairs of runs a program, {policy.upper()} caches.\n"
    )


def missed_goals(scores: Sequence[Score]) -> list[str]:
    """Return a line for each goal that was missed."""
    goals = {
        "whole_run_error": WHOLE_RUN_ERROR_GOAL,
        "cdf_error": CDF_ERROR_GOAL,
        "slowdown": SLOWDOWN_GOAL,
    }
    mean = means(scores)
    return [
        f"mean {name.replace('_', ' ')} {mean[name]:.2f} %, goal {goal:g} %"
        for name, goal in goals.items()
        if not mean[name] <= goal  # NaN is missed, too
    ]


def measure(
    program: Program, repeat: int, policy: str, options: Sequence[str]
) -> tuple[Score, tuple[str, ...]]:
    """Measure one program; returns its score and memsampd's warnings in the last run."""
    reference = store.load(store.path_of(program.name))
    command = program.command(BUILD / "programs")
    run_alone(command, BUILD)  # files into the page cache, clocks up
    pairs = [measure_pair(command, bool(i % 2), policy, options) for i in range(repeat)]
    return score(program.name, pairs, reference, policy), pairs[-1].estimate.warnings


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare memsampd's estimates with exact references.",
        epilog=f"programs: {', '.join(program.name for program in PROGRAMS)}",
    )
    add_options(parser, "one run of three programs")
    parser.add_argument("--programs", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--held-out", action="store_true", help="programs held out as well")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="pairs a program")
    parser.add_argument("--policy", choices=("lru", "random"), default="lru")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="put the table there")
    parser.add_argument("options", nargs="*", help="options of 'memsampd run', after --")
    args = parser.parse_args()
    names = args.programs or (QUICK_PROGRAMS if args.quick else ())
    try:
        programs = judged(names, args.held_out)
    except KeyError as error:
        parser.error(f"no program is called {error}")
    except ValueError as error:
        parser.error(str(error))
    if args.repeat < 1:
        parser.error("--repeat needs at least 1")

    scores: list[Score] = []
    for program in programs:
        try:
            result, warnings = measure(
                program, 1 if args.quick else args.repeat, args.policy, args.options
            )
        except RunError as error:
            print(f"{program.name}: {error}", file=sys.stderr)
            return 1
        scores.append(result)
        print(f"{program.name} done", *(f"  ({text})" for text in warnings), sep="\n", flush=True)
    print_table(scores)
    if args.markdown:
        table = f"{caption(scores, args.policy)}\n{markdown(scores)}"
        replace_section(args.markdown, "accuracy", table)
    figures = {"policy": args.policy, "means": means(scores), "programs": scores}
    return finish(args.json, figures, missed_goals(scores))


if __name__ == "__main__":
    sys.exit(main())
