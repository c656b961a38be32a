"""The clusterer against labelled streams and adversaries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd.phases.leader import LeaderFollower
from memsampd.phases.noise import compare
from memsampd.phases.protocols import WindowClusterer
from memsampd.phases.records import Window

BINS = 32


def learn(model: LeaderFollower, windows: np.ndarray) -> list[int]:
    """Phases of all windows, with later merges applied to the earlier ones."""
    labels: list[int] = []
    into: dict[int, int] = {}
    for counts in windows:
        assignment = model.learn_counts(counts.astype(float))
        into.update(assignment.merged)
        labels.append(assignment.phase)

    def alive(phase: int) -> int:
        while phase in into:
            phase = into[phase]
        return phase

    return [alive(phase) for phase in labels]


def rand_index(a: np.ndarray, b: list[int]) -> float:
    """Adjusted Rand index by counting pairs one by one."""
    x, y = np.asarray(a), np.asarray(b)
    upper = np.triu_indices(len(x), 1)
    same_x = (x[:, None] == x[None, :])[upper]
    same_y = (y[:, None] == y[None, :])[upper]
    both, chance = (same_x & same_y).mean(), same_x.mean() * same_y.mean()
    most = (same_x.mean() + same_y.mean()) / 2
    return float((both - chance) / (most - chance))


def labelled_stream(seed: int, hits: int, phases: int, overlap: float, windows: int = 300) -> Any:
    rng = np.random.default_rng(seed)
    common_part = rng.dirichlet([0.3] * BINS)
    p = (1 - overlap) * rng.dirichlet([0.3] * BINS, size=phases) + overlap * common_part
    labels = np.concatenate([np.full(rng.geometric(1 / 8), k % phases) for k in range(windows)])
    labels = labels[:windows]
    return np.stack([rng.multinomial(hits, p[k]) for k in labels]), labels


@pytest.mark.parametrize(
    ("hits", "phases", "overlap"),
    [(30, 2, 0), (30, 6, 0), (100, 2, 0.5), (100, 6, 0.25), (100, 12, 0.25), (800, 12, 0.5)],
)
def test_finds_the_phases_of_a_labelled_stream(hits: Any, phases: Any, overlap: Any) -> None:
    scores = []
    for seed in range(3):
        stream, truth = labelled_stream(seed, hits, phases, overlap)
        scores.append(rand_index(truth, learn(LeaderFollower(), stream)))
    assert np.median(scores) >= 0.95


@pytest.mark.parametrize("hits", [1, 3, 10, 30, 100, 800])
@pytest.mark.parametrize("concentration", [0.05, 1.0])
def test_one_distribution_is_one_phase(hits: Any, concentration: Any) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        p = rng.dirichlet([concentration] * BINS)
        model = LeaderFollower()
        learn(model, rng.multinomial(hits, p, size=250))
        assert model.phases == (0,)


FEW, MANY = 64, 4096  # bins that vectors are compared by, and that they have


def spread(rng: np.random.Generator, branches: int) -> np.ndarray:
    """Places of branches in a vector of many bins."""
    return rng.choice(MANY, branches, replace=False)


def drawn(rng: np.random.Generator, hits: int, bins: np.ndarray, p: np.ndarray) -> np.ndarray:
    return np.bincount(bins, rng.multinomial(hits, p), MANY)


@pytest.mark.parametrize("hits", [25, 50, 100])
@pytest.mark.parametrize("branches", [6, 12, 20, 40])
def test_branches_that_are_hot_by_chance_split_no_phase(branches: int, hits: int) -> None:
    """Sooner or later each of them has a tenth of some window's hits."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        bins, p = spread(rng, branches), np.full(branches, 1 / branches)
        model = LeaderFollower(bins=FEW)
        learn(model, np.array([drawn(rng, hits, bins, p) for _ in range(250)]))
        assert model.phases == (0,)


def test_known_phases_are_met_again_whatever_was_hot_then() -> None:
    rng = np.random.default_rng(5)
    p = np.full(20, 1 / 20)
    one, other = spread(rng, 20), spread(rng, 20)
    before = LeaderFollower(bins=FEW)
    learn(before, np.array([drawn(rng, 100, b, p) for b in (one, other) for _ in range(200)]))
    assert before.phases == (0, 1)
    model = LeaderFollower(bins=FEW)
    model.restore(before.leaders(MANY))
    for phase, bins in enumerate((one, other)):
        found = model.learn_counts(drawn(rng, 100, bins, p))
        assert (found.phase, found.is_new) == (phase, False)


def test_hot_branches_share_no_bin() -> None:
    one, other = 3, 3 + 5 * FEW
    cold = range(10, 60)

    def vector(*hits: tuple[int, int]) -> np.ndarray:
        counts = np.zeros(MANY)
        for bin_, times in hits:
            counts[bin_] += times
        return counts

    model = LeaderFollower(bins=FEW)
    found = [
        model.learn_counts(counts).phase
        for counts in (
            vector((one, 100)),
            vector((other, 100)),
            vector((one, 60), (other, 40)),
            vector((one, 100)),
            vector((other, 40), *((bin_, 1) for bin_ in cold)),
        )
    ]
    assert found == [0, 1, 2, 0, 3]


def test_one_distribution_with_changing_hits_is_one_phase() -> None:
    rng = np.random.default_rng(7)
    p = rng.dirichlet([0.3] * BINS)
    model = LeaderFollower()
    hits = rng.choice([5, 30, 100, 800], size=400)
    learn(model, np.stack([rng.multinomial(n, p) for n in hits]))
    assert model.phases == (0,)


def test_disjoint_windows_are_different_phases_even_at_few_hits() -> None:
    model = LeaderFollower()
    labels = learn(model, np.array([[10, 10, 0, 0], [0, 0, 10, 10]] * 10))
    assert labels == [0, 1] * 10


def test_a_few_hits_do_not_suffice_to_tell_phases_apart() -> None:
    assert learn(LeaderFollower(), np.array([[1, 0], [0, 1]])) == [0, 0]


@pytest.mark.parametrize("seed", range(4))
def test_windows_in_a_row_leave_a_phase_that_took_them_in(seed: int) -> None:
    """A window of 12 hits cannot tell two kinds of code apart, several in a row can."""
    rng = np.random.default_rng(seed)
    common_part, *own = rng.dirichlet([0.3] * 64, size=3)
    truth = np.arange(160) // 8 % 2
    stream = np.stack([rng.multinomial(12, 0.3 * common_part + 0.7 * own[k]) for k in truth])

    one_by_one = LeaderFollower(split_tolerance=2)  # no two vectors are further apart
    learn(one_by_one, stream)
    assert one_by_one.phases == (0,)

    model = LeaderFollower()
    labels = learn(model, stream)
    assert len(model.phases) == 2
    assert rand_index(truth[32:], labels[32:]) > 0.9


def test_a_phase_that_windows_leave_forgets_their_hits() -> None:
    model = LeaderFollower(tolerance=1.0)
    stay, leave = np.array([100.0, 0.0]), np.array([60.0, 40.0])
    for _ in range(3):
        assert model.learn_counts(stay).phase == 0
    assert not model.learn_counts(leave).is_new
    assignment = model.learn_counts(leave)
    assert (assignment.phase, assignment.is_new, assignment.merged) == (1, True, ())
    left, founded = model.leaders(2)
    assert (left.hits.tolist(), left.remembered, left.windows) == ([300.0, 0.0], 3.0, 3)
    assert (founded.hits.tolist(), founded.remembered, founded.windows) == ([120.0, 80.0], 2.0, 2)
    # The founded one is a phase like others.
    assert model.learn_counts(leave).phase == 1
    assert model.learn_counts(stay).phase == 0


def test_no_windows_leave_where_no_phase_may_come() -> None:
    model = LeaderFollower(tolerance=1.0, max_phases=1)
    for counts in ([100.0, 0.0], [100.0, 0.0], [60.0, 40.0], [60.0, 40.0], [60.0, 40.0]):
        assignment = model.learn_counts(np.array(counts))
        assert (assignment.phase, assignment.merged) == (0, ())


def test_tolerance_is_a_true_distance() -> None:
    """Without noise, exactly the tolerance decides (0.3: 15 % of the hits moved)."""
    hits = 1e7
    for moved, phases in ((0.14, 1), (0.16, 2)):
        model = LeaderFollower()
        learn(model, np.array([[hits, 0.0], [hits * (1 - moved), hits * moved]]))
        assert len(model.phases) == phases


def test_centroid_is_the_mean_of_its_windows_with_weight_one_by_count_plus_one() -> None:
    """The released ScarPhase code replaces the leader by its first follower."""
    model = LeaderFollower()
    learn(model, np.array([[100.0, 0.0], [95.0, 5.0]]))
    assignment = model.learn_counts(np.array([100.0, 0.0]))
    assert assignment.distance == pytest.approx(2 * 2.5 / 100)


def test_slow_drift_is_followed() -> None:
    rng = np.random.default_rng(3)
    model = LeaderFollower(memory_windows=32)
    for step in np.linspace(0, 1, 2000):
        model.learn_counts(rng.multinomial(200, [1 - step, step]).astype(float))
    assert model.phases == (0,)


def test_phases_that_become_alike_merge_into_the_heavier_and_ids_are_not_reused() -> None:
    model = LeaderFollower(memory_windows=4)
    merged: list[tuple[int, int]] = []
    hits = 1000.0
    for step in np.linspace(0, 1, 60):
        left = 0.9 - 0.25 * step  # 0.9 and 0.4 come to meet at 0.65
        right = 0.4 + 0.25 * step
        for share in (left, right, right):
            merged += model.learn_counts(hits * np.array([share, 1 - share])).merged
    assert merged == [(0, 1)]
    assert model.phases == (1,)
    new = model.learn_counts(np.array([0.0, 0.0, hits]))
    assert (new.phase, new.is_new) == (2, True)


@settings(max_examples=40)
@given(
    st.lists(
        st.dictionaries(st.integers(0, 40), st.integers(0, 500), max_size=6),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 5),
)
@example([{0: 7, 2: 3, 6: 2}, {1: 441, 3: 1, 4: 1, 5: 4}], 1)  # a distance of 2, by rounding more
def test_phases_are_bounded_dense_and_accounted_for_under_any_stream(
    stream: Any, max_phases: Any
) -> None:
    model = LeaderFollower(tolerance=0.05, max_phases=max_phases)
    alive: set[int] = set()
    founded = 0
    for x in stream:
        counts = np.zeros(41)
        for bin_, hits in x.items():
            counts[bin_] = hits
        if not counts.sum():
            continue
        assignment = model.learn_counts(counts)
        if assignment.is_new:
            assert assignment.phase == founded
            founded += 1
            alive.add(assignment.phase)
        for gone, into in assignment.merged:
            alive.remove(gone)
            assert into in alive
        assert assignment.phase in alive
        assert set(model.phases) == alive
        assert len(alive) <= max_phases
        assert 0 <= assignment.distance <= 2


def test_every_window_another_code_stays_bounded() -> None:
    model = LeaderFollower(max_phases=8)
    for k in range(200):
        model.learn_counts(100.0 * (np.arange(256) == k))
    assert len(model.phases) == 8
    assert model.phases[-1] == 199


def test_eviction_spares_the_active() -> None:
    model = LeaderFollower(max_phases=2)
    for k in (0, 0, 0, 1, 0, 2):
        last = model.learn_counts(100.0 * (np.arange(4) == k))
    assert last.merged == ((1, 0),)
    assert model.phases == (0, 2)
    # The survivor's centroid is untouched by what was counted to it.
    assert model.learn_counts(np.array([100.0, 0, 0, 0])).distance == 0


def test_windows_in_a_row_leave_though_there_are_as_many_phases_as_may_be() -> None:
    def counts(first: int, second: int) -> NDArray[np.float64]:
        hits = np.zeros(64)
        hits[first], hits[second] = 12.0, 13.0
        return hits

    model = LeaderFollower(tolerance=1.1, max_phases=3)
    for vector in 10 * [counts(0, 1)] + 2 * [counts(20, 21)] + 3 * [counts(30, 31)]:
        model.learn_counts(vector)
    assert model.phases == (0, 1, 2)
    assert not model.learn_counts(counts(0, 1)).is_new
    first = model.learn_counts(counts(0, 2))
    assert first.phase == 0  # within the tolerance of it
    second = model.learn_counts(counts(0, 2))
    assert second.is_new
    assert second.merged == ((1, 2),) or second.merged == ((1, 0),)
    assert second.phase in model.phases
    assert len(model.phases) == 3
    assert model.learn_counts(counts(0, 1)).phase == 0


def test_same_windows_same_phases_whatever_the_interface() -> None:
    stream, _ = labelled_stream(5, 100, 6, 0.3, windows=120)
    one, two = LeaderFollower(), LeaderFollower()
    for index, counts in enumerate(stream):
        window = Window(index, 0, 0, 0.1, counts.astype(float), int(counts.sum()), 0, 0, {})
        assert one.assign(window).phase == two.learn_counts(counts.astype(float)).phase
    assert one.phases == two.phases


def test_another_one_goes_on_with_its_phases() -> None:
    windows, labels = labelled_stream(3, 100, 6, 0.25)
    one = LeaderFollower()
    learn(one, windows[:200])
    other = LeaderFollower(first_id=40)
    shift = {each.phase: each.phase + 40 for each in one.leaders(windows.shape[1])}
    known = [replace(each, phase=shift[each.phase]) for each in one.leaders(windows.shape[1])]
    other.restore(known)
    assert other.phases == tuple(sorted(shift.values()))
    again = learn(other, windows[200:])
    expected = learn(one, windows[200:])
    assert again == [shift.get(phase, phase + 40) for phase in expected]
    assert rand_index(labels[200:], again) > 0.95
    with pytest.raises(ValueError, match="before the first"):
        other.restore(known)


def test_keeps_its_seam() -> None:
    assert isinstance(LeaderFollower(), WindowClusterer)


def test_refuses_what_is_no_vector_of_hits() -> None:
    model = LeaderFollower()
    with pytest.raises(ValueError, match="no phase"):
        model.learn_counts(np.zeros(4))
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="counts"):
            model.learn_counts(np.array([3.0, bad]))
    assert model.phases == ()
    for options in ({"tolerance": 3}, {"max_phases": 0}, {"memory_windows": 0}):
        with pytest.raises(ValueError, match=r"tolerance|at least"):
            LeaderFollower(**options)


# -- the noise model -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hits", "others", "bins", "concentration"),
    [(30, 30, 32, 0.3), (30, 3000, 32, 1), (100, 1000, 2, 5), (5, 7, 3, 1), (800, 8000, 32, 1)],
)
def test_expected_distance_and_spread_against_permutations(
    hits: Any, others: Any, bins: Any, concentration: Any
) -> None:
    rng = np.random.default_rng(11)
    p = rng.dirichlet([concentration] * bins)
    x, c = rng.multinomial(hits, p), rng.multinomial(others, p)
    comparison = compare(x.astype(float), c.astype(float))
    dealt = rng.multivariate_hypergeometric(x + c, hits, size=20_000)
    distance = np.abs(dealt / hits - (x + c - dealt) / others).sum(axis=1)
    error = 5 * distance.std() / np.sqrt(len(distance))
    assert comparison.expected == pytest.approx(distance.mean(), abs=error)
    assert comparison.spread == pytest.approx(distance.std(), rel=0.12)


@pytest.mark.parametrize("p", [[0.5, 0.5], [0.9, 0.05, 0.05], [1 / 32] * 32])
def test_noise_is_exceeded_as_rarely_as_promised(p: Any) -> None:
    """Also with two bins, where the distance is a normal variable's absolute value."""
    rng = np.random.default_rng(8)
    beyond, windows = 0, 4000
    for _ in range(windows):
        x, c = rng.multinomial(100, p), rng.multinomial(1000, p)
        comparison = compare(x.astype(float), c.astype(float))
        beyond += bool(comparison.distance > comparison.quantile(3.0))
    assert beyond <= 4000 * 0.00135 + 4 * np.sqrt(4000 * 0.00135)


def test_expected_distance_tends_to_the_formula_of_normals() -> None:
    rng = np.random.default_rng(2)
    p = rng.dirichlet([5.0] * 16)
    n, m = 40_000, 90_000
    comparison = compare(n * p, m * p)
    formula = np.sqrt(2 * p * (1 - p) / np.pi * (1 / n + 1 / m)).sum()
    assert comparison.expected == pytest.approx(formula, rel=2e-3)


def test_distance_of_vectors_that_share_all_some_or_no_bins() -> None:
    counts = np.array([3.0, 0, 0, 5])
    others = np.array([[3.0, 0, 0, 5], [0, 4, 0, 0], [1, 0, 7, 0]])
    assert [compare(counts, other).distance for other in others] == pytest.approx([0, 2, 1.75])


def test_what_cannot_differ_has_no_noise() -> None:
    comparison = compare(np.array([4.0, 0]), np.array([9.0, 0]))
    assert (comparison.distance, comparison.expected, comparison.spread) == (0, 0, 0)
