"""The evaluation's pieces, against brute force and against runs whose truth is known."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invented_reference import invented_reference, kinds

from evaluation import bench as benches
from evaluation import clusterings
from evaluation.__main__ import measure, report
from evaluation.bench import SCALES, Bench
from evaluation.experiment import Experiment, Goal
from evaluation.experiments import EXPERIMENTS
from evaluation.experiments.average_curve import average_curves
from evaluation.experiments.phase_quality import quality
from evaluation.experiments.profiled_windows import choose, spread
from evaluation.live import LiveRuns
from evaluation.offline import OfflineWindows, offline_windows
from evaluation.page import Page
from evaluation.results import Case, Results, Row, cell, numbers
from evaluation.statistics import (
    adjusted_rand_index,
    deviation,
    deviation_within,
)
from reference.documents import machine_text
from reference.metrics import cdf_error, whole_run_error

REFERENCE = invented_reference()
COUNT = len(REFERENCE.accesses)


@pytest.fixture(scope="module")
def windows() -> OfflineWindows:
    return offline_windows(REFERENCE, COUNT)


# -- statistics ----------------------------------------------------------------------------------

LABELS = st.lists(st.integers(0, 3), min_size=2, max_size=12)


@given(LABELS, st.data())
def test_rand_index_counts_pairs(first: list[int], data: st.DataObject) -> None:
    second = data.draw(st.lists(st.integers(0, 3), min_size=len(first), max_size=len(first)))
    pairs = list(itertools.combinations(range(len(first)), 2))
    a = np.array([first[i] == first[j] for i, j in pairs], dtype=float)
    b = np.array([second[i] == second[j] for i, j in pairs], dtype=float)
    chance, most = a.sum() * b.sum() / len(pairs), (a.sum() + b.sum()) / 2
    expected = 1.0 if most == chance else ((a * b).sum() - chance) / (most - chance)
    assert adjusted_rand_index(first, second) == pytest.approx(expected)


@given(LABELS, st.integers(0, 99))
def test_deviation_within_groups_is_that_about_their_means(labels: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, weights = rng.random((len(labels), 2)), rng.random(len(labels)) + 0.1
    total = np.zeros(2)
    for group in set(labels):
        mine = [i for i, label in enumerate(labels) if label == group]
        mean = sum(weights[i] * values[i] for i in mine) / sum(weights[i] for i in mine)
        total += sum(weights[i] * (values[i] - mean) ** 2 for i in mine)
    expected = np.sqrt(total / weights.sum())
    np.testing.assert_allclose(
        deviation_within(values, weights, np.array(labels)), expected, atol=1e-12
    )
    assert (deviation(values, weights) >= expected - 1e-12).all()


# -- kept results --------------------------------------------------------------------------------


def test_results_are_kept_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    results = Results(path, ("program", "seed"), ("part", "error"))
    results.add(("a", "1"), [{"part": "x", "error": 1.5}, {"part": "y", "error": None}])
    again = Results(path, ("program", "seed"), ("part", "error"))
    assert again.has(("a", "1"))
    assert not again.has(("a", "2"))
    assert again.rows == results.rows
    assert numbers(again.rows, "error", program="a") == [1.5]
    assert cell(again.rows, "error", part="x") == "1.50"
    assert cell(again.rows, "error", part="y") == "-"
    with pytest.raises(ValueError, match="other columns"):
        Results(path, ("program",), ("error",))


class Counting:
    """An experiment that counts its measurements."""

    name, key, columns = "counting", ("case",), ("square",)
    measured: list[str]

    def __init__(self) -> None:
        self.measured = []

    def cases(self, bench: Bench) -> Iterable[Case]:
        return [(str(number),) for number in range(3)]

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        self.measured.append(case[0])
        if len(self.measured) == 2:
            raise KeyboardInterrupt
        return [{"square": int(case[0]) ** 2}]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        page.table(["n", "square"], [[row["case"], row["square"]] for row in rows])
        return [Goal("squares", float(rows[-1]["square"]), 3.0)]


def test_an_interrupted_evaluation_goes_on_where_it_stopped(tmp_path: Path) -> None:
    bench = Bench(SCALES["smoke"], tmp_path, LiveRuns(tmp_path, tmp_path))
    experiment: Experiment = (counting := Counting())
    with pytest.raises(KeyboardInterrupt):
        measure(experiment, bench, tmp_path)
    measure(experiment, bench, tmp_path)
    assert counting.measured == ["0", "1", "1", "2"]
    document = tmp_path / "evaluation.md"
    document.write_text(
        "# E\n<!-- counting goals: begin -->\n<!-- counting goals: end -->\n"
        "<!-- counting: begin -->\n<!-- counting: end -->\n"
    )
    (goal,) = report([experiment], tmp_path, document, "smoke")
    assert not goal.is_met
    assert "| 2 | 4 |" in document.read_text()
    assert "| squares | 4.00 | 3 | **missed** |" in document.read_text()


def test_a_page_tells_when_and_where_its_rows_were_measured(tmp_path: Path) -> None:
    bench = Bench(SCALES["smoke"], tmp_path, LiveRuns(tmp_path, tmp_path))
    experiment, made = Counting(), tmp_path / "counting.made"
    document = tmp_path / "evaluation.md"
    document.write_text(
        "<!-- counting goals: begin -->\n<!-- counting goals: end -->\n"
        "<!-- counting: begin -->\n<!-- counting: end -->\n"
    )
    with pytest.raises(KeyboardInterrupt):
        measure(experiment, bench, tmp_path)
    now = made.read_text().strip()
    assert machine_text() in now
    earlier = "2020-01-01 on a machine of then, v0"
    made.write_text(f"{earlier}\n")
    report([experiment], tmp_path, document, "smoke")
    assert document.read_text().count(f"Measured {earlier}.") == 2
    assert machine_text() not in document.read_text()
    measure(experiment, bench, tmp_path)  # the other two cases
    report([experiment], tmp_path, document, "smoke")
    assert document.read_text().count(f"Measured {earlier}; {now}.") == 2
    made.unlink()
    report([experiment], tmp_path, document, "smoke")
    assert "that were not kept" in document.read_text()
    (tmp_path / "counting.csv").unlink()
    made.write_text(f"{earlier}\n")
    measure(experiment, bench, tmp_path)
    assert made.read_text().strip() == now  # all is measured anew


# -- offline windows -----------------------------------------------------------------------------


def test_windows_add_up_to_the_run() -> None:
    coarse = offline_windows(REFERENCE, COUNT // 4)
    assert len(coarse) == COUNT // 4
    assert coarse.accesses.sum() == REFERENCE.total_accesses
    np.testing.assert_array_equal(coarse.misses[0], REFERENCE.lru[:4, :12].sum(axis=0))
    np.testing.assert_allclose(coarse.block_shares.sum(axis=1), 1)


def test_model_of_exact_distances_is_near_the_exact_misses(windows: OfflineWindows) -> None:
    kind = np.array(kinds(COUNT))
    for each in range(3):
        # Late windows of a stretch: their working set is in the cache.
        late = np.flatnonzero((kind == each) & (np.arange(COUNT) % 5 >= 3))[2:]
        exact = windows.misses[late].sum(axis=0) / windows.accesses[late].sum()
        assert whole_run_error(windows.curve(late), exact) < 1.0


def test_hits_follow_the_blocks(windows: OfflineWindows) -> None:
    hits = windows.hits(0, 50, 16)
    assert hits.shape == (COUNT, 16)
    assert (hits.sum(axis=1) == 50).all()
    labels = clusterings.product(windows.hits(0, 2000, 64))
    code = np.minimum(kinds(COUNT), 1)  # the last two kinds run the same code
    assert adjusted_rand_index(labels, code) == 1.0


def test_clusterings_find_what_there_is(windows: OfflineWindows) -> None:
    hits = windows.hits(0, 400, 64)
    code = np.minimum(kinds(COUNT), 1)
    shares = hits / hits.sum(axis=1, keepdims=True)
    for labels in (clusterings.fixed_threshold(hits), clusterings.k_means(shares, 2, 0)):
        assert adjusted_rand_index(labels, code) == 1.0
    assert len(clusterings.dbstream(hits)) == COUNT


def test_phase_quality_tells_good_phases_from_bad(windows: OfflineWindows) -> None:
    good = quality(windows, np.array(kinds(COUNT)))
    code = quality(windows, np.minimum(kinds(COUNT), 1))
    bad = quality(windows, np.arange(COUNT) % 2)
    assert good["miss_ratio_variation"] < code["miss_ratio_variation"] < bad["miss_ratio_variation"]
    assert good["mixing_cdf_error"] < code["mixing_cdf_error"] < bad["mixing_cdf_error"]
    one = quality(windows, np.zeros(COUNT, dtype=np.int64))
    assert (one["phases"], one["prediction_accuracy"]) == (1.0, 1.0)
    assert one["miss_ratio_variation"] == pytest.approx(1.0)


def test_all_windows_profiled_leave_no_error(windows: OfflineWindows) -> None:
    phases = np.array(kinds(COUNT))
    every = choose(phases, COUNT, None)
    mean, nearest = (spread(windows, phases, every, each) for each in ("mean", "nearest"))
    np.testing.assert_array_equal(nearest, windows.miss_ratio)
    weights = windows.accesses
    assert whole_run_error(np.average(mean, axis=0, weights=weights), windows.overall) < 1e-9
    assert cdf_error(mean, weights, windows.miss_ratio, weights) > 0
    first = choose(phases, 2, None)
    assert first[1].tolist() == [5, 6]


def test_curves_by_phase_beat_pooled_ones(windows: OfflineWindows) -> None:
    errors = [
        {way: whole_run_error(curve, windows.overall) for way, curve in curves.items()}
        for curves in (average_curves(windows, seed) for seed in range(5))
    ]
    means = {way: np.mean([each[way] for each in errors]) for way in errors[0]}
    assert means["phase-aware"] < means["oblivious"]
    assert means["burst"] < means["oblivious"]


def test_offline_experiments_run_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benches, "_reference", lambda name: REFERENCE)
    monkeypatch.setattr(Bench, "offline_names", lambda self: ["invented"])
    bench = Bench(SCALES["smoke"], tmp_path, LiveRuns(tmp_path, tmp_path))
    for experiment in EXPERIMENTS:
        if experiment.name in ("live", "sources"):
            continue
        measure(experiment, bench, tmp_path)
        page = Page()
        results = Results(tmp_path / f"{experiment.name}.csv", experiment.key, experiment.columns)
        experiment.report(results.rows, page)
        assert "| " in page.markdown()


def test_experiments_have_names_of_their_own() -> None:
    names = [experiment.name for experiment in EXPERIMENTS]
    assert len(set(names)) == len(names)
    for experiment in EXPERIMENTS:
        assert not set(experiment.key) & set(experiment.columns)
