"""Recordings aligned with references by code, and their error taken to pieces."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from invented import burst_record, header, recording_of, window_record
from invented_reference import WINDOW_ACCESSES, invented_reference, kinds
from numpy.typing import NDArray

from evaluation.alignment import (
    AlignmentError,
    align,
    aligned,
    branch_names,
    seconds_before,
    time_by_bin,
    told_by_code,
)
from evaluation.anatomy import best_mix, dissect
from memsampd.daemon.branches import named_branches
from memsampd.estimate.events import code_bytes
from memsampd.exporters.recording import Recording
from memsampd.phases.windows import hash_bins
from memsampd.sampler.process.maps import read_maps
from reference.estimates import Estimate
from reference.judging import exact_overall, exact_pieces
from reference.store import Reference
from reference.windows import ERROR_SIZES_BYTES

Floats = NDArray[np.float64]
BINS = 4096
REFERENCE = invented_reference()
KINDS = kinds(len(REFERENCE.accesses))


def cut(seconds: Floats, start: float, count: int, samples: int) -> tuple[Floats, Floats, Floats]:
    """Cut a run into windows of equal time, and draw their samples.

    Returns:
        Where they begin and end, in windows of the reference, their hits and their CPU times.
    """
    rng = np.random.default_rng(3)
    spent = np.concatenate([[0.0], np.cumsum(seconds.sum(axis=1))])
    begin = np.interp(start, np.arange(len(spent)), spent)
    moments = np.linspace(begin, spent[-1], count + 1)
    until = np.vstack([np.zeros(seconds.shape[1]), np.cumsum(seconds, axis=0)])
    mixes = np.diff([[np.interp(at, spent, each) for each in until.T] for at in moments], axis=0)
    hits = [rng.multinomial(samples, mix / mix.sum()) for mix in mixes]
    return np.interp(moments, spent, np.arange(len(spent))), np.array(hits, float), np.diff(moments)


def test_windows_are_found_by_their_code() -> None:
    seconds = np.array([np.eye(4)[(at // 5) % 4] * (1 + at // 5 % 3) for at in range(60)])
    seconds += 0.1
    places, hits, cpu_seconds = cut(seconds, 7, 25, 60)
    found = aligned(seconds, hits, cpu_seconds, start=7)
    assert (found[0], found[-1]) == (7, 60)
    assert np.mean(np.abs(found - places)) < 0.7


def test_windows_within_one_of_the_reference_share_it() -> None:
    seconds = np.array([[1.0, 0], [0, 10], [1, 0]])
    hits = np.array([[50.0, 0]] + 10 * [[0, 50]] + [[50, 0]])
    found = aligned(seconds, hits, np.ones(12))
    assert found == pytest.approx([0, *np.linspace(1, 2, 11), 3], abs=0.11)


def test_code_takes_as_long_as_its_samples_tell() -> None:
    instructions = np.array([[3e6, 0], [3e6, 1e6], [0, 1e6]])
    seconds = time_by_bin(instructions, np.array([[3000.0, 0], [0, 9000]]), np.array([1.0, 3.0]), 1)
    assert seconds[1:].sum() == pytest.approx(4)
    assert seconds[:, 0] == pytest.approx([1, 1, 0], rel=1e-2)
    assert seconds[:, 1] == pytest.approx([0, 1.5, 1.5], rel=1e-2)


def test_only_code_that_changes_tells_a_moment() -> None:
    hits = np.array([[5.0, 5], [5, 5]])
    assert told_by_code(np.array([[1.0, 0], [0, 1]]), hits) == pytest.approx(np.log(2))
    assert told_by_code(np.ones((2, 2)), hits) == pytest.approx(0)


def of_the_c_library() -> tuple[Reference, Path, NDArray[np.uint64]]:
    """The invented reference, as if it had run code of libc; names of its branches here."""
    text = next(
        each
        for each in read_maps(os.getpid()).mappings
        if Path(each.path).name == "libc.so.6" and each.is_executable
    )
    program = Path(text.path)
    starts, seen = [], set()
    for offset in range(text.size_bytes // 2, text.size_bytes, 4096):
        name = int(_here(np.array([text.start + offset], np.uint64))[0])
        if name not in seen:
            seen.add(name)
            starts.append(offset)
        if len(starts) == 5:
            break
    offsets = np.array(starts, np.int64) + text.offset
    blocks = dataclasses.replace(REFERENCE.branches, objects=(str(program),), offset=offsets)
    names = _here((offsets - text.offset + text.start).astype(np.uint64))
    return dataclasses.replace(REFERENCE, branches=blocks), program, names


def _here(ips: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return named_branches(os.getpid()).lookup(os.getpid(), ips)


def recorded(program: Path, hits: Floats, cpu_seconds: Floats, seed: int) -> Recording:
    """Windows with these hits, of a program that memsampd started with."""
    windows = [
        msgspec.structs.replace(
            window_record(index, 0), code=code_bytes(row), cpu_seconds=float(seconds)
        )
        for index, (row, seconds) in enumerate(zip(hits, cpu_seconds, strict=True))
    ]
    target = msgspec.structs.replace(header().target, executable=str(program))
    config = {**header().config, "seed": seed}
    head = msgspec.structs.replace(header(), target=target, config=config, start_unix_seconds=0.0)
    return dataclasses.replace(recording_of(windows), header=head)


def test_branches_are_named_as_in_a_session() -> None:
    reference, program, names = of_the_c_library()
    found, known = branch_names(reference, program)
    assert known.all()
    assert found.tolist() == names.tolist()


def test_a_recording_is_aligned_with_its_reference() -> None:
    reference, program, names = of_the_c_library()
    bins = hash_bins(names, BINS, 2)
    seconds = np.zeros((len(KINDS), BINS))
    np.add.at(seconds.T, bins, reference.branches.table().T / 1000)
    places, hits, cpu_seconds = cut(seconds, 0, 24, 50)
    made = align(recorded(program, hits, cpu_seconds, seed=2), reference)
    assert made / WINDOW_ACCESSES == pytest.approx(places, abs=3)
    with pytest.raises(AlignmentError):  # its bins are others
        align(recorded(program, hits, cpu_seconds, seed=3), reference)


def test_what_ran_before_another_boot_is_not_known() -> None:
    recording = recorded(Path("/usr/bin/true"), np.ones((2, BINS)), np.ones(2), seed=0)
    assert seconds_before(recording) == 0


# -- anatomy -------------------------------------------------------------------------------------


def estimate_of(weights: Floats, windows: Floats) -> Estimate:
    overall = np.average(windows, axis=0, weights=weights)
    none = np.zeros_like(overall)
    return Estimate(overall, none, none + 1, windows, weights, 0.0)


def halves(code: Floats) -> Recording:
    windows = [
        msgspec.structs.replace(window_record(index, 0), code=code_bytes(row))
        for index, row in enumerate(code)
    ]
    ran = msgspec.structs.replace(burst_record(0, 0), code=code_bytes(10 * np.eye(4)[0]))
    return recording_of(windows, [ran])


def test_what_is_wrong_is_what_heals() -> None:
    """Of four windows one is of code that no burst saw; the first tenth came before the attach."""
    code = 20 * np.eye(4)[[0, 0, 1, 0]]
    bounds = np.linspace(0.1, 1, 5) * REFERENCE.total_accesses
    accesses, misses = exact_pieces(REFERENCE, bounds)
    ratios = misses / accesses[:, None]
    recording = halves(code)

    right = dissect(recording, estimate_of(3 * accesses, ratios), REFERENCE, bounds)
    assert [right.attached, right.accesses, right.curves, right.seen] == pytest.approx([0] * 4)
    exact = misses.sum(axis=0) / accesses.sum()
    before = 100 * np.mean(np.abs(exact - exact_overall(REFERENCE, "lru")))
    assert right.estimate == pytest.approx(before)
    assert right.before == pytest.approx(10)
    assert right.unseen == pytest.approx(25)

    slow = dissect(recording, estimate_of(np.array([1.0, 2, 3, 4]), ratios), REFERENCE, bounds)
    assert slow.attached == pytest.approx(slow.curves) != pytest.approx(0)
    assert slow.accesses == pytest.approx(0)

    wrong = ratios.copy()
    wrong[2] = 0.0
    unseen = dissect(recording, estimate_of(accesses, wrong), REFERENCE, bounds)
    assert unseen.accesses == pytest.approx(unseen.attached) != pytest.approx(0)
    assert [unseen.curves, unseen.seen] == pytest.approx([0, 0])


def test_the_best_mix_of_some_curves_is_as_near_as_can_be() -> None:
    sizes = len(ERROR_SIZES_BYTES)
    curves = np.array([np.full(sizes, 0.2), np.full(sizes, 0.6)])
    assert best_mix(np.full(sizes, 0.3), curves) == pytest.approx(np.full(sizes, 0.3))
    assert best_mix(np.full(sizes, 0.9), curves) == pytest.approx(np.full(sizes, 0.6), abs=0.1)
