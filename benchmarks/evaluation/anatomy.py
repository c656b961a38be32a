"""What the error of kept recordings consists of: one part of the estimate at a time made exact.

usage: python -m evaluation.anatomy [--programs NAME...] [--held-out] [--executables FOLDER]
                                    FOLDER|FILE...

Run it in ``benchmarks/``, or with that in PYTHONPATH. The windows of a recording are aligned with
the reference by the code that they ran (:mod:`evaluation.alignment`), which needs the executables
that were recorded.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from evaluation.alignment import AlignmentError, Floats, align
from evaluation.nearest import burst_curves
from evaluation.replay import exported, parse_chosen
from memsampd.estimate.events import code_vector
from memsampd.exporters.recording import Recording, read_recording
from memsampd.models.statstack import StatStack
from reference import store
from reference.estimates import Estimate, parse_estimate
from reference.judging import exact_overall, exact_pieces
from reference.metrics import whole_run_error
from reference.store import Reference
from reference.windows import ERROR_SIZES_BYTES

_UNSEEN = 0.1  # of a window's samples: its code was not seen
_SUM_WEIGHT = 10.0  # how much shares that do not sum to 1 count, in units of miss ratios


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Whole-run errors of one recording, in percent, and what tells why.

    All but the first are of the run from the attach on.

    Attributes:
        estimate: of the whole run, what came before the attach included.
        attached: from the attach on.
        accesses: with the exact accesses of each window.
        curves: with the exact curve of each window.
        seen: with the exact accesses and curves of windows that ran much code that no burst ran.
        mixed: each window's curve the best mix of the bursts that there were, with its exact
            accesses: what bursts and models leave.
        before: accesses before the attach, of all.
        unseen: CPU time in code that no burst ran, of all.
    """

    estimate: float
    attached: float
    accesses: float
    curves: float
    seen: float
    mixed: float
    before: float
    unseen: float


def dissect(
    recording: Recording, estimate: Estimate, reference: Reference, bounds: Floats
) -> Anatomy:
    """Replace parts of an estimate by what is exact.

    Args:
        recording: what was recorded.
        estimate: what memsampd says of it.
        reference: of the program.
        bounds: accesses made where each window began, and at the end, shape (w + 1,).
    """
    accesses, misses = exact_pieces(reference, bounds)
    exact = misses.sum(axis=0) / accesses.sum()
    unseen = unseen_shares(recording)
    told = estimate.weights[:, None] * estimate.windows
    ratios = misses / np.maximum(accesses, 1)[:, None]
    curves = modelled_bursts(recording)

    def error(accesses: Floats, misses: Floats) -> float:
        return whole_run_error(misses.sum(axis=0) / accesses.sum(), exact)

    # Estimated accesses may all be wrong by one factor: exact ones take part on the same scale.
    scale = estimate.weights.sum() / accesses.sum()
    is_unseen = unseen > _UNSEEN
    mixed = np.array([best_mix(each, curves) for each in ratios])
    cpu_seconds = np.array([window.cpu_seconds for window in recording.windows])
    return Anatomy(
        estimate=whole_run_error(estimate.overall, exact_overall(reference)),
        attached=whole_run_error(estimate.overall, exact),
        accesses=error(accesses, accesses[:, None] * estimate.windows),
        curves=error(estimate.weights, estimate.weights[:, None] * ratios),
        seen=error(
            np.where(is_unseen, scale * accesses, estimate.weights),
            np.where(is_unseen[:, None], scale * misses, told),
        ),
        mixed=error(accesses, accesses[:, None] * mixed),
        before=100 * float(bounds[0] / reference.total_accesses),
        unseen=100 * float(np.average(unseen, weights=cpu_seconds)),
    )


def unseen_shares(recording: Recording) -> Floats:
    """Return which share of each window's samples fell in code that no burst ran, shape (w,)."""
    hits = np.array([code_vector(window.code) for window in recording.windows])
    vectors = [code_vector(burst.code) for burst in recording.bursts]
    ran = np.zeros(hits.shape[1], np.bool_)
    for vector in vectors:
        if len(vector) == len(ran):
            ran |= vector > 0
    return np.asarray(hits[:, ~ran].sum(axis=1) / np.maximum(hits.sum(axis=1), 1))


def modelled_bursts(recording: Recording) -> Floats:
    """Return the curve of each burst by itself at ``ERROR_SIZES_BYTES``, shape (m, s)."""
    histograms = {
        number: burst.histogram()
        for number, burst in enumerate(recording.bursts)
        if burst.accesses > 0
    }
    sizes = np.array(ERROR_SIZES_BYTES, np.int64)
    curves = burst_curves(histograms, StatStack(), sizes, recording.header.line_bytes)
    return np.array([curve.miss_ratio for curve in curves.values()])


def best_mix(ratios: Floats, curves: Floats) -> Floats:
    """Return the mix of some curves, shape (m, s), that is the most like one, shape (s,)."""
    ones = np.full((1, len(curves)), _SUM_WEIGHT)
    shares, _ = nnls(np.vstack([curves.T, ones]), np.append(ratios, _SUM_WEIGHT))
    return np.asarray(shares @ curves)


def _line(name: str, figures: tuple[float, ...]) -> str:
    return f"{name:28}" + "".join(f"{figure:10.2f}" for figure in figures)


def main() -> int:
    parser = argparse.ArgumentParser(prog="evaluation.anatomy", description=__doc__)
    parser.add_argument("--executables", type=Path, help="where programs lie that were moved")
    args, found = parse_chosen(parser)
    print(f"{'%':28}" + "".join(f"{field.name:>10}" for field in fields(Anatomy)))
    rows: dict[str, list[tuple[float, ...]]] = {}
    for name, file in found:
        recording, reference = read_recording(file), store.load(store.path_of(name))
        try:
            bounds = align(recording, reference, args.executables)
        except AlignmentError as error:
            print(f"{file.stem:28} left out: {error}", flush=True)
            continue
        estimate = parse_estimate(exported(recording), ERROR_SIZES_BYTES)
        anatomy = astuple(dissect(recording, estimate, reference, bounds))
        rows.setdefault(name, []).append(anatomy)
        print(_line(file.stem, anatomy), flush=True)
    if not rows:
        parser.error("no recording that can be aligned with a reference")
    for name, each in rows.items():
        print(_line(name, tuple(np.mean(each, axis=0).tolist())))
    means = [np.mean(each, axis=0) for each in rows.values()]
    print(_line("mean of programs", tuple(np.mean(means, axis=0).tolist())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
