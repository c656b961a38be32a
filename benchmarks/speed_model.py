"""How well rates of code that was not timed are modelled, on recordings of known programs.

usage: python benchmarks/speed_model.py [--programs NAME...] [--held-out] [--json FILE]
                                        FOLDER|FILE...

Recordings are those that ``python -m evaluation`` keeps (PROGRAM-....mem). Of each program
the exact accesses are known: divided by the CPU time of its windows, they are its mean rate. The
constants of ``memsampd.estimate.speed`` are compared with it, and with the best of their kind for
these recordings (least squares of the logarithms, held near the present ones by a weak prior); and
so is the model without what the modelled core says of a burst, which then only has its
instructions. Bursts that were timed in the target are compared one by one. Exit status 1: the root
mean square of the logarithm is above GOAL.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from evaluation.replay import parse_chosen
from memsampd.estimate.speed import SECONDS, SpeedModel
from memsampd.exporters.recording import Recording, read_recording
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.survival import SurvivalFunction
from reference import store
from verdict import finish

GOAL = 0.4
_FEWEST_ACCESSES = 200
_PRIOR = 0.02


@dataclass(frozen=True)
class Known:
    """What is known of a recording, and what its bursts' rates are modelled by.

    Attributes:
        rate: exact accesses over CPU time, a second.
        features: of each burst, shape (b, 6).
        without_core: the same by instructions alone.
        timed: rates measured in the target, accesses a second, nan where there is none, shape (b,).
    """

    rate: float
    features: NDArray[np.float64]
    without_core: NDArray[np.float64]
    timed: NDArray[np.float64]


def known_of(recording: Recording, total_accesses: float) -> Known | None:
    """Return what a recording tells; None if it has no bursts."""
    bursts = [burst for burst in recording.bursts if burst.accesses >= _FEWEST_ACCESSES]
    if not bursts:
        return None
    header = recording.header
    model = SpeedModel(header.cache_sizes_bytes, header.line_bytes, header.cache_seconds)
    whole = sum((burst.histogram() for burst in bursts), ReuseHistogram.empty())
    pooled = SurvivalFunction.from_histogram(whole)
    rows, without, timed = [], [], []
    for burst in bursts:
        survival = SurvivalFunction.from_histogram(burst.histogram()).continued_by(pooled)
        rows.append(model.features(burst, survival))
        without.append(model.features(msgspec.structs.replace(burst, core=None), survival))
        is_timed = burst.timed is not None and burst.timed.cpu_seconds > 0
        timed.append(burst.timed.accesses_per_cpu_second if burst.timed and is_timed else np.nan)
    cpu_seconds = sum(window.cpu_seconds for window in recording.windows)
    rate = total_accesses / cpu_seconds
    return Known(rate, np.array(rows), np.array(without), np.array(timed))


def modelled(rows: NDArray[np.float64], constants: NDArray[np.float64]) -> float:
    """Accesses a second: bursts are at random moments of CPU time."""
    return float(np.mean(1 / (rows @ constants)))


def refitted(known: Iterable[Known]) -> NDArray[np.float64]:
    """Return the constants that fit best."""
    present = np.array(SECONDS)

    def loss(logarithms: NDArray[np.float64]) -> float:
        errors = [np.log(modelled(each.features, np.exp(logarithms)) / each.rate) for each in known]
        prior = _PRIOR * np.sum((logarithms - np.log(present)) ** 2)
        return float(np.sum(np.square(errors)) + prior)

    best: NDArray[np.float64] = np.exp(minimize(loss, np.log(present), method="Nelder-Mead").x)
    return best


def print_rates(figures: dict[str, list[float]]) -> NDArray[np.float64]:
    """Print a line a recording; returns root mean squares of the logarithm, shape (3,)."""
    titles = ("exact", "no core", "modelled", "refitted")
    print("{:32} {:>9} {:>9} {:>9} {:>9}   M accesses/s".format("recording", *titles))
    for name, row in figures.items():
        print("{:32} {:9.0f} {:9.0f} {:9.0f} {:9.0f}".format(name, *row))
    table = np.log(np.array(list(figures.values())))
    return np.asarray(np.sqrt(np.mean((table[:, 1:] - table[:, :1]) ** 2, axis=0)))


def print_timed(known: Collection[Known]) -> None:
    """Print how far off bursts are that were timed."""
    timed = np.concatenate([each.timed for each in known])
    for title, parts in (
        ("without the core", [each.without_core for each in known]),
        ("now", [each.features for each in known]),
    ):
        off = -np.log(np.concatenate(parts) @ np.array(SECONDS) * timed)
        off = off[np.isfinite(off)]
        print(
            f"{len(off)} timed bursts, {title}: median of the logarithm {np.median(off):+.2f}, "
            f"of its deviation {np.median(np.abs(off - np.median(off))):.2f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args, found = parse_chosen(parser)
    known: dict[str, Known] = {}
    for name, file in found:
        told = known_of(read_recording(file), store.load(store.path_of(name)).total_accesses)
        if told is not None:
            known[file.stem] = told
    if not known:
        parser.error("no recording of a program that has a reference")
    present, best = np.array(SECONDS), refitted(known.values())
    figures = {
        name: [
            rate / 1e6
            for rate in (
                each.rate,
                modelled(each.without_core, present),
                modelled(each.features, present),
                modelled(each.features, best),
            )
        ]
        for name, each in known.items()
    }
    spread = print_rates(figures)
    print(
        f"root mean square of the logarithm: {spread[0]:.2f} without the core, {spread[1]:.2f} now "
        f"(goal {GOAL}), {spread[2]:.2f} refitted to\n  ns: "
        + ", ".join(f"{1e9 * each:.2f}" for each in best)
    )
    print_timed(known.values())
    missed = [f"root mean square {spread[1]:.2f} (goal {GOAL})"] if not spread[1] <= GOAL else []
    return finish(args.json, {"rates": figures, "refitted_seconds": best.tolist()}, missed)


if __name__ == "__main__":
    sys.exit(main())
