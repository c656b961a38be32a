"""Judges kept recordings by the references, without running anything.

usage: python -m evaluation.replay [--policy lru|random] [--programs NAME...] [--held-out]
                                   FOLDER|FILE...

Run it in ``benchmarks/``, or with that in PYTHONPATH. A recording's program is its file's name up
to the first ``-``, as live runs name them (``gzip-scraped-live-0.mem``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from memsampd.exporters.analysis import analyse
from memsampd.exporters.recording import Recording, read_recording
from memsampd.exporters.tables import to_json
from reference import store
from reference.estimates import parse_estimate
from reference.judging import bounds_hold, exact_overall, judge
from reference.programs import judged
from reference.windows import ERROR_SIZES_BYTES

_SMALL, _LARGE = (ERROR_SIZES_BYTES.index(size) for size in (32 << 10, 1 << 20))


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is wrong with one recording's estimate, all in percent.

    Attributes:
        whole_run: error of the whole run's miss ratio, mean over sizes.
        cdf: error of the distribution over windows, mean over sizes.
        flat_cdf: the same of a flat line at the true mean of each size.
        bounds_hold: share of the sizes at which the whole run's bounds hold the truth.
        band_32k: width of the whole run's bounds at 32 KiB.
        band_1m: the same at 1 MiB.
        unknown_cpu: share of the CPU time in windows without a curve.
    """

    whole_run: float
    cdf: float
    flat_cdf: float
    bounds_hold: float
    band_32k: float
    band_1m: float
    unknown_cpu: float


def exported(recording: Recording, policy: str = "lru") -> dict[str, Any]:
    """Return what ``memsampd export --format json`` says of a recording."""
    sizes = np.array(ERROR_SIZES_BYTES, np.int64)
    document: dict[str, Any] = json.loads(to_json(analyse(recording, policy, sizes)))
    return document


def judge_document(
    document: Mapping[str, Any], reference: store.Reference, policy: str = "lru"
) -> Judgement:
    """Judge what ``memsampd export --format json`` says at ``ERROR_SIZES_BYTES``."""
    estimate = parse_estimate(document, ERROR_SIZES_BYTES)
    errors = judge(estimate.overall, estimate.windows, estimate.weights, reference, policy)
    holds = bounds_hold(estimate.low, estimate.high, exact_overall(reference, policy))
    band = 100 * (estimate.high - estimate.low)
    return Judgement(
        whole_run=errors.whole_run,
        cdf=errors.cdf,
        flat_cdf=errors.flat_cdf,
        bounds_hold=100 * float(np.mean(holds)),
        band_32k=float(band[_SMALL]),
        band_1m=float(band[_LARGE]),
        unknown_cpu=100 * estimate.unknown_cpu_share,
    )


def recordings(
    paths: Iterable[Path], names: Sequence[str] = (), with_held_out: bool = False
) -> Iterator[tuple[str, Path]]:
    """Find recordings of programs of the catalogue; yields program and file, in its order."""
    files = [
        file
        for path in paths
        for file in (sorted(path.rglob("*.mem")) if path.is_dir() else [path])
    ]
    for program in judged(names, with_held_out):
        for file in files:
            if file.name.partition("-")[0] == program.name and store.path_of(program.name).exists():
                yield program.name, file


def parse_chosen(
    parser: argparse.ArgumentParser,
) -> tuple[argparse.Namespace, list[tuple[str, Path]]]:
    """Parse the command line of what judges recordings: its arguments, programs and their files."""
    parser.add_argument("paths", nargs="+", type=Path, metavar="FOLDER|FILE")
    parser.add_argument("--programs", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--held-out", action="store_true", help="programs held out as well")
    args = parser.parse_args()
    try:
        return args, list(recordings(args.paths, args.programs, args.held_out))
    except (KeyError, ValueError) as error:
        parser.error(f"--programs: {error}")


def _line(name: str, figures: Sequence[float]) -> str:
    return f"{name:28}" + "".join(f"{figure:13.2f}" for figure in figures)


def main() -> int:
    parser = argparse.ArgumentParser(prog="evaluation.replay", description="Judge recordings.")
    parser.add_argument("--policy", choices=("lru", "random"), default="lru")
    args, found = parse_chosen(parser)
    print(f"{'%':28}" + "".join(f"{field.name:>13}" for field in fields(Judgement)))
    rows: list[tuple[float, ...]] = []
    for name, file in found:
        reference = store.load(store.path_of(name))
        judgement = judge_document(
            exported(read_recording(file), args.policy), reference, args.policy
        )
        rows.append(astuple(judgement))
        print(_line(file.stem, rows[-1]), flush=True)
    if not rows:
        parser.error("no recording of a program that has a reference")
    print(_line("mean", np.mean(rows, axis=0).tolist()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
