"""How well rates of code that was not timed are modelled, on recordings of known programs.

usage: python benchmarks/speed_model.py FOLDER [--json FILE]

FOLDER holds recordings as ``python -m evaluation`` keeps them (PROGRAM-....mem). Of each program
the exact accesses are known: divided by the CPU time of its windows, they are its mean rate. The
constants of ``memsampd.estimate.speed`` are compared with it, and with the best of their kind for
these recordings (least squares of the logarithms, held near the present ones by a weak prior).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from memsampd.estimate.speed import SECONDS, SpeedModel
from memsampd.exporters.recording import Recording, read_recording
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.survival import SurvivalFunction
from reference import store
from reference.programs import PROGRAMS

_FEWEST_ACCESSES = 200
_PRIOR = 0.02


def burst_features(recording: Recording) -> NDArray[np.float64]:
    """What each burst's rate is modelled by, shape (bursts, 4)."""
    bursts = [burst for burst in recording.bursts if burst.accesses >= _FEWEST_ACCESSES]
    model = SpeedModel(recording.header.cache_sizes_bytes, recording.header.line_bytes)
    whole = sum((burst.histogram() for burst in bursts), ReuseHistogram.empty())
    pooled = SurvivalFunction.from_histogram(whole)
    rows = []
    for burst in bursts:
        survival = SurvivalFunction.from_histogram(burst.histogram()).continued_by(pooled)
        rows.append(model.features(burst, survival))
    return np.array(rows).reshape(-1, len(SECONDS))


def modelled(rows: NDArray[np.float64], constants: NDArray[np.float64]) -> float:
    """Accesses a second: bursts are at random moments of CPU time."""
    return float(np.mean(1 / (rows @ constants)))


def main() -> int:
    """Print a line a recording."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    known: dict[str, tuple[float, NDArray[np.float64]]] = {}
    held_out = {program.name for program in PROGRAMS if program.held_out}
    for path in sorted(args.folder.glob("*.mem")):
        name = path.name.split("-")[0]
        if name in held_out:
            continue
        kept = store.path_of(name)
        recording = read_recording(path)
        rows = burst_features(recording)
        if not kept.exists() or not len(rows):
            continue
        cpu_seconds = sum(window.cpu_seconds for window in recording.windows)
        known[path.stem] = (store.load(kept).total_accesses / cpu_seconds, rows)
    if not known:
        print(f"no recordings of known programs in {args.folder}", file=sys.stderr)
        return 2
    present = np.array(SECONDS)

    def loss(logarithms: NDArray[np.float64]) -> float:
        errors = [
            np.log(modelled(rows, np.exp(logarithms)) / exact) for exact, rows in known.values()
        ]
        prior = _PRIOR * np.sum((logarithms - np.log(present)) ** 2)
        return float(np.sum(np.square(errors)) + prior)

    best = np.exp(minimize(loss, np.log(present), method="Nelder-Mead").x)
    figures = {}
    print(f"{'recording':32} {'exact':>7} {'modelled':>9} {'refitted':>9}   M accesses/s")
    for name, (exact, rows) in known.items():
        figures[name] = [
            rate / 1e6 for rate in (exact, modelled(rows, present), modelled(rows, best))
        ]
        print("{:32} {:7.0f} {:9.0f} {:9.0f}".format(name, *figures[name]))
    table = np.log(np.array(list(figures.values())))
    spread = np.sqrt(np.mean((table[:, 1:] - table[:, :1]) ** 2, axis=0))
    print(f"root mean square of the logarithm: {spread[0]:.2f} now, {spread[1]:.2f} refitted to")
    print("  ns: " + ", ".join(f"{1e9 * each:.2f}" for each in best))
    if args.json:
        args.json.write_text(json.dumps({"rates": figures, "refitted_seconds": best.tolist()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
