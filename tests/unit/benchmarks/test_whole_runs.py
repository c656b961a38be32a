"""What recordings tell of whole runs, beside the truth of made-up ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from invented import burst_record, recording_of, timed, window_record, write_recording
from invented_reference import misses_alone
from numpy.typing import NDArray

from evaluation.experiments.sources import BOTH, BURSTS, OWN_CPU, WALKS, Sources, figures, goals
from evaluation.page import Page
from long_distances import Means, distances_page, missed_goals, paired, score, sizes_page
from memsampd.estimate.events import BurstRecord, WatchRecord
from memsampd.exporters.recording import Recording, read_recording
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.statstack import StatStack
from memsampd.models.survival import SurvivalFunction
from reference.store import Reference
from reference.whole_runs import (
    Compared,
    ReuseDistances,
    UntoldError,
    compare_distances,
    compare_sizes,
    nearest_edges,
    told_distances,
    without_watches,
)
from reference.windows import ERROR_SIZES_BYTES, LRU_SIZES_BYTES, REUSE_EDGES

DISTANCES = nearest_edges((1e4, 1e5, 1e6, 1e7, 1e8))
RATE = 1e8  # accesses per CPU second
WINDOWS = 30


def loop(lines: int, total: int) -> Reference:
    """Exact figures of a loop over so many lines: all but the first round returns as late."""
    reuses = np.zeros((1, len(REUSE_EDGES) - 1), np.int64)
    reuses[0, np.searchsorted(REUSE_EDGES, lines - 1, side="right") - 1] = total - lines
    fits = np.array([[lines if size >= 64 * lines else total for size in LRU_SIZES_BYTES]])
    alone = misses_alone(np.array([total]), fits, fits[:, : len(ERROR_SIZES_BYTES)])
    return replace(alone, reuses=reuses, cold=np.array([lines]))


def burst_of(lines: NDArray[np.uint64], window: int) -> BurstRecord:
    """A burst of these lines, at a known rate."""
    histogram = ReuseHistogram.from_lines(lines)
    bins, reuses, censored = histogram.to_sparse()
    return msgspec.structs.replace(
        burst_record(0, window, 4),
        accesses=len(lines),
        rows=len(lines),
        bins=bins.astype("<i4").tobytes(),
        reuses=reuses.astype("<i8").tobytes(),
        censored=censored.astype("<i8").tobytes(),
        timed=timed(RATE),
    )


def watch_of(lines: int, window: int) -> WatchRecord:
    """What watching a word of the loop tells: it is touched once a round."""
    moments = tuple((np.array([0, 0.5, 1.5, 2.5, 2.6]) * lines / RATE).tolist())
    return WatchRecord(
        window=window,
        phase=0,
        tid=1,
        least_accesses=20_000,
        times_seconds=tuple(0.1 * window + each for each in moments),
        cpu_seconds=moments,
        patience_seconds=0.5,
        end="returned",
        words=4,
        touched=8,
        hit_words=(0, 0, 0),
    )


def recording_of_loop(lines: int, accesses: int, watches: int) -> Recording:
    """Bursts in every third window, and watches of lines that these left open."""
    sweep = np.arange(accesses, dtype=np.uint64) % np.uint64(lines)
    plain = recording_of(
        [window_record(index, 0) for index in range(WINDOWS)],
        [burst_of(sweep, index) for index in range(0, WINDOWS, 3)],
    )
    told = [watch_of(lines, 3 * (each % (WINDOWS // 3))) for each in range(watches)]
    header = msgspec.structs.replace(plain.header, config={"own_cpu_share": 0.05})
    return replace(plain, header=header, events=[*plain.events, *told])


def test_edges_next_to_round_distances() -> None:
    assert DISTANCES.tolist() == [10_240, 98_304, 1_048_576, 10_485_760, 100_663_296]


def test_a_loop_that_bursts_see_is_told_to_be_one() -> None:
    lines = 50_000
    found = compare_distances(recording_of_loop(lines, 400_000, 0), loop(lines, 10**9), DISTANCES)
    assert found.exact == pytest.approx([1, 5e-5, 5e-5, 5e-5, 5e-5], abs=1e-6)
    assert found.errors.max() < 1
    assert found.held == 100


def test_watches_tell_where_a_long_loop_ends() -> None:
    lines = 3_000_000
    reference = loop(lines, 10**10)
    recording = recording_of_loop(lines, 60_000, 40)
    without, told = (
        compare_distances(each, reference, DISTANCES)
        for each in (without_watches(recording), recording)
    )
    assert without.exact == pytest.approx([1, 1, 1, 3e-4, 3e-4], abs=1e-5)
    assert without.estimate[:2] == pytest.approx(np.ones(2))  # a stream, as far as bursts see
    assert without.errors[2:].min() > 10  # beyond, as caches usually do
    assert without.widths[1:] == pytest.approx(np.full(4, 100))
    assert told.estimate == pytest.approx([1, 1, 1, 0, 0], abs=0.01)
    assert told.widths[1:].max() < 60
    assert without.held == told.held == 100
    shares = paired(without, told)
    assert [each.at for each in shares] == DISTANCES.tolist()
    means = Means.of(shares)
    assert means.error == pytest.approx((without.errors.mean(), told.errors.mean()))
    assert means.error[1] < 1
    assert means.held == (100, 100)


def test_beyond_the_horizon_distances_go_on_as_caches_do() -> None:
    """A cache of L lines misses S of the distance within which L lines come by."""
    horizon = 100_000
    edges = np.array([0, 1000, 10_000, horizon], np.int64)
    survival = SurvivalFunction(edges, np.array([1, 0.5, 0.2, 0.1]), horizon)
    sizes = 64 * np.array([40_000, 100_000, 400_000], np.int64)
    missed = StatStack().curve(survival, sizes).miss_ratio
    distances = np.unique(np.geomspace(horizon, 10**8, 200_000).astype(np.int64))
    found = ReuseDistances().curve(survival, distances)
    assert found.high == pytest.approx(np.full(len(distances), 0.1))
    assert not found.low[1:].any()
    assert not np.any(np.diff(found.miss_ratio) > 0)
    within = 1000 * 0.75 + 9000 * 0.35 + 90_000 * 0.15
    steps = np.diff(distances) * found.miss_ratio[1:]
    come_by = within + np.concatenate([[0], np.cumsum(steps)])
    for size, ratio in zip(sizes, missed, strict=True):
        at = np.searchsorted(come_by, size / 64)
        assert found.miss_ratio[at] == pytest.approx(ratio, rel=0.05)


def test_what_is_known_within_the_horizon_is_told_as_it_is() -> None:
    survival = SurvivalFunction(np.array([0, 100, 200]), np.array([1, 0.5, 0.0]), 1000)
    curve = ReuseDistances().curve(survival, np.array([0, 50, 150, 1000]))
    for told in (curve.low, curve.miss_ratio, curve.high):
        assert told.tolist() == [1, 0.75, 0.25, 0]


def test_sizes_are_compared() -> None:
    lines = 50_000
    recording = recording_of_loop(lines, 400_000, 0)
    found = compare_sizes(recording, loop(lines, 10**9))
    assert found.exact[[0, -1]].tolist() == [1, pytest.approx(5e-5)]
    is_apart = np.abs(np.log2(found.points / (64 * lines))) > 1
    assert found.at(is_apart).errors.max() < 1
    large = compare_sizes(recording, loop(lines, 10**9), LRU_SIZES_BYTES[-2:])
    assert large.points.tolist() == list(LRU_SIZES_BYTES[-2:])
    assert large.estimate == pytest.approx(found.estimate[-2:])


def test_nothing_is_compared_with_what_tells_nothing() -> None:
    empty = recording_of([window_record(0, 0)])
    assert told_distances(empty, DISTANCES) is None
    with pytest.raises(UntoldError):
        compare_sizes(empty, loop(1000, 10**6))


def test_errors_widths_and_what_bounds_hold() -> None:
    exact, estimate = np.array([0.5, 0.25]), np.array([0.5, 0.5])
    found = Compared(np.array([1, 2]), exact, estimate, estimate - 0.125, estimate + 0.125)
    assert found.errors.tolist() == [0, 25]
    assert found.widths.tolist() == [25, 25]
    assert found.holds.tolist() == [True, False]
    assert found.held == 50


def test_tables_of_long_distances() -> None:
    lines = 3_000_000
    told = score(loop(lines, 10**10), recording_of_loop(lines, 60_000, 40))
    assert (told.watches, told.returned, told.own_cpu) == (40, 40, 0.05)
    text = distances_page([told], "Judged then").markdown()
    assert "Judged then, with --own-cpu 0.05." in text
    assert "\n| 98,304 | " in text
    assert "| **mean** |" in text
    assert "| example | " in sizes_page([told], "Judged then").markdown()


def test_a_goal_of_watches_is_missed_without_any() -> None:
    lines = 3_000_000
    reference = loop(lines, 10**10)
    told = score(reference, recording_of_loop(lines, 60_000, 40))
    assert missed_goals([], [told]) == []
    untold = score(reference, recording_of_loop(lines, 60_000, 0))
    assert missed_goals([], [untold]) == [
        "example: no line that was watched returned",
        "bounds at 1e8 accesses that watches make narrower",
    ]


# -- the experiment ------------------------------------------------------------------------------


def row(source: str, own_cpu: str, large_width: float, held: float = 100.0) -> dict[str, str]:
    columns = dict.fromkeys(Sources.columns, "1")
    return {
        **{"program": "fft", "repeat": "0", "source": source, "own_cpu": own_cpu},
        **columns,
        **{"large_width": str(large_width), "held": str(held)},
    }


def test_sources_are_judged_by_bounds_and_their_widths() -> None:
    rows = [row(BURSTS, "0.2", 20), row(BOTH, "0.2", 8, 90), row(WALKS, "0.2", 30)]
    values = {goal.what.partition(", ")[2]: goal for goal in goals(rows, "0.2")}
    ratio = values["width at 4 to 64 MiB, with watchpoints over without"]
    assert ratio.value == pytest.approx(0.4)
    assert ratio.is_met
    assert not values[f"{BOTH}: bounds broken, %"].is_met
    assert values[f"{WALKS}: bounds broken, %"].is_met
    assert not any(goal.is_met for goal in goals(rows, "0.05"))  # not measured
    page = Page()
    assert len(Sources().report(rows, page)) == len(OWN_CPU) * len(values)
    assert "| fft | bursts | 0.2 | 1.00 | 1.00 | 1.0 | 20.0 |" in page.markdown()


def test_runs_are_judged_with_what_they_cost(tmp_path: Path) -> None:
    recording = read_recording(write_recording(tmp_path / "run.mem"))
    found = figures(recording, loop(1000, 10**6))
    assert set(found) == set(Sources.columns)
    assert found["hold_share"] == pytest.approx(100 * 0.01 / 6)
    assert found["own_seconds"] == pytest.approx(0.4)
    untold = replace(recording, events=[window_record(0, 0)])
    assert figures(untold, loop(1000, 10**6))["large_error"] is None
    with pytest.raises(ValueError, match="no summary"):
        figures(replace(recording, summary=None), loop(1000, 10**6))
