"""Which accesses of a reference the windows of a recording made, told by the code that ran.

A program does the same in each run, but a recording counts CPU time and a reference accesses. Timer
samples of a window fell in certain code; the reference tells when that code ran. The windows follow
each other without gaps; the first one begins where memsampd attached, so long after the program's
start as the clocks say.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.events import WindowRecord, code_vector
from memsampd.exporters.recording import Recording
from memsampd.phases.branchmap import PAGE_BYTES, BranchMap
from memsampd.phases.windows import hash_bins
from memsampd.sampler.process.code_names import build_id, name_of, note_ranges
from reference.store import Reference

_LONGEST = 0.4  # of the run in one window
_LATEST_START_SECONDS = 1.0
_ROUNDS = 3  # where it began and how long its code takes tell each other
_LEAST_TOLD = 0.02  # what a sample tells of its moment, in units of e
_PRIOR_HITS = 3.0  # the time of an instruction is the run's mean, as if so many hits more had told
_STRANGE = 0.02  # samples that fall anywhere
# The time of windows differs from what their code takes on the average of the run by this (a
# logarithm), and by more at times: the same code on more data.
_TIME_DEVIATION, _MOST_DOUBT = 0.3, 4.0

Floats = NDArray[np.float64]


class AlignmentError(Exception):
    """A recording cannot be aligned: the files that it ran are not there, or are others."""


def align(recording: Recording, reference: Reference, folder: Path | None = None) -> Floats:
    """Return how many accesses the program had made where each window began, and at the end.

    Args:
        recording: of one process that ran the reference's program to its end.
        reference: the reference.
        folder: where programs lie that are not where the recording says, by their names.

    Returns:
        Shape (w + 1,); the first is what came before the attach.

    Raises:
        AlignmentError: less than half of the samples fell in code of the reference, or this is the
            same all the time.
    """
    windows = recording.windows
    hits = np.array(_hits(windows))
    program = Path(recording.header.target.executable)
    if folder is not None and (folder / program.name).exists():
        program = folder / program.name
    names, known = branch_names(reference, program)
    bins = hash_bins(names, hits.shape[1], int(str(recording.header.config["seed"])))
    blocks = reference.branches.table() * known
    shares = np.zeros((len(blocks), hits.shape[1]))
    np.add.at(shares.T, bins, blocks.T)
    instructions = shares * (reference.instructions / np.maximum(blocks.sum(axis=1), 1))[:, None]
    if hits[:, instructions.any(axis=0)].sum() < 0.5 * hits.sum():
        raise AlignmentError(f"{program}: the samples fell in other code")
    cpu_seconds = np.array([window.cpu_seconds for window in windows])
    if told_by_code(instructions, hits) < _LEAST_TOLD:
        raise AlignmentError(f"{program}: its code is the same all the time")
    start, before = 0, seconds_before(recording)
    for _ in range(_ROUNDS):
        seconds = time_by_bin(instructions, hits, cpu_seconds, start)
        start = int(np.searchsorted(np.cumsum(seconds.sum(axis=1)), before))
    at = aligned(seconds, hits, cpu_seconds, start)
    made = np.concatenate([[0], np.cumsum(reference.accesses)])
    return np.asarray(np.interp(at, np.arange(len(made)), made))


def _hits(windows: Sequence[WindowRecord]) -> list[Floats]:
    vectors = [code_vector(window.code) for window in windows]
    if not vectors or len({len(each) for each in vectors}) != 1 or not len(vectors[0]):
        raise AlignmentError("windows were recorded without their code")
    return vectors


def seconds_before(recording: Recording) -> float:
    """Return for how long the program had run when its first window began.

    A recording keeps the program's start by the clock that begins at boot: of another boot, or
    another machine, it is not known, and taken for 0.
    """
    header = recording.header
    boot_seconds = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started = boot_seconds + header.target.start_ticks / os.sysconf("SC_CLK_TCK")
    seconds = header.start_unix_seconds + recording.windows[0].start_seconds - started
    return seconds if 0 <= seconds <= _LATEST_START_SECONDS else 0.0


def told_by_code(instructions: Floats, hits: Floats) -> float:
    """Return how much a sample tells of when it was, on average: the mutual information.

    Args:
        instructions: by window of the reference and bin, shape (f, b).
        hits: of the recording's windows, shape (w, b).
    """
    joint = instructions / instructions.sum()
    apart = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    told = np.zeros_like(joint)
    np.log(joint / np.where(apart > 0, apart, 1), out=told, where=joint > 0)
    by_bin = (joint * told).sum(axis=0) / np.maximum(joint.sum(axis=0), 1e-300)
    return float(hits.sum(axis=0) @ by_bin / hits.sum())


def branch_names(
    reference: Reference, program: Path
) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """Name the branches of a reference's blocks as a session does.

    Args:
        reference: the reference.
        program: the executable that was recorded, which another build may have put elsewhere.

    Returns:
        Names, and 1 where a block has one, else 0, shape (b,).
    """
    blocks = reference.branches
    names, known = np.zeros(len(blocks.offset), np.uint64), np.zeros(len(blocks.offset))
    for number, path in enumerate(blocks.objects):
        file = program if Path(path).name == program.name else Path(path)
        content = file.read_bytes() if path and file.exists() else b""
        notes = [content[at : at + size] for at, size in note_ranges(content[:PAGE_BYTES])]
        identity = next((found for each in notes if (found := build_id(each))), None)
        if identity is None:
            continue
        # Within a file's code, offsets lie about each other as addresses do.
        branches = BranchMap(lambda at, size, content=content: content[at : at + size])  # type: ignore[misc]
        first = name_of(b"build id " + identity)
        for block in np.flatnonzero(blocks.object_index == number):
            names[block] = (first + branches.branch_of(int(blocks.offset[block]))) % 2**64
            known[block] = 1.0
    return names, known


def time_by_bin(instructions: Floats, hits: Floats, cpu_seconds: Floats, start: int = 0) -> Floats:
    """Return the CPU time that code took, as far as the whole run tells.

    Args:
        instructions: by window of the reference and bin, shape (f, b).
        hits: of the recording's windows, shape (w, b).
        cpu_seconds: of these, shape (w,).
        start: the first of the reference's windows that they are of.

    Returns:
        Seconds, shape (f, b): an instruction takes the same everywhere in a bin.
    """
    total = instructions[start:].sum(axis=0)
    expected = total / total.sum() * hits.sum()
    seconds = instructions * (hits.sum(axis=0) + _PRIOR_HITS) / (expected + _PRIOR_HITS)
    return np.asarray(seconds * cpu_seconds.sum() / seconds[start:].sum())


def aligned(seconds: Floats, hits: Floats, cpu_seconds: Floats, start: int = 0) -> Floats:
    """Return where windows begin and end: the likeliest way through the reference.

    Args:
        seconds: CPU time that code takes, by window of the reference and bin, shape (f, b).
        hits: of the recording's windows, shape (w, b).
        cpu_seconds: of these, shape (w,).
        start: where the first one begins.

    Returns:
        Places in the reference, 0 to f, ascending, shape (w + 1,). Windows that are shorter than
        one of the reference's share it.
    """
    fine, count = len(seconds), len(hits)
    until = np.vstack([np.zeros(seconds.shape[1]), np.cumsum(seconds, axis=0)])
    spent = until.sum(axis=1)
    usual = _STRANGE * until[-1] / spent[-1] + 1e-9
    likelihood = np.full(fine + 1, -np.inf)
    likelihood[start] = 0.0
    came_from = np.zeros((count, fine + 1), np.int64)
    inside = np.vstack([seconds, seconds[-1:]])
    inside = np.log((1 - _STRANGE) * inside / inside.sum(axis=1, keepdims=True) + usual)
    for row in range(count):
        bins = np.flatnonzero(hits[row])
        weights = hits[row, bins]
        best = likelihood + inside[:, bins] @ weights - _MOST_DOUBT
        origin = np.arange(fine + 1)
        for step in range(1, round(_LONGEST * fine) + 1):
            took = spent[step:] - spent[:-step]
            mix = (until[step:, bins] - until[:-step, bins]) / took[:, None]
            doubt = (np.log(took / cpu_seconds[row]) / _TIME_DEVIATION) ** 2 / 2
            found = np.log((1 - _STRANGE) * mix + usual[bins]) @ weights
            found += likelihood[:-step] - np.minimum(doubt, _MOST_DOUBT)
            is_better = found > best[step:]
            best[step:][is_better] = found[is_better]
            origin[step:][is_better] = np.flatnonzero(is_better)
        likelihood, came_from[row] = best, origin
    places = [fine]
    for row in range(count - 1, -1, -1):
        places.append(int(came_from[row, places[-1]]))
    return _spread(np.array(places[::-1], np.float64), fine)


def _spread(places: Floats, fine: int) -> Floats:
    """Windows that stay within one window of the reference share it evenly."""
    spread = places.copy()
    for place in np.unique(places):
        (same,) = np.nonzero(places == place)
        parts = np.arange(len(same)) / len(same)
        spread[same] = np.minimum(place + parts, fine)
    spread[0], spread[-1] = places[0], fine
    return spread
